"""Action ``torchx cubicml history compact``: merges the events of past days into segments."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchx_cubicml.cli.base import print_json, store_url
from torchx_cubicml.cli.terminal import open_console, say
from torchx_cubicml.errors import StoreError
from torchx_cubicml.records.redaction import mask

if TYPE_CHECKING:
    import argparse

_DEFAULT_DAYS = 7


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare ``--before``."""
    text = f"merge the events before this day (default: {_DEFAULT_DAYS} days ago)"
    parser.add_argument("--before", default=None, metavar="YYYY-MM-DD", help=text)


def run(args: argparse.Namespace) -> int:
    """Compact the events before a day."""
    from torchx_cubicml.store import TrialStore
    from torchx_cubicml.store.compaction import compact
    from torchx_cubicml.store.presence import check_store

    url, before = store_url(args), _day(args.before)
    check_store(url)
    result = compact(TrialStore(url), before=before)
    if args.json:
        print_json({"events": result.n_events, "segments": result.n_segments})
    else:
        say(open_console(), f"merged {result.n_events} events of {mask(url)} into {result.n_segments} segments")
    return 0


def _day(text: str | None) -> str:
    from datetime import UTC, date, datetime, timedelta

    if text is None:
        return f"{datetime.now(UTC) - timedelta(days=_DEFAULT_DAYS):%Y-%m-%d}"
    try:
        return f"{date.fromisoformat(text):%Y-%m-%d}"
    except ValueError:
        raise StoreError(f"--before must be a day such as 2026-03-01, got {text!r:.40}") from None
