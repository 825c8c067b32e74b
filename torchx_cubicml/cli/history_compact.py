"""``torchx cubicml history compact``: the events of past days in few objects in place of many."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from torchx_cubicml.cli.base import print_json, store_url
from torchx_cubicml.errors import StoreError
from torchx_cubicml.records.redaction import mask

if TYPE_CHECKING:
    import argparse

_USUAL_DAYS = 7


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare up to which day."""
    told = f"the first day that stays as it is (default: {_USUAL_DAYS} days ago)"
    parser.add_argument("--before", default=None, metavar="YYYY-MM-DD", help=told)


def run(args: argparse.Namespace) -> int:
    """Fold what is old enough."""
    from torchx_cubicml.store import TrialStore
    from torchx_cubicml.store.compaction import compact

    url = store_url(args)
    done = compact(TrialStore(url), before=_day(args.before))
    if args.json:
        print_json({"events": done.n_events, "segments": done.n_segments})
    else:
        sys.stdout.write(f"{done.n_events} events of {mask(url)} are in {done.n_segments} segments now\n")
    return 0


def _day(text: str | None) -> str:
    from datetime import UTC, date, datetime, timedelta

    if text is None:
        return f"{datetime.now(UTC) - timedelta(days=_USUAL_DAYS):%Y-%m-%d}"
    try:
        return f"{date.fromisoformat(text):%Y-%m-%d}"
    except ValueError:
        raise StoreError(f"--before must be a day such as 2026-03-01, got {text!r:.40}") from None
