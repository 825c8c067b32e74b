"""Steady-state throughput from step durations: warm-up, mean, drift and standard error; pure functions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from itertools import combinations, groupby, pairwise, takewhile
from statistics import fmean, median, pvariance
from typing import TYPE_CHECKING

from torchx_cubicml.recorder.steps.rate_error import relative_error
from torchx_cubicml.recorder.steps.stalls import periodic_mean_s

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from torchx_cubicml.recorder.steps.blocks import Block

LEAST_WARMUP = 2  # minimum of durations left out: caches, allocators and clocks settle
LEAST_FOR_DRIFT = 16  # minimum of durations: with fewer, a change over time may be chance
LEAST_STEADY = 3  # minimum of durations for a result
_MOST_WARMUP = 0.2  # maximum share of the steps left out, in a run of thirty or more
_SHORT_RUN_WARMUP = 5  # maximum of durations left out in a shorter run, of which it is at most a half
_WINDOW = 5
_STEADY_FACTOR = 1.2  # times the steady level: a window at most this slow is steady
_MIN_STEP_S = 1e-9  # lower bound of a step: with clock errors, evaluation may take all of it
_NEIGHBOURS = 8  # watched steps used on either side of unwatched ones
_RECURRENT_SHARE = 0.5  # share of steps preceded by a pause from which on it is part of the training
_TREND_BLOCKS = 8
_MIN_TAU = 0.7  # Kendall's tau of their medians: reached by chance in one run of seventy
_SHIFT_GAP = 0.9  # of the slower level: no median of the faster side comes closer to it
_MIN_DRIFT = 0.05  # smaller drifts count as steady
_MAX_SHARE_ERROR = 0.05  # standard error of a share of time above which it is not reported


@dataclass(frozen=True, slots=True, kw_only=True)
class SteadyState:
    """Steady state of this process: its steps after warm-up.

    Args:
        warmup: number of steps left out.
        warmup_s: seconds of these, without evaluation and saving.
        counted: number of steps used, >= ``LEAST_STEADY``.
        seconds: wall time of the steps used, without evaluation and saving; with the share of recurrent stalls that
            whole periods have.
        evaluation_s: seconds of evaluation among them, excluded from ``seconds``.
        checkpoint_s: seconds of saving checkpoints, likewise.
        samples_per_step: mean over the steps of this process; ``None`` where unknown for a watched step.
        tokens_per_step: likewise.
        step_time_s: quantiles 0.1, 0.5 and 0.9 of the seconds per step.
        relative_error: of the throughput, see ``Measurement``.
        drift: relative slowdown of the last quarter of the steps against the first, by medians; ``None`` for fewer than
            ``LEAST_FOR_DRIFT`` steps.
        share_outside: share of the time before the first forward of a step; ``None`` where unknown.
        is_steady: whether the warm-up ended within its bound and no trend followed.
    """

    warmup: int
    warmup_s: float
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
        """Steps per second, evaluation and saving excluded."""
        return self.counted / self.seconds

    @property
    def steps_per_second_overall(self) -> float:
        """Steps per second, evaluation and saving included."""
        return self.counted / (self.seconds + self.evaluation_s + self.checkpoint_s)

    @property
    def samples_per_second(self) -> float | None:
        """Samples per second of this process, evaluation and saving excluded."""
        return None if self.samples_per_step is None else self.samples_per_step * self.steps_per_second

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens per second of this process, evaluation and saving excluded."""
        return None if self.tokens_per_step is None else self.tokens_per_step * self.steps_per_second


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """Work of one block's steps, imputed where they were not watched.

    Args:
        samples: samples of this process; ``None`` where unknown.
        tokens: likewise.
        outside_s: seconds before first forwards, evaluation and saving included; ``None`` where unknown.
        variance: squared standard error of the imputed work, relative to the work of one step.
        outside_variance: squared standard error of ``outside_s``, in seconds squared.
    """

    samples: float | None
    tokens: float | None
    outside_s: float | None
    variance: float = 0.0
    outside_variance: float = 0.0


def steady_state(blocks: Sequence[Block], *, singly: Sequence[Block] = ()) -> SteadyState | None:
    """Return the steady state of a run; ``None`` while there are too few steps.

    Args:
        blocks: all steps of the run, in order, without the first, whose start is unknown.
        singly: single steps among them, for quantiles, if the blocks hold more than one each.

    >>> from torchx_cubicml.recorder.steps.blocks import Block
    >>> run = [Block(seconds=9.0, samples=8)] * 2 + [Block(seconds=1.0, samples=8), Block(seconds=3.0, samples=8)] * 9
    >>> steady_state(run).samples_per_second, steady_state(run).warmup
    (4.0, 2)
    """
    evaluation = EvaluationKinds.of(blocks)
    seconds = [max(_training_s(block, evaluation), _MIN_STEP_S) for block in blocks]
    by_step = [time / block.steps for time, block in zip(seconds, blocks, strict=True)]
    warmup, has_settled = count_warmup(by_step, compiled=[block.compiled for block in blocks])
    warmup_s = sum(seconds[:warmup])
    all_seconds = seconds
    steady, seconds, by_step = blocks[warmup:], seconds[warmup:], by_step[warmup:]
    if len(steady) < LEAST_STEADY:
        return None
    work = fill_unwatched(blocks)[warmup:]
    counted = sum(block.steps for block in steady)
    whole_s = sum(seconds)
    if all(block.steps == 1 for block in blocks):
        paused = [evaluation.seconds(block) + block.checkpoint_s > 0 for block in blocks]
        mean_s = periodic_mean_s(all_seconds, warmup=warmup, paused=paused)
        whole_s = whole_s if mean_s is None else mean_s * counted
    durations = sorted(_training_s(each, evaluation) for each in singly or steady)
    drift = _drift(by_step)
    has_trend = drift is not None and abs(drift) > _MIN_DRIFT and _has_trend(by_step)
    error = _relative_error(work, seconds, steady)
    return SteadyState(
        warmup=sum(block.steps for block in blocks[:warmup]),
        warmup_s=warmup_s,
        counted=counted,
        seconds=whole_s,
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
    """Kinds of pauses that count as evaluation: those that do not precede most steps.

    A teacher, a target network or a rollout that runs in each step is part of the training.

    Args:
        eval_mode: whether ``EVAL_MODE`` pauses are evaluation.
        no_grad: whether ``NO_GRAD`` pauses are evaluation.
    """

    eval_mode: bool
    no_grad: bool

    @classmethod
    def of(cls, blocks: Sequence[Block]) -> EvaluationKinds:
        """Return the evaluation kinds of a training, from its steps."""
        most = _RECURRENT_SHARE * sum(block.watched for block in blocks)
        return cls(
            eval_mode=sum(block.eval_mode_steps for block in blocks) <= most,
            no_grad=sum(block.no_grad_steps for block in blocks) <= most,
        )

    def seconds(self, block: Block) -> float:
        """Return the seconds of evaluation in a block."""
        return block.eval_mode_s * self.eval_mode + block.no_grad_s * self.no_grad


def count_warmup(seconds: Sequence[float], *, compiled: Sequence[bool] = ()) -> tuple[int, bool]:
    """Return the number of warm-up durations before the steady state, and whether a steady state was found.

    The later half of the run gives the steady level and its spread. The warm-up ends, after any compilation, at the
    first window whose median is within them. So single slow steps (a stall, a checkpoint) neither prolong it nor hide
    its end. In a run of thirty steps or more, at most a fifth of them is left out.

    Args:
        seconds: durations of consecutive steps, without the first of the run, whose start is unknown.
        compiled: for each step, whether a compiler ran in it.

    >>> count_warmup([30.0, 20.0, 9.0, 1.0, 1.1, 1.0, 7.0, 1.0, 1.0, 1.0])
    (3, True)
    """
    n = len(seconds)
    most = min(max(int(_MOST_WARMUP * (n + 1)) - 1, _SHORT_RUN_WARMUP), n // 2)
    if most < LEAST_WARMUP:
        return min(n, LEAST_WARMUP), True
    later = sorted(seconds[n // 2 :])
    level = quantile(later, 0.5)
    settled = max(_STEADY_FACTOR * level, quantile(later, 0.75))
    compilations = (position for position, is_compiled in enumerate(compiled[:most]) if is_compiled)
    for start in range(max([LEAST_WARMUP, *(position + 1 for position in compilations)]), most + 1):
        if seconds[start] <= 2 * level and median(seconds[start : start + _WINDOW]) <= settled:
            return start, True
    return most, False


def quantile(ordered: Sequence[float], q: float) -> float:
    """Return quantile ``q`` of sorted numbers, linearly interpolated between neighbours.

    >>> quantile([1.0, 2.0, 4.0], 0.75)
    3.0
    """
    position = q * (len(ordered) - 1)
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (position - below) * (ordered[above] - ordered[below])


def _training_s(block: Block, evaluation: EvaluationKinds) -> float:
    return block.seconds - evaluation.seconds(block) - block.checkpoint_s


def fill_unwatched(blocks: Sequence[Block]) -> list[_Work]:
    """Return the work of each block; impute that of unwatched steps by the mean of watched steps on both sides."""
    filled: list[_Work] = []
    for is_watched, group in groupby(blocks, key=lambda block: block.watched > 0):
        members = list(group)
        begin, end = len(filled), len(filled) + len(members)
        if is_watched:
            filled += map(_scaled_up, members)
        else:
            sides = blocks[max(begin - _NEIGHBOURS, 0) : begin], blocks[end : end + _NEIGHBOURS]
            near = [_nearest(reversed(sides[0])), _nearest(sides[1])]
            filled += _imputed(members, [side for side in near if side])
    return filled


def _nearest(side: Iterable[Block]) -> list[Block]:
    return list(takewhile(lambda block: block.watched > 0, side))


def _scaled_up(block: Block) -> _Work:
    factor = block.steps / block.watched
    amounts = (block.samples, block.tokens, block.outside_s)
    samples, tokens, outside = (None if amount is None else amount * factor for amount in amounts)
    return _Work(samples=samples, tokens=tokens, outside_s=outside)


def _imputed(unwatched: Sequence[Block], sides: Sequence[Sequence[Block]]) -> list[_Work]:
    """Return the imputed work of unwatched steps, from the watched steps on either side."""
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
            # The time beyond the watched steps' mean from their first forward on is time before the first forward.
            outside_s=None if inside_s is None else block.seconds - inside_s * block.steps,
            variance=variance * stretch * block.steps,  # one mean is imputed for all of them
            outside_variance=inside_variance * stretch * block.steps,
        )
        for block in unwatched
    ]


def _mean_per_step(blocks: Sequence[Block], name: str) -> float | None:
    amounts = [getattr(block, name) for block in blocks]
    return sum(amounts) / sum(block.watched for block in blocks) if amounts and None not in amounts else None


def _inside_s(blocks: Sequence[Block]) -> float | None:
    """Return the mean seconds of a watched step from its first forward on."""
    outside = _mean_per_step(blocks, "outside_s")
    seconds = sum(block.seconds * block.watched / block.steps for block in blocks)
    return None if outside is None else seconds / sum(block.watched for block in blocks) - outside


def _variance_of_mean(sides: Sequence[Sequence[Block]], mean_of: Callable[[Sequence[Block]], float | None]) -> float:
    """Return the squared relative standard error of a mean per step that is imputed between two watched sides."""
    means = [mean_of(side) for side in sides]
    of_blocks = [mean_of((block,)) for side in sides for block in side]
    known, known_means = ([each for each in found if each is not None] for found in (of_blocks, means))
    centre = fmean(known) if known else 0.0
    if not centre:
        return 0.0
    within = pvariance(known) / len(known)
    between = (known_means[0] - known_means[-1]) ** 2 / 12  # variance of a uniform distribution between the two
    return (within + between) / centre**2


def _per_step(amounts: Sequence[float | None], steps: int) -> float | None:
    known = [amount for amount in amounts if amount is not None]
    return sum(known) / steps if len(known) == len(amounts) and sum(known) > 0 else None


def _relative_error(work: Sequence[_Work], seconds: Sequence[float], blocks: Sequence[Block]) -> float | None:
    """Return the standard error of the log throughput, from the blocks and from the imputed work."""
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
    """Return whether steps get steadily slower or faster along the run, or shift at one moment for good.

    Both are tested on the medians of the run's eighths: a trend by their order (Kendall's tau), a shift by a split with
    all medians on one side slower than all on the other.
    """
    edges = [len(by_step) * part // _TREND_BLOCKS for part in range(_TREND_BLOCKS + 1)]
    medians = [median(by_step[begin:end]) for begin, end in pairwise(edges)]
    pairs = [(late > early) - (late < early) for early, late in combinations(medians, 2)]
    splits = ((medians[:position], medians[position:]) for position in range(2, _TREND_BLOCKS - 1))
    return abs(sum(pairs)) >= _MIN_TAU * len(pairs) or any(_are_apart(*each) for each in splits)


def _are_apart(one: Sequence[float], other: Sequence[float]) -> bool:
    low, high = sorted((one, other), key=median)
    return max(low) < min(high) * _SHIFT_GAP and median(high) > _STEADY_FACTOR * median(low)


def _share_outside(blocks: Sequence[Block], work: Sequence[_Work], evaluation: EvaluationKinds) -> float | None:
    outside, seconds, variance = 0.0, 0.0, 0.0
    for block, each in zip(blocks, work, strict=True):
        if each.outside_s is None:
            return None
        outside += each.outside_s - evaluation.seconds(block) - block.checkpoint_s
        seconds += _training_s(block, evaluation)
        variance += each.outside_variance
    if seconds <= 0 or math.sqrt(variance) > _MAX_SHARE_ERROR * seconds:
        return None
    return min(max(outside / seconds, 0.0), 1.0)
