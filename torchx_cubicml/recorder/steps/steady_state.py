"""From the durations of steps to a measurement of the steady state; pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from itertools import combinations, groupby, pairwise, takewhile
from statistics import fmean, median, pvariance
from typing import TYPE_CHECKING

from torchx_cubicml.recorder.steps.long_run import relative_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from torchx_cubicml.recorder.steps.blocks import Block

LEAST_WARMUP = 2  # durations left out at least: caches, allocators and clocks settle
LEAST_FOR_DRIFT = 16  # durations without which a change over time is chance
LEAST_STEADY = 3  # durations without which nothing is said
_MOST_WARMUP = 0.2  # share of the steps of a run of _MANY or more that is left out at most
_MANY = 30
_WINDOW = 5
_SETTLED = 1.2  # of the steady level: a window at most this slow belongs to the steady state
_LEAST_S = 1e-9  # of a step: where a clock has been off, evaluation may take all of it
_NEIGHBOURS = 8  # watched steps on either side of those that were not
_RECURS = 0.5  # share of the steps from which on what happens before them is part of the training
_TREND_BLOCKS = 8
_TREND = 0.7  # Kendall's tau of the medians of those: by chance in one run of seventy
_BETWEEN = 0.9  # of the levels before and after a shift: none of either comes near to the other
_DRIFTS = 0.05  # what is less is called steady
_UNSURE = 0.05  # standard error of a share of the time, from which on it is not told


@dataclass(frozen=True, slots=True, kw_only=True)
class SteadyState:
    """The steps after warm-up, of this process alone.

    Args:
        warmup: steps left out.
        counted: steps used, >= ``LEAST_STEADY``.
        seconds: wall time from the first to the last of the steps used, without evaluation and saving.
        evaluation_s: seconds of evaluation among them, left out.
        checkpoint_s: seconds of saving, likewise.
        samples_per_step: mean of what this process consumed; ``None`` where a step that was watched does not tell.
        tokens_per_step: likewise.
        step_time_s: quantiles 0.1, 0.5 and 0.9 of the seconds per step.
        relative_error: of the throughput, see ``Measurement``.
        drift: by which part the last quarter of the steps is slower than the first, at their medians; ``None`` for
            fewer than ``LEAST_FOR_DRIFT`` steps.
        share_outside: of the time, before the first forward of a step; ``None`` where unknown.
        is_steady: whether the warm-up came to an end within its bound, and no trend followed.
    """

    warmup: int
    counted: int
    seconds: float
    evaluation_s: float
    checkpoint_s: float
    samples_per_step: float | None
    tokens_per_step: float | None
    step_time_s: tuple[float, float, float]
    relative_error: float | None
    drift: float | None
    share_outside: float | None
    is_steady: bool

    @property
    def steps_per_second(self) -> float:
        """Steps over the time they took, evaluation and saving left out."""
        return self.counted / self.seconds

    @property
    def steps_per_second_overall(self) -> float:
        """Steps over the time they took, evaluation and saving with it."""
        return self.counted / (self.seconds + self.evaluation_s + self.checkpoint_s)

    @property
    def samples_per_second(self) -> float | None:
        """Samples of this process over the time they took."""
        return None if self.samples_per_step is None else self.samples_per_step * self.steps_per_second

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens of this process over the time they took."""
        return None if self.tokens_per_step is None else self.tokens_per_step * self.steps_per_second


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """What the steps of one block consumed, filled in where nobody watched.

    Args:
        samples: of this process; ``None`` where unknown.
        tokens: likewise.
        outside_s: seconds before first forwards, evaluation and saving with it; ``None`` where unknown.
        variance: squared standard error of what was filled in, relative to the work of one step.
        outside_variance: of ``outside_s``, seconds squared.
    """

    samples: float | None
    tokens: float | None
    outside_s: float | None
    variance: float = 0.0
    outside_variance: float = 0.0


def steady_state(blocks: Sequence[Block], *, singly: Sequence[Block] = ()) -> SteadyState | None:
    """Return what the steps settle to; ``None`` while there are too few.

    Args:
        blocks: all steps of the run, in order, without the first, whose beginning nobody saw.
        singly: single steps among them, for quantiles, where the blocks hold more than one each.

    >>> from torchx_cubicml.recorder.steps.blocks import Block
    >>> run = [Block(seconds=9.0, samples=8)] * 2 + [Block(seconds=1.0, samples=8), Block(seconds=3.0, samples=8)] * 9
    >>> steady_state(run).samples_per_second, steady_state(run).warmup
    (4.0, 2)
    """
    evaluation = EvaluationKinds.of(blocks)
    seconds = [max(_training_s(block, evaluation), _LEAST_S) for block in blocks]
    by_step = [time / block.steps for time, block in zip(seconds, blocks, strict=True)]
    warmup, has_settled = count_warmup(by_step, compiled=[block.compiled for block in blocks])
    steady, seconds, by_step = blocks[warmup:], seconds[warmup:], by_step[warmup:]
    if len(steady) < LEAST_STEADY:
        return None
    work = fill_unwatched(blocks)[warmup:]
    counted = sum(block.steps for block in steady)
    durations = sorted(_training_s(each, evaluation) for each in singly or steady)
    drift = _drift(by_step)
    has_trend = drift is not None and abs(drift) > _DRIFTS and _has_trend(by_step)
    error = _relative_error(work, seconds, steady)
    return SteadyState(
        warmup=sum(block.steps for block in blocks[:warmup]),
        counted=counted,
        seconds=sum(seconds),
        evaluation_s=sum(map(evaluation.seconds, steady)),
        checkpoint_s=sum(block.checkpoint_s for block in steady),
        samples_per_step=_per_step([each.samples for each in work], counted),
        tokens_per_step=_per_step([each.tokens for each in work], counted),
        step_time_s=(quantile(durations, 0.1), quantile(durations, 0.5), quantile(durations, 0.9)),
        relative_error=math.hypot(error, math.log1p(drift) / 2) if error is not None and drift and has_trend else error,
        drift=drift,
        share_outside=_share_outside(steady, work, evaluation),
        is_steady=has_settled and not has_trend,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationKinds:
    """Which passages of the model without training are evaluation: those that do not recur within every step.

    A teacher, a target network or a rollout that each step runs is training.

    Args:
        eval_mode: whether passages in evaluation mode are, and those told apart by where they enter ``no_grad``.
        no_grad: whether other passages without gradients are.
    """

    eval_mode: bool
    no_grad: bool

    @classmethod
    def of(cls, blocks: Sequence[Block]) -> EvaluationKinds:
        """Return the kinds of a training by its steps."""
        most = _RECURS * sum(block.watched for block in blocks)
        return cls(
            eval_mode=sum(block.eval_mode_steps for block in blocks) <= most,
            no_grad=sum(block.no_grad_steps for block in blocks) <= most,
        )

    def seconds(self, block: Block) -> float:
        """Return the seconds of evaluation in a block."""
        return block.eval_mode_s * self.eval_mode + block.no_grad_s * self.no_grad


def count_warmup(seconds: Sequence[float], *, compiled: Sequence[bool] = ()) -> tuple[int, bool]:
    """Return how many durations come before the steady state, and whether it was found.

    The later half shows the level and how much it varies. The warm-up ends with the first window whose median is within
    that, after what was compiled: single slow steps (a stall, a checkpoint) neither prolong it nor hide its end. Never
    is more than a fifth of the steps left out of a run of thirty or more.

    Args:
        seconds: of consecutive steps, without the first of the run, which has no beginning.
        compiled: of each, whether a compiler was at work in it.

    >>> count_warmup([30.0, 20.0, 9.0, 1.0, 1.1, 1.0, 7.0, 1.0, 1.0, 1.0])
    (3, True)
    """
    n = len(seconds)
    most = int(_MOST_WARMUP * (n + 1)) - 1 if n + 1 >= _MANY else min(int(_MOST_WARMUP * _MANY) - 1, n // 2)
    if most < LEAST_WARMUP:
        return min(n, LEAST_WARMUP), True
    later = sorted(seconds[n // 2 :])
    level = quantile(later, 0.5)
    settled = max(_SETTLED * level, quantile(later, 0.75))
    least = max((place + 1 for place, is_compiled in enumerate(compiled[:most]) if is_compiled), default=0)
    for start in range(max(LEAST_WARMUP, least), most + 1):
        if seconds[start] <= 2 * level and median(seconds[start : start + _WINDOW]) <= settled:
            return start, True
    return most, False


def quantile(ordered: Sequence[float], q: float) -> float:
    """Return quantile ``q`` of sorted numbers, interpolated between neighbours.

    >>> quantile([1.0, 2.0, 4.0], 0.75)
    3.0
    """
    place = q * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def _training_s(block: Block, evaluation: EvaluationKinds) -> float:
    return block.seconds - evaluation.seconds(block) - block.checkpoint_s


def fill_unwatched(blocks: Sequence[Block]) -> list[_Work]:
    """Return the work of each block, that of steps nobody watched being the mean of the watched steps on both sides."""
    filled: list[_Work] = []
    for is_watched, group in groupby(blocks, key=lambda block: block.watched > 0):
        members = list(group)
        begin, end = len(filled), len(filled) + len(members)
        if is_watched:
            filled += map(_scaled_up, members)
        else:
            sides = blocks[max(begin - _NEIGHBOURS, 0) : begin], blocks[end : end + _NEIGHBOURS]
            near = [_nearest(reversed(sides[0])), _nearest(sides[1])]
            filled += _alike(members, [side for side in near if side])
    return filled


def _nearest(side: Iterable[Block]) -> list[Block]:
    return list(takewhile(lambda block: block.watched > 0, side))


def _scaled_up(block: Block) -> _Work:
    factor = block.steps / block.watched
    amounts = (block.samples, block.tokens, block.outside_s)
    samples, tokens, outside = (None if amount is None else amount * factor for amount in amounts)
    return _Work(samples=samples, tokens=tokens, outside_s=outside)


def _alike(unwatched: Sequence[Block], sides: Sequence[Sequence[Block]]) -> list[_Work]:
    """Return the work of steps that nobody watched, by the watched steps on either side of them."""
    around = [block for side in sides for block in side]
    samples, tokens = (_mean_per_step(around, name) for name in ("samples", "tokens"))
    inside_s = _inside_s(around)
    inside_variance = _variance_of_mean(sides, _inside_s) * (inside_s or 0.0) ** 2
    named = "samples" if tokens is None else "tokens"
    variance = _variance_of_mean(sides, partial(_mean_per_step, name=named))
    stretch = sum(block.steps for block in unwatched)
    return [
        _Work(
            samples=None if samples is None else samples * block.steps,
            tokens=None if tokens is None else tokens * block.steps,
            # What such a step took longer than the others did from their first forward on is time before it.
            outside_s=None if inside_s is None else block.seconds - inside_s * block.steps,
            variance=variance * stretch * block.steps,  # the same mean stands in for all of them
            outside_variance=inside_variance * stretch * block.steps,
        )
        for block in unwatched
    ]


def _mean_per_step(blocks: Sequence[Block], name: str) -> float | None:
    amounts = [getattr(block, name) for block in blocks]
    return sum(amounts) / sum(block.watched for block in blocks) if amounts and None not in amounts else None


def _inside_s(blocks: Sequence[Block]) -> float | None:
    """Return the seconds of a step from its first forward on, in the mean of the watched ones."""
    outside = _mean_per_step(blocks, "outside_s")
    seconds = sum(block.seconds * block.watched / block.steps for block in blocks)
    return None if outside is None else seconds / sum(block.watched for block in blocks) - outside


def _variance_of_mean(sides: Sequence[Sequence[Block]], mean_of: Callable[[Sequence[Block]], float | None]) -> float:
    """Return the squared relative standard error of a mean per step between looks at some on either side."""
    means = [mean_of(side) for side in sides]
    of_blocks = [mean_of((block,)) for side in sides for block in side]
    known, known_means = ([each for each in found if each is not None] for found in (of_blocks, means))
    centre = fmean(known) if known else 0.0
    if not centre:
        return 0.0
    within = pvariance(known) / len(known)
    between = (known_means[0] - known_means[-1]) ** 2 / 12  # anywhere between the two, each being as likely
    return (within + between) / centre**2


def _per_step(amounts: Sequence[float | None], steps: int) -> float | None:
    known = [amount for amount in amounts if amount is not None]
    return sum(known) / steps if len(known) == len(amounts) and sum(known) > 0 else None


def _relative_error(work: Sequence[_Work], seconds: Sequence[float], blocks: Sequence[Block]) -> float | None:
    """Return the standard error of the throughput's logarithm: by its blocks, and by what was filled in."""
    steps = [float(block.steps) for block in blocks]
    for amounts in ([each.tokens for each in work], [each.samples for each in work]):
        known = [amount for amount in amounts if amount is not None]
        if len(known) == len(amounts) and sum(known) > 0:
            error = relative_error(known, seconds)
            break
    else:
        error = relative_error(steps, seconds)
    filled = math.sqrt(sum(each.variance for each in work)) / sum(steps)
    return None if error is None else math.hypot(error, filled)


def _drift(by_step: Sequence[float]) -> float | None:
    quarter = len(by_step) // 4
    return median(by_step[-quarter:]) / median(by_step[:quarter]) - 1 if len(by_step) >= LEAST_FOR_DRIFT else None


def _has_trend(by_step: Sequence[float]) -> bool:
    """Whether steps get slower, or faster, all along the run, or did so at some moment, for good.

    By the medians of its eighths: the first shows in their order (Kendall's tau), the second where all of them on one
    side of that moment are slower than all on the other.
    """
    edges = [len(by_step) * part // _TREND_BLOCKS for part in range(_TREND_BLOCKS + 1)]
    medians = [median(by_step[begin:end]) for begin, end in pairwise(edges)]
    pairs = [(late > early) - (late < early) for early, late in combinations(medians, 2)]
    splits = ((medians[:place], medians[place:]) for place in range(2, _TREND_BLOCKS - 1))
    return abs(sum(pairs)) >= _TREND * len(pairs) or any(_are_apart(*each) for each in splits)


def _are_apart(one: Sequence[float], other: Sequence[float]) -> bool:
    low, high = sorted((one, other), key=median)
    return max(low) < min(high) * _BETWEEN and median(high) > _SETTLED * median(low)


def _share_outside(blocks: Sequence[Block], work: Sequence[_Work], evaluation: EvaluationKinds) -> float | None:
    outside, seconds, variance = 0.0, 0.0, 0.0
    for block, each in zip(blocks, work, strict=True):
        if each.outside_s is None:
            return None
        outside += each.outside_s - evaluation.seconds(block) - block.checkpoint_s
        seconds += _training_s(block, evaluation)
        variance += each.outside_variance
    if seconds <= 0 or math.sqrt(variance) > _UNSURE * seconds:
        return None
    return min(max(outside / seconds, 0.0), 1.0)
