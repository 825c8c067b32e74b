"""Stalls that recur between steps, such as the opening of a loader at each epoch, and the rate over whole periods.

A run ends within a period, and the start of its first step is unknown. So the stalls that were seen are fewer than the
steps that were counted deserve: one of five in a run of five epochs. Where stalls recur at equal distances from the
first step on, the mean step is that of a whole period.
"""

from __future__ import annotations

from itertools import pairwise
from statistics import fmean, median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_LEAST_TIMES = 3.0  # the median step: a stall takes at least so long
_LEAST_SHARE = 0.5  # of the longest step: a stall takes at least so long, or else as long as the above alone
_LEAST_STALLS = 2  # apart from the one at the start, unless pauses precede them
_MOST_OFF = 0.1  # of a distance, or one step: it may differ so much from the others


def periodic_mean_s(seconds: Sequence[float], *, warmup: int, paused: Sequence[bool] = ()) -> float | None:
    """Return the mean seconds of a step over whole periods of stalls; ``None`` where none recur.

    Args:
        seconds: durations of all consecutive steps of a run but the first, whose start is unknown.
        warmup: number of these that count for the distances of stalls alone.
        paused: for each step, whether a pause preceded it.

    >>> periodic_mean_s([1.0] * 9 + [11.0] + [1.0] * 9 + [11.0] + [1.0] * 7, warmup=2)
    2.0
    """
    level = median(seconds[warmup:])
    for least in (max(_LEAST_TIMES * level, _LEAST_SHARE * max(seconds[warmup:])), _LEAST_TIMES * level):
        stalls = [place for place, time in enumerate(seconds) if place >= warmup and time >= least]
        period = _period(stalls, len(seconds), paused)
        if period:
            known = set(stalls)
            usual = fmean(time for place, time in enumerate(seconds) if place >= warmup and place not in known)
            return usual + (fmean(seconds[place] for place in stalls) - usual) / period
    return None


def _period(stalls: Sequence[int], n: int, paused: Sequence[bool]) -> float:
    """Return the steps from one stall to the next; 0 where they do not recur."""
    distances = [later - earlier for earlier, later in pairwise((-1, *stalls))]
    follow_pauses = bool(paused) and all(paused[place] for place in stalls)
    if len(stalls) < (1 if follow_pauses else _LEAST_STALLS):
        return 0.0
    usual = median(distances)
    allowed = max(_MOST_OFF * usual, 1.0)
    is_regular = all(abs(each - usual) <= allowed for each in distances) and n - stalls[-1] <= usual + allowed
    return fmean(distances) if usual > 1 and is_regular else 0.0
