"""Trainings whose throughput in the long run is known: families of step times and batches, drawn by a generator.

A training is a schedule: how long each step takes, what it processes, and when evaluation and saving come between.
The families are stationary except ``drift``; ``warm_up`` is stationary behind its first steps. What a run cannot show
is not asked of it: stalls come six times at least on the average, a regime or a correlation lasts a sixth of the run at
most. ``rare_stalls`` breaks that rule on purpose and stands apart.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

EVALUATIONS = ("eval", "eval_unwrapped", "no_grad", "no_grad_unwrapped", "inference", "inference_unwrapped")
SAVES = ("save", "distributed_save")
STYLES = ("two_optimizers", "alternating", "gan", "teacher", "ema", "own_target")
_LEAST_EVENTS = 6  # of what makes a run vary, on the average: fewer say nothing of their rate


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """Evaluation or saving between two steps.

    Args:
        after: index of the step before.
        kind: one of ``EVALUATIONS`` or ``SAVES``.
        seconds: of it.
    """

    after: int
    kind: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """One training.

    Args:
        family: that it is drawn from.
        seconds: of each step, evaluation and saving left out.
        loader_s: of these, before the first forward.
        batches: samples of each micro batch, per step, of one process.
        seq_lens: tokens of a sample, per step; empty where samples are features.
        rate: samples, or tokens where there are sequences, per second of one process in the long run.
        last_rate: the same as it is at the end of the run, where it drifts.
        pauses: between the steps.
        processes: of the job.
        style: ``plain`` or one of ``STYLES``.
        source: where steps are counted: ``optimizer``, ``measure``, ``log_rates`` or ``log_times``.
        log_every: steps between two lines.
    """

    family: str
    seconds: Sequence[float]
    loader_s: Sequence[float]
    batches: Sequence[Sequence[int]]
    seq_lens: Sequence[int] = ()
    rate: float
    last_rate: float | None = None
    pauses: Sequence[Pause] = ()
    processes: int = 1
    style: str = "plain"
    source: str = "optimizer"
    log_every: int = 1

    @property
    def unit(self) -> str:
        """Unit of the work: tokens, or samples where there are none."""
        return "tokens" if self.seq_lens else "samples"

    def work(self) -> list[int]:
        """Return what each step processes in one process."""
        samples = [sum(step) for step in self.batches]
        return [count * length for count, length in zip(samples, self.seq_lens or [1] * len(samples), strict=True)]

    def as_json(self) -> str:
        """Return the schedule as the script reads it."""
        return json.dumps(asdict(self))


@dataclass(slots=True, kw_only=True)
class _Steps:
    """Steps as a family draws them; ``mean_s`` and ``mean_work`` are exact expectations of one step."""

    seconds: Floats
    mean_s: float
    stall_s: Floats | float = 0.0
    batches: list[list[int]] = field(default_factory=list)
    mean_work: float = 0.0
    seq_lens: list[int] = field(default_factory=list)


def draw(family: str, rng: np.random.Generator) -> Schedule:
    """Return a training of a family."""
    n, mean_s = _length(rng)
    return FAMILIES[family](rng, n, mean_s)


def _length(rng: np.random.Generator) -> tuple[int, float]:
    n = round(math.exp(rng.uniform(math.log(30), math.log(400))))
    return n, rng.uniform(2.5, 5.5) / n


def _noise(rng: np.random.Generator, n: int, sigma: float | None = None) -> Floats:
    """Return lognormal factors of mean 1."""
    spread = math.exp(rng.uniform(math.log(0.005), math.log(0.3))) if sigma is None else sigma
    return np.exp(rng.normal(0.0, spread, n) - spread**2 / 2)


def _finish(rng: np.random.Generator, family: str, steps: _Steps, **changes: object) -> Schedule:
    """Return the schedule, in which what is left open is drawn."""
    n = len(steps.seconds)
    if not steps.batches:
        size = int(rng.choice([2, 4, 8, 16, 32]))
        steps.batches, steps.mean_work = [[size]] * n, size
    loader_s = rng.uniform(0.0, 0.6) * (steps.seconds - steps.stall_s) + steps.stall_s
    can_be_two = steps.mean_s >= 0.012  # gloo on a busy machine takes some of that
    schedule = Schedule(
        family=family,
        seconds=steps.seconds.tolist(),
        loader_s=loader_s.tolist(),
        batches=steps.batches,
        seq_lens=steps.seq_lens,
        rate=steps.mean_work / steps.mean_s,
        processes=2 if can_be_two and rng.random() < 0.35 else 1,
    )
    return replace(schedule, **changes)


def _even(rng: np.random.Generator, n: int, mean_s: float) -> _Steps:
    return _Steps(seconds=mean_s * _noise(rng, n), mean_s=mean_s)


def _stalling(rng: np.random.Generator, n: int, mean_s: float) -> _Steps:
    period = int(rng.integers(2, min(12, n // _LEAST_EVENTS) + 1))
    stall = math.exp(rng.uniform(math.log(1.5), math.log(25.0)))  # of a step without it
    base_s = mean_s / (1 + stall / period)
    stall_s = np.where(np.arange(n) % period == rng.integers(period), base_s * stall, 0.0)
    return _Steps(seconds=base_s * _noise(rng, n) + stall_s, mean_s=mean_s, stall_s=stall_s)


def _at_random(rng: np.random.Generator, n: int, mean_s: float, probability: float) -> _Steps:
    """Return steps of which some stall: for a fixed time, an exponential one, or a bounded Pareto one."""
    low, alpha, span = math.exp(rng.uniform(math.log(1.0), math.log(15.0))), rng.uniform(1.3, 3.0), 30.0
    kind = rng.integers(3)
    if kind == 0:
        sizes, mean = np.full(n, low), low
    elif kind == 1:
        sizes, mean = rng.exponential(low, n), low
    else:
        sizes = low * (1 - rng.random(n) * (1 - span**-alpha)) ** (-1 / alpha)
        mean = low / (1 - span**-alpha) * alpha / (alpha - 1) * (1 - span ** (1 - alpha))
    base_s = mean_s / (1 + probability * mean)
    stall_s = np.where(rng.random(n) < probability, base_s * sizes, 0.0)
    return _Steps(seconds=base_s * _noise(rng, n, rng.uniform(0.005, 0.1)) + stall_s, mean_s=mean_s, stall_s=stall_s)


def _sizes(rng: np.random.Generator, shape: tuple[int, ...], largest: int = 33) -> tuple[NDArray[np.int64], float]:
    """Return sizes out of a few that are drawn, and their mean."""
    few = rng.integers(1, largest, int(rng.integers(2, 8)))
    return rng.choice(few, shape), float(few.mean())


def _varying(rng: np.random.Generator, n: int, mean_s: float) -> _Steps:
    """Return steps of varying work, to which their time is proportional, or not, or in part."""
    kind, lengths, mean_length = rng.integers(3), np.ones(n, np.int64), 1.0
    if kind == 0:
        samples, mean_samples = _sizes(rng, (n,))
    elif kind == 1:
        samples, mean_samples = np.full(n, int(rng.integers(1, 17))), 0.0
        mean_samples = float(samples[0])
        few = np.clip(rng.lognormal(math.log(48), rng.uniform(0.2, 0.9), 64), 2, 400).astype(np.int64)
        lengths, mean_length = rng.choice(few, n), float(few.mean())
    else:
        size, period = int(rng.integers(4, 33)), int(rng.integers(3, max(n // _LEAST_EVENTS, 4)))
        last = int(rng.integers(1, size))
        samples = np.where(np.arange(n) % period == period - 1, last, size)
        mean_samples = (size * (period - 1) + last) / period
    work, mean_work = samples * lengths, mean_samples * mean_length
    return _Steps(
        seconds=mean_s * _by_work(rng, work / mean_work),
        mean_s=mean_s,
        batches=[[size] for size in samples.tolist()],
        mean_work=mean_work,
        seq_lens=lengths.tolist() if kind == 1 else [],
    )


def _by_work(rng: np.random.Generator, work: Floats) -> Floats:
    """Return times of mean 1 of steps whose work has that mean."""
    share = rng.choice([0.0, 1.0, rng.uniform(0.2, 0.8)])
    return (1 - share + share * work) * _noise(rng, len(work), rng.uniform(0.005, 0.1))


def _accumulating(rng: np.random.Generator, n: int, mean_s: float) -> _Steps:
    count = int(rng.integers(2, 9))
    sizes, mean = _sizes(rng, (n, count), largest=17)
    seconds = mean_s * _by_work(rng, sizes.sum(axis=1) / (mean * count))
    return _Steps(seconds=seconds, mean_s=mean_s, batches=sizes.tolist(), mean_work=mean * count)


def _pauses(rng: np.random.Generator, n: int, kinds: Sequence[str], *, total_s: float) -> list[Pause]:
    """Return pauses of some kinds, each with a period of its own, that take ``total_s`` at most."""
    found = []
    for kind in kinds:
        period = int(rng.integers(max(n // 12, 3), max(n // 3, 5)))
        places = range(int(rng.integers(2, period + 2)), n - 1, period)
        mean_s = rng.uniform(0.2, 1.0) * total_s / len(kinds) / max(len(places), 1)
        found += [Pause(after=place, kind=kind, seconds=mean_s * rng.uniform(0.5, 1.5)) for place in places]
    return sorted(found, key=lambda pause: pause.after)


def _correlated(rng: np.random.Generator, n: int, mean_s: float) -> _Steps:
    if rng.random() < 0.5:
        # Of an AR(1) with coefficient phi, (1 + phi) / (1 - phi) steps say as much as one.
        phi = rng.uniform(0.2, min(0.9, (n / _LEAST_EVENTS - 1) / (n / _LEAST_EVENTS + 1)))
        spread, levels = rng.uniform(0.03, 0.3), np.empty(n)
        levels[0] = rng.normal(0.0, spread)
        shocks = rng.normal(0.0, spread * math.sqrt(1 - phi**2), n)
        for index in range(1, n):
            levels[index] = phi * levels[index - 1] + shocks[index]
        return _Steps(seconds=mean_s * np.exp(levels - spread**2 / 2), mean_s=mean_s)
    ratio, stay_s = rng.uniform(1.2, 3.0), rng.uniform(1.5, n / _LEAST_EVENTS / 2, 2)  # steps in each regime
    share = stay_s[1] / stay_s.sum()  # of the slow one
    slow = np.empty(n, bool)
    slow[0] = rng.random() < share
    for index, chance in enumerate(rng.random(n - 1), start=1):
        slow[index] = slow[index - 1] ^ (chance < 1 / stay_s[int(slow[index - 1])])
    base_s = mean_s / (1 + share * (ratio - 1))
    return _Steps(seconds=base_s * np.where(slow, ratio, 1.0) * _noise(rng, n, 0.03), mean_s=mean_s)


def steady(rng: np.random.Generator, n: int, mean_s: float) -> Schedule:
    """Return steps with independent noise."""
    return _finish(rng, "steady", _even(rng, n, mean_s))


def periodic_stalls(rng: np.random.Generator, n: int, mean_s: float) -> Schedule:
    """Return steps of which every so many wait for the loader."""
    return _finish(rng, "periodic_stalls", _stalling(rng, n, mean_s))


def random_stalls(rng: np.random.Generator, n: int, mean_s: float) -> Schedule:
    """Return steps that wait for the loader with some probability."""
    probability = rng.uniform(min(max(_LEAST_EVENTS / n, 0.03), 0.3), 0.4)
    return _finish(rng, "random_stalls", _at_random(rng, n, mean_s, probability))


def rare_stalls(rng: np.random.Generator, n: int, mean_s: float) -> Schedule:
    """Return likewise with stalls so rare that some runs show one and others none."""
    return _finish(rng, "rare_stalls", _at_random(rng, n, mean_s, rng.uniform(0.5, 3.0) / n))


def batches(rng: np.random.Generator, n: int, mean_s: float) -> Schedule:
    """Return steps of varying batches, of varying sequences, or with a last, partial batch of each epoch."""
    return _finish(rng, "batches", _varying(rng, n, mean_s))


def accumulation(rng: np.random.Generator, n: int, mean_s: float) -> Schedule:
    """Return steps of several micro batches of varying sizes."""
    return _finish(rng, "accumulation", _accumulating(rng, n, max(mean_s, 0.008)))


def pauses(rng: np.random.Generator, n: int, mean_s: float) -> Schedule:
    """Return steps with evaluation, saving or both between them."""
    kinds = [rng.choice(EVALUATIONS), rng.choice(SAVES)]
    chosen = kinds[: int(rng.integers(1, 3))] if rng.random() < 0.7 else kinds[1:]
    between = _pauses(rng, n, [str(kind) for kind in chosen], total_s=3.0)
    return _finish(rng, "pauses", _even(rng, n, mean_s), pauses=between)


def correlated(rng: np.random.Generator, n: int, mean_s: float) -> Schedule:
    """Return steps whose times depend on those before: AR(1), or two regimes."""
    return _finish(rng, "correlated", _correlated(rng, n, mean_s))


def networks(rng: np.random.Generator, n: int, mean_s: float) -> Schedule:
    """Return trainings of several optimizers or networks, some with evaluation."""
    style, longer_s = str(rng.choice(STYLES)), max(mean_s, 0.01)
    drawn = _finish(rng, "networks", _even(rng, n, longer_s), style=style)
    if rng.random() < 0.4:
        drawn = replace(drawn, pauses=_pauses(rng, n, [str(rng.choice(EVALUATIONS))], total_s=1.5))
    return replace(drawn, processes=1) if style == "gan" else drawn


def drift(rng: np.random.Generator, n: int, mean_s: float) -> Schedule:
    """Return steps that become slower or faster all the time."""
    trend = 1 + rng.uniform(0.1, 0.6) * rng.choice([-1.0, 1.0]) * (np.linspace(0.0, 1.0, n) - 0.5)
    drawn = _finish(rng, "drift", _Steps(seconds=mean_s * trend * _noise(rng, n, 0.03), mean_s=mean_s))
    return replace(drawn, last_rate=drawn.rate / float(trend[-1]))


def warm_up(rng: np.random.Generator, n: int, mean_s: float) -> Schedule:
    """Return steps of which the first are slow: compiled, or ever less so."""
    steps = _even(rng, max(n, 40), mean_s)
    count = int(rng.integers(1, len(steps.seconds) // 5))
    shape = np.exp(-float(rng.choice([0.0, 3.0])) * np.arange(count) / count)  # compiled, or caches that fill
    more_s = min(rng.uniform(2.0, 40.0) * mean_s, 1.5 / float(shape.sum()))
    steps.seconds[:count] += more_s * shape
    return _finish(rng, "warm_up", steps)


def short(rng: np.random.Generator, n: int, mean_s: float) -> Schedule:
    """Return thousands of very short steps, some with varying batches, some with targets, some with evaluation."""
    step_s = math.exp(rng.uniform(math.log(0.6e-3), math.log(3e-3)))
    count = round(rng.uniform(2.5, 4.0) / step_s)
    steps = _varying(rng, count, step_s) if rng.random() < 0.4 else _even(rng, count, step_s)
    style = str(rng.choice(["plain", "teacher", "own_target"], p=[0.6, 0.2, 0.2]))
    drawn = _finish(rng, "short", steps, processes=1, style=style)
    if rng.random() < 0.4:
        drawn = replace(drawn, pauses=_pauses(rng, count, [str(rng.choice(EVALUATIONS))], total_s=1.5))
    return drawn


def sources(rng: np.random.Generator, n: int, mean_s: float) -> Schedule:
    """Return trainings that report their steps themselves: by ``measure.step`` or by log lines."""
    source = str(rng.choice(["measure", "log_rates", "log_times"]))
    kinds: list[Callable[[np.random.Generator, int, float], _Steps]] = [_even, _stalling]
    if source != "log_rates":  # rates of unlike batches have no mean without their times
        kinds.append(_varying)
    steps = kinds[int(rng.integers(len(kinds)))](rng, n, mean_s)
    every = int(rng.choice([1, 1, 2, 5])) if source.startswith("log") and n >= 60 else 1
    return _finish(rng, "sources", steps, source=source, log_every=every)


FAMILIES: dict[str, Callable[[np.random.Generator, int, float], Schedule]] = {
    each.__name__: each
    for each in (
        steady, periodic_stalls, random_stalls, batches, accumulation, pauses, correlated, networks, warm_up, short,
        sources, drift, rare_stalls,
    )
}  # fmt: skip
APART = ("drift", "rare_stalls")  # whose long-run rate a run cannot know
