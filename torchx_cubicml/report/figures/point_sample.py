"""Sample of the points of a figure: more than a few thousand cover each other, and make a page heavy."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST_DRAWN = 2000
"""Points of one kind that are drawn in one figure."""
_T = TypeVar("_T")


def sampled(rows: Sequence[_T]) -> list[_T]:
    """Return all rows, or evenly spaced ones if there are more than ``MOST_DRAWN``; first and last are kept.

    >>> len(sampled(range(5000))), sampled(range(5000))[-1]
    (2000, 4999)
    """
    if len(rows) <= MOST_DRAWN:
        return list(rows)
    step = (len(rows) - 1) / (MOST_DRAWN - 1)
    return [rows[round(place * step)] for place in range(MOST_DRAWN)]


def sample_text(*counts: int) -> str:
    """Return words on a sample, for a subtitle; empty where every row is drawn.

    Args:
        counts: numbers of rows of each kind.

    >>> sample_text(5000, 3), sample_text(3)
    ('; 2,003 of 5,003 points are drawn', '')
    """
    total, drawn = sum(counts), sum(min(count, MOST_DRAWN) for count in counts)
    return f"; {drawn:,} of {total:,} points are drawn" if drawn < total else ""
