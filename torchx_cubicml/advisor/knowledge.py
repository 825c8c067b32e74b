"""What predictors and feasibility together expect of configs: learned from all workloads, or from one workload's own.

Trees over everything ever launched serve a workload that was hardly measured; from a few measurements on a Gaussian
process of its own does, whose mean is what others teach if that makes those measurements likelier.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Protocol, Self

import numpy as np

from torchx_cubicml.advisor.agreement import Agreement
from torchx_cubicml.advisor.elsewhere import Elsewhere, taught_by
from torchx_cubicml.advisor.formulas import calibrated, cover
from torchx_cubicml.advisor.telling import familiar, nearest, telling
from torchx_cubicml.history import History, config_key
from torchx_cubicml.predictors import DEFAULT_PREDICTOR, OPINIONS, PREDICTORS, Feasibility
from torchx_cubicml.predictors.gaussian_process import GaussianProcess, drawn_from
from torchx_cubicml.predictors.memory_wall import MemoryWall
from torchx_cubicml.predictors.usual import USUAL
from torchx_cubicml.vectors import encoded

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from torchx_cubicml.advisor.agreement import Predicting
    from torchx_cubicml.predictors import Predictor
    from torchx_cubicml.trial import Scalar, Trial, Value, Workload

# Measurements of the workload itself with which a Gaussian process knows it better than trees over all workloads.
_FEWEST_OWN, _MOST_OWN = 3, 300
_SURE_TO_FIT = 0.8  # what is less sure is not launched beside its like
_FEWEST_ELSEWHERE = 20  # measurements of other workloads that may say how configs compare here
_MOST_ELSEWHERE = _MOST_ANYWHERE = 1000  # that trees learn from: somebody waits, and the nearest say most


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What is expected of ``n`` configs.

    Args:
        logarithm: of the median throughput of the whole job, ``[n]``; NaN where nothing was measured anywhere.
        spread: standard deviation of the logarithm of the true value, ``[n]``.
        fits: probability to fit in memory, ``[n]``.
    """

    logarithm: NDArray[np.float64]
    spread: NDArray[np.float64]
    fits: NDArray[np.float64]


class Knowledge(Protocol):
    """Expects something of rows: workload facts and a config each."""

    @property
    def measurements_included(self) -> bool:
        """Whether a forecast already weighs what was measured of the very config."""

    def forecast(self, rows: Sequence[Mapping[str, Value]]) -> Forecast:
        """Return what is expected of ``rows``."""

    def opinions(self, *, one: bool) -> list[Knowledge]:
        """Return what several predictors make of the same trials, to search by in turns, the most trusted first.

        Where only ``one`` is asked for, it is that.
        """

    def believing(self, rows: Sequence[Mapping[str, Value]]) -> Self:
        """Return this knowledge as if ``rows`` had been measured at what is expected of them."""

    def hoping(self) -> Self:
        """Return this knowledge with what is usual expected where nothing is known: to search by, never to claim by."""

    def drawn(self, rows: Sequence[Mapping[str, Value]], *, rng: np.random.Generator) -> Knowledge:
        """Return this knowledge as if one function were true that it believes in, drawn as it is at ``rows``."""

    def draws(
        self, rows: Sequence[Mapping[str, Value]], *, count: int, rng: np.random.Generator
    ) -> NDArray[np.float64]:
        """Return logarithms of true values of few ``rows`` drawn together from what is believed, ``[count, n]``."""

    def ratios(
        self, rows: Sequence[Mapping[str, Value]], over: Mapping[str, Value]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return mean and deviation of the logarithm of the true ratio of each of ``rows`` to ``over``, ``[n]``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """What is learned from, and what for.

    Args:
        everything: trials of all workloads.
        own: those among them of the workload itself.
        objective: name of the throughput.
        observe: see ``training_row``.
        compare: see ``Feasibility``.
        tuned: parameters that candidates vary -> their choices.
        noise: standard deviation of the logarithm of one measurement; ``None`` before any config was measured twice.
        usual_noise: the same, as believed then.
        workload: its facts, by which trials are near or far.
        predictor: name of the method that learns from all workloads; the default where there is none of that name.
    """

    everything: Sequence[Trial]
    own: Sequence[Trial]
    objective: str
    observe: Mapping[str, str]
    compare: Sequence[str]
    tuned: Mapping[str, Sequence[Scalar]]
    noise: float | None
    usual_noise: float
    workload: Workload = field(default_factory=dict)
    predictor: str = DEFAULT_PREDICTOR

    def fitted(self, history: History, *, rng: np.random.Generator) -> Predictor:
        """Return the predictor, fitted on ``history``."""
        make = PREDICTORS.get(self.predictor, PREDICTORS[DEFAULT_PREDICTOR])
        return make().fit(history, rng=rng)

    def history(self, trials: Iterable[Trial]) -> History:
        """Return the table of ``trials``."""
        return History.from_trials(trials, objective=self.objective, observe=self.observe)

    def own_history(self) -> History:
        """Return the table of the workload's own trials, whose columns tell all choices apart."""
        return History.from_trials(self.own, objective=self.objective, observe=self.observe, choices=self.tuned)


def learn(lesson: Lesson, *, rng: np.random.Generator) -> Knowledge:
    """Return what the trials teach of one workload's configs."""
    if not _FEWEST_OWN <= sum(trial.measurement is not None for trial in lesson.own) <= _MOST_OWN:
        return Everywhere.of(lesson, rng=rng)
    own = lesson.own_history()
    if int(np.isfinite(own.throughput).sum()) < _FEWEST_OWN:  # measured, in another unit
        return Everywhere.of(lesson, rng=rng)
    known = {id(trial) for trial in lesson.own}
    strange = (trial for trial in lesson.everything if id(trial) not in known and trial.measurement is not None)
    others = lesson.history(nearest(strange, lesson.workload, count=_MOST_ELSEWHERE))
    wall = MemoryWall(compare=lesson.compare, tuned=lesson.tuned).fit(own)
    feasibility: MemoryWall | Feasibility = wall
    crowding = wall.crowding if wall.knows_peaks_ else None
    make = partial(GaussianProcess, tuned=lesson.tuned, noise=lesson.noise, crowding=crowding)
    process = make().fit(own, rng=rng)
    elsewhere = None
    if int(np.isfinite(others.throughput).sum()) >= _FEWEST_ELSEWHERE:
        elsewhere = Elsewhere(others, taught_by(others, lesson.predictor))
    elif cover(lesson.own):
        elsewhere = Elsewhere(own, calibrated(own, rng=rng))
        feasibility = Feasibility(compare=lesson.compare).fit(own, rng=rng)
    if elsewhere is not None:
        scaled = replace(own, throughput=own.throughput / np.exp(elsewhere.logarithms(own.rows)))
        guided = make().fit(scaled, rng=rng)
        process, elsewhere = (guided, elsewhere) if guided.evidence_ > process.evidence_ else (process, None)
    hopeful = None
    if elsewhere is None and USUAL & lesson.tuned.keys():
        hopeful = make(hopeful=True).fit(own, rng=rng)
    return Here(history=own, process=process, wall=feasibility, elsewhere=elsewhere, hopeful=hopeful)


@dataclass(frozen=True, slots=True, kw_only=True)
class Everywhere:
    """Learned from all workloads: a predictor and a classifier of outcomes.

    Args:
        history: the trials learned from.
        predictor: fitted on them.
        feasibility: fitted on them.
        noise: standard deviation of the logarithm of one measurement.
        others: methods that are asked beside the predictor for what to launch.
        agreeing: whether it is searched for by what they agree on, rather than by each in turn.
    """

    history: History
    predictor: Predicting
    feasibility: Feasibility
    noise: float
    others: tuple[str, ...] = OPINIONS[1:]
    agreeing: bool = False

    @classmethod
    def of(cls, lesson: Lesson, *, rng: np.random.Generator) -> Self:
        """Return what all trials teach."""
        known = sum(trial.measurement is not None for trial in lesson.own) >= _FEWEST_OWN
        trials = telling(lesson.everything, lesson.workload, count=_MOST_ANYWHERE)
        history = lesson.history(trials)
        default = lesson.predictor == DEFAULT_PREDICTOR or lesson.predictor not in PREDICTORS
        return cls(
            history=history,
            predictor=lesson.fitted(history, rng=rng),
            feasibility=Feasibility(compare=lesson.compare).fit(history, rng=rng),
            noise=lesson.usual_noise,
            others=() if known else tuple(name for name in OPINIONS if name != (lesson.predictor or DEFAULT_PREDICTOR)),
            agreeing=default and not known and familiar(lesson.workload, trials),
        )

    @property
    def measurements_included(self) -> bool:
        """Trees smooth over many configs, so a config's own measurements still tell more."""
        return False

    def forecast(self, rows: Sequence[Mapping[str, Value]]) -> Forecast:
        """See ``Knowledge``."""
        features = encoded(self.history.columns, rows)
        prediction = self.predictor.predict(features)
        # The predictor's spread is of a measurement; what is sought is the true value behind it.
        spread = np.sqrt(np.maximum(prediction.spread**2 - self.noise**2, (0.3 * prediction.spread) ** 2))
        fits = self.feasibility.probability(features, rows)
        return Forecast(logarithm=np.log(prediction.throughput), spread=spread, fits=fits)

    def opinions(self, *, one: bool) -> list[Knowledge]:
        """Return what the default predictor and the others agree on, or each where they had better not be mixed.

        On facts that no trial had, formulas go on where trees repeat the nearest: there the default is not outvoted.
        """
        if one and not self.agreeing:
            return [self]
        made = [PREDICTORS[name]().fit(self.history, rng=np.random.default_rng(0)) for name in self.others]
        if self.agreeing:
            return [replace(self, predictor=Agreement(first=self.predictor, others=made))]
        return [self, *(replace(self, predictor=predictor) for predictor in made)]

    def believing(self, rows: Sequence[Mapping[str, Value]]) -> Self:
        """Trees learn nothing from a guess of their own."""
        del rows
        return self

    def hoping(self) -> Self:
        """Trees over all workloads know what is usual."""
        return self

    def drawn(self, rows: Sequence[Mapping[str, Value]], *, rng: np.random.Generator) -> Knowledge:
        """Each config is drawn for itself: trees do not say what two configs have in common."""
        del rows
        return Drawn(source=self, seed=int(rng.integers(2**31)))

    def draws(
        self, rows: Sequence[Mapping[str, Value]], *, count: int, rng: np.random.Generator
    ) -> NDArray[np.float64]:
        """See ``Knowledge`` and ``drawn``."""
        forecast = self.forecast(rows)
        return forecast.logarithm + forecast.spread * rng.standard_normal((count, len(rows)))

    def ratios(
        self, rows: Sequence[Mapping[str, Value]], over: Mapping[str, Value]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """See ``Knowledge``."""
        forecast = self.forecast([*rows, over])
        return forecast.logarithm[:-1] - forecast.logarithm[-1], np.hypot(forecast.spread[:-1], forecast.spread[-1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """What ``source`` believes, each config moved by a chance of its own that stays the same."""

    source: Everywhere
    seed: int

    @property
    def measurements_included(self) -> bool:
        """See ``Everywhere``."""
        return self.source.measurements_included

    def forecast(self, rows: Sequence[Mapping[str, Value]]) -> Forecast:
        """See ``Knowledge``."""
        forecast = self.source.forecast(rows)
        seeds = ([self.seed, zlib.crc32(config_key(row).encode())] for row in rows)
        chances = np.array([np.random.default_rng(seed).standard_normal() for seed in seeds], dtype=np.float64)
        return replace(forecast, logarithm=forecast.logarithm + chances * forecast.spread)

    def opinions(self, *, one: bool) -> list[Knowledge]:
        """A function that was drawn is what it is."""
        del one
        return [self]

    def believing(self, rows: Sequence[Mapping[str, Value]]) -> Self:
        """See ``Everywhere``."""
        del rows
        return self

    def hoping(self) -> Self:
        """See ``Everywhere``."""
        return self

    def drawn(self, rows: Sequence[Mapping[str, Value]], *, rng: np.random.Generator) -> Knowledge:
        """Return another draw."""
        return self.source.drawn(rows, rng=rng)

    def draws(
        self, rows: Sequence[Mapping[str, Value]], *, count: int, rng: np.random.Generator
    ) -> NDArray[np.float64]:
        """See ``Everywhere``."""
        return self.source.draws(rows, count=count, rng=rng)

    def ratios(
        self, rows: Sequence[Mapping[str, Value]], over: Mapping[str, Value]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """See ``Everywhere``."""
        return self.source.ratios(rows, over)


@dataclass(frozen=True, slots=True, kw_only=True)
class Here:
    """Learned from the workload's own trials: a Gaussian process and its memory wall."""

    history: History
    process: GaussianProcess
    wall: MemoryWall | Feasibility
    elsewhere: Elsewhere | None = None
    hopeful: GaussianProcess | None = None

    @property
    def measurements_included(self) -> bool:
        """The process was told each of them."""
        return True

    def forecast(self, rows: Sequence[Mapping[str, Value]]) -> Forecast:
        """See ``Knowledge``."""
        features = encoded(self.history.columns, rows)
        logarithm, spread = self.process.latent(features)
        if self.elsewhere is not None:
            logarithm = logarithm + self.elsewhere.logarithms(rows)
        return Forecast(logarithm=logarithm, spread=spread, fits=self.wall.probability(features, rows))

    def opinions(self, *, one: bool) -> list[Knowledge]:
        """What the workload's own measurements say needs no other."""
        del one
        return [self]

    def believing(self, rows: Sequence[Mapping[str, Value]]) -> Self:
        """See ``Knowledge``: kriging believer; what may well not fit is feared not to, so that others differ."""
        if not rows:
            return self
        features = encoded(self.history.columns, rows)
        risky = features[self.wall.probability(features, rows) < _SURE_TO_FIT]
        wall = self.wall.fearing(risky) if isinstance(self.wall, MemoryWall) and len(risky) else self.wall
        return replace(self, process=self.process.believing(features), wall=wall)

    def hoping(self) -> Self:
        """See ``Knowledge``: larger micro batches waste less, and memory buys speed."""
        return self if self.hopeful is None else replace(self, process=self.hopeful, hopeful=None)

    def drawn(self, rows: Sequence[Mapping[str, Value]], *, rng: np.random.Generator) -> Knowledge:
        """See ``Knowledge``."""
        return replace(self, process=self.process.drawn(encoded(self.history.columns, rows), rng=rng))

    def draws(
        self, rows: Sequence[Mapping[str, Value]], *, count: int, rng: np.random.Generator
    ) -> NDArray[np.float64]:
        """See ``Knowledge``: of all shares of noise that are likely."""
        features = encoded(self.history.columns, rows)
        known = self.elsewhere.logarithms(rows) if self.elsewhere is not None else np.zeros(len(rows))
        likely = self.process.alternatives(features)
        chances = np.array([chance for chance, _, _ in likely])
        counts = rng.multinomial(count, chances / chances.sum()).tolist()
        drawn = [
            drawn_from(mean, covariance, count=each, rng=rng)
            for each, (_, mean, covariance) in zip(counts, likely, strict=True)
        ]
        return np.vstack(drawn) + known

    def ratios(
        self, rows: Sequence[Mapping[str, Value]], over: Mapping[str, Value]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """See ``Knowledge``: averaged over how much of what measurements differ by may be noise."""
        features = encoded(self.history.columns, [*rows, over])
        known = self.elsewhere.logarithms([*rows, over]) if self.elsewhere is not None else np.zeros(len(rows) + 1)
        first: NDArray[np.float64] = np.zeros(len(rows))
        second: NDArray[np.float64] = np.zeros(len(rows))
        likely = self.process.alternatives(features)
        total = sum(chance for chance, _, _ in likely)
        for chance, mean, covariance in likely:
            gain = (mean + known)[:-1] - (mean + known)[-1]
            variance = np.diag(covariance)[:-1] + covariance[-1, -1] - 2.0 * covariance[:-1, -1]
            first += chance / total * gain
            second += chance / total * (gain**2 + np.maximum(variance, 0.0))
        return first, np.sqrt(np.maximum(second - first**2, 1e-10))
