"""From the durations of steps to a measurement of the steady state; pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import groupby, takewhile
from statistics import fmean, median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

LEAST_WARMUP = 2  # durations left out at least: caches, allocators and clocks settle
LEAST_FOR_DRIFT = 16  # durations without which a change over time is chance
LEAST_STEADY = 3  # durations without which nothing is said
_WINDOW = 5
_NEIGHBOURS = 8  # watched steps on either side of those that were not
_SETTLED = 1.2  # of the steady level: a window at most this slow belongs to the steady state


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One optimizer step of this process.

    Args:
        seconds: from the end of the step before to the end of this one, > 0.
        samples: consumed in it by this process; ``None`` where unknown.
        tokens: likewise.
        outside_s: seconds of these before the step's first forward: loading data, checkpoints, evaluation; ``None``
            where unknown.
        is_watched: whether anybody looked at what was consumed, and at the first forward.
    """

    seconds: float
    samples: float | None = None
    tokens: float | None = None
    outside_s: float | None = None
    is_watched: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class SteadyState:
    """What the steps after warm-up have in common, of this process alone.

    Args:
        warmup: durations left out.
        counted: durations used, >= ``LEAST_STEADY``.
        step_time_s: quantiles 0.1, 0.5 and 0.9 of the seconds per step.
        samples_per_second: at the median step of those whose work is known; ``None`` where a step that was watched
            does not tell.
        tokens_per_second: likewise.
        mean_step_time_s: of the steps used: what the median leaves out shows here.
        drift: by which part the last quarter of the steps is slower than the first, at their medians; ``None`` for
            fewer than ``LEAST_FOR_DRIFT`` steps.
        share_outside: of the time, before the first forward of a step; ``None`` where unknown.
    """

    warmup: int
    counted: int
    step_time_s: tuple[float, float, float]
    samples_per_second: float | None
    tokens_per_second: float | None
    mean_step_time_s: float
    drift: float | None
    share_outside: float | None


def steady_state(steps: Sequence[Step]) -> SteadyState | None:
    """Return what the steps settle to; ``None`` while there are too few.

    >>> slow_start = [Step(seconds=9.0), Step(seconds=2.0)] + [Step(seconds=1.0, samples=8)] * 4
    >>> steady_state(slow_start).samples_per_second
    8.0
    """
    warmup = count_warmup([step.seconds for step in steps])
    steady = fill_unwatched(steps)[warmup:]
    if len(steady) < LEAST_STEADY:
        return None
    seconds = sorted(step.seconds for step in steady)
    return SteadyState(
        warmup=warmup,
        counted=len(steady),
        step_time_s=(quantile(seconds, 0.1), quantile(seconds, 0.5), quantile(seconds, 0.9)),
        samples_per_second=_rate([(step.samples, step) for step in steady]),
        tokens_per_second=_rate([(step.tokens, step) for step in steady]),
        mean_step_time_s=fmean(seconds),
        drift=_drift([step.seconds for step in steady]),
        share_outside=_share_outside(steady),
    )


def count_warmup(seconds: Sequence[float]) -> int:
    """Return how many durations come before the steady state.

    The later half shows the level and how much it varies. The warm-up ends with the first window whose median is within
    that, at the middle at the latest: single slow steps (a checkpoint, an evaluation) neither prolong it nor hide its
    end.

    >>> count_warmup([30.0, 20.0, 9.0, 1.0, 1.1, 1.0, 7.0, 1.0, 1.0, 1.0])
    3
    """
    middle = len(seconds) // 2
    if middle <= LEAST_WARMUP:
        return min(len(seconds), LEAST_WARMUP)
    later = sorted(seconds[middle:])
    level = quantile(later, 0.5)
    settled = max(_SETTLED * level, quantile(later, 0.75))
    for start in range(LEAST_WARMUP, middle):
        if seconds[start] <= 2 * level and median(seconds[start : start + _WINDOW]) <= settled:
            return start
    return middle


def fill_unwatched(steps: Sequence[Step]) -> list[Step]:
    """Return the steps, with what nobody watched taken to be as in the watched steps on both sides, if those agree.

    What such a step took longer than they did from their first forward to their end is time outside of it: a hidden
    evaluation is, and single steps may be taken to have a little less than none. Where the steps on both sides differ
    in what they consumed, or one side is not known yet, nothing is filled in.

    >>> seen = [Step(seconds=1.0, samples=8, outside_s=0.25)] * 2
    >>> fill_unwatched([*seen, Step(seconds=3.0, is_watched=False), *seen])[2]
    Step(seconds=3.0, samples=8, tokens=None, outside_s=2.25, is_watched=False)
    """
    filled: list[Step] = []
    for is_watched, group in groupby(steps, key=lambda step: step.is_watched):
        members = list(group)
        place = len(filled)
        filled += members
        if not is_watched:
            end = place + len(members)
            before, after = steps[max(place - _NEIGHBOURS, 0) : place], steps[end : end + _NEIGHBOURS]
            if before and after:
                filled[place:] = _alike(members, [*_watched(reversed(before)), *_watched(after)])
    return filled


def _watched(steps: Iterable[Step]) -> Iterable[Step]:
    return takewhile(lambda step: step.is_watched, steps)


def _alike(unwatched: Sequence[Step], around: Sequence[Step]) -> Sequence[Step]:
    if len({(step.samples, step.tokens) for step in around}) != 1:
        return unwatched
    inside = [step.seconds - step.outside_s for step in around if step.outside_s is not None]
    inside_s = median(inside) if len(inside) == len(around) else None  # one may have stalled
    return [
        replace(
            step,
            samples=around[0].samples,
            tokens=around[0].tokens,
            outside_s=step.seconds - inside_s if inside_s is not None else None,
        )
        for step in unwatched
    ]


def quantile(ordered: Sequence[float], q: float) -> float:
    """Return quantile ``q`` of sorted numbers, interpolated between neighbours.

    >>> quantile([1.0, 2.0, 4.0], 0.75)
    3.0
    """
    place = q * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def _rate(work: Sequence[tuple[float | None, Step]]) -> float | None:
    told = [(amount, step) for amount, step in work if amount is not None or step.is_watched]
    rates = [amount / step.seconds for amount, step in told if amount is not None and amount > 0]
    return median(rates) if rates and len(rates) == len(told) else None


def _drift(seconds: Sequence[float]) -> float | None:
    quarter = len(seconds) // 4
    return median(seconds[-quarter:]) / median(seconds[:quarter]) - 1 if len(seconds) >= LEAST_FOR_DRIFT else None


def _share_outside(steps: Sequence[Step]) -> float | None:
    watched = [place for place, step in enumerate(steps) if step.is_watched]
    known = steps[watched[0] : watched[-1] + 1] if watched else ()  # beyond these, one side is not known
    outside = [step.outside_s for step in known if step.outside_s is not None]
    if not known or len(outside) != len(known):
        return None
    return min(max(sum(outside) / sum(step.seconds for step in known), 0.0), 1.0)
