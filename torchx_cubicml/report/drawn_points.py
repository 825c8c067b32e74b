"""Sample of the points of a figure: thousands more would cover each other, and make a page heavy."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST_DRAWN = 2000
"""Points of one kind in one figure."""
_Point = TypeVar("_Point")


def evenly_spaced(points: Sequence[_Point], *, most: int) -> list[_Point]:
    """Return at most ``most`` points, >= 2: the first, the last, and others at equal distances.

    >>> evenly_spaced(range(7), most=4)
    [0, 2, 4, 6]
    """
    if len(points) <= most:
        return list(points)
    step = (len(points) - 1) / (most - 1)
    return [points[round(place * step)] for place in range(most)]


def sample_text(counts: Sequence[int], *, most: int) -> str:
    """Return the number of points drawn, in words; empty where all are.

    Args:
        counts: points of each kind.
        most: points drawn of one kind.

    >>> sample_text([7000, 12], most=2000)
    '2,000 of 7,000 points are drawn'
    """
    large = [count for count in counts if count > most]
    return f"{most * len(large):,} of {sum(large):,} points are drawn" if large else ""
