"""Check of the number of small objects, which slow down each reading of the store."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from torchx_cubicml.cli.checks.finding import Finding, ok, skipped, warning
from torchx_cubicml.store.segments import segment_of
from torchx_cubicml.store.url import LOCAL_PROTOCOLS, split_url

if TYPE_CHECKING:
    from torchx_cubicml.cli.checks.context import CheckContext

NAME, PLACE = "store: compaction", 110
_KEPT_DAYS = 7  # that `history compact` leaves alone by default
# A launch reads a store for at most 5 s. 1,000 objects took 2.2 s from an S3 server on the same host; a folder is
# some hundred times as fast.
_MOST_REMOTE, _MOST_LOCAL = 1_000, 20_000


def check(context: CheckContext) -> Finding:
    """Check the number of objects that ``history compact`` would merge."""
    if context.stored.problem:
        return skipped(context.stored.problem)
    first_kept = f"{datetime.now(UTC) - timedelta(days=_KEPT_DAYS):%Y-%m-%d}"
    days = [place.split("/")[-2:-1] for place in context.stored.events if not segment_of(place)]
    old = sum(1 for day in days if day and day[0] < first_kept)
    is_local = split_url(context.url)[0] in LOCAL_PROTOCOLS
    found = f"{old:,} objects older than {_KEPT_DAYS} days are not compacted"
    if old > (_MOST_LOCAL if is_local else _MOST_REMOTE):
        return warning(f"{found}: launches may not read the store in time", "torchx cubicml history compact")
    return ok(found)
