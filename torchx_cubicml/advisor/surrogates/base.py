"""The surrogate's interface and its training data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, Self, TypeVar, runtime_checkable

import numpy as np

from torchx_cubicml.predictors import DEFAULT_PREDICTOR, PREDICTORS
from torchx_cubicml.predictors.features.history import TrainingTable
from torchx_cubicml.predictors.measurement_error import ErrorModel
from torchx_cubicml.records.objective_units import OBJECTIVES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from torchx_cubicml.predictors import Prediction, Predictor
    from torchx_cubicml.predictors.memory.order import MemoryOrder
    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.records.values import Scalar, Value, Workload


LIKELY_TO_FIT = 0.8  # probability to fit below which a launch under way becomes a fantasy failure
MAX_TRIALS = 1000  # trials that trees are fitted to: users wait, and the nearest are the most informative
MIN_TRANSFER = 20  # measured trials of other workloads required to predict how configs compare
MAX_OWN = 300  # measurements of a workload beyond which trees are as accurate as its own process, and faster
MIN_OWN = 3  # measurements of a workload from which its own process is more accurate than trees over all workloads


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingData:
    """Training data of a surrogate.

    Args:
        all_trials: trials of all workloads.
        own: those among them of the workload itself.
        objective: name of the quantity that is learned; see ``rate_of``.
        observe: see ``training_row``.
        order: of the workload's configs by the memory that they need.
        tuned: parameters that candidates vary -> their choices.
        noise: standard deviation of the logarithm of throughput from run to run; ``None`` before any config was
            measured twice.
        workload: its facts, by which trials are near or far.
        predictor: name of the method fitted to all workloads, in ``PREDICTORS``.
        machine: error model of the measurements.
    """

    all_trials: Sequence[Trial]
    own: Sequence[Trial]
    objective: str
    observe: Mapping[str, str]
    order: MemoryOrder
    tuned: Mapping[str, Sequence[Scalar]]
    noise: float | None
    workload: Workload = field(default_factory=dict)
    predictor: str = DEFAULT_PREDICTOR
    machine: ErrorModel = field(default_factory=ErrorModel.unknown)

    @property
    def is_per_second(self) -> bool:
        """True for a throughput per second: what the step-time formulas tell. They tell nothing of joules."""
        return self.objective in OBJECTIVES

    def fitted(self, history: TrainingTable, *, rng: np.random.Generator) -> Predictor:
        """Return the predictor, fitted on ``history``."""
        return PREDICTORS[self.predictor]().fit(history, rng=rng)

    def history(self, trials: Iterable[Trial]) -> TrainingTable:
        """Return the table of ``trials``."""
        return TrainingTable.from_trials(trials, objective=self.objective, observe=self.observe)

    def own_history(self) -> TrainingTable:
        """Return the table of the workload's own trials, whose columns distinguish all choices."""
        return TrainingTable.from_trials(self.own, objective=self.objective, observe=self.observe, choices=self.tuned)


class FeasibilityModel(Protocol):
    """A classifier of memory fit."""

    def probability(self, features: NDArray[np.float64], rows: Sequence[Mapping[str, Value]]) -> NDArray[np.float64]:
        """Return the probability to fit, ``[n]``."""

    def fantasize_failures(self, features: NDArray[np.float64], rows: Sequence[Mapping[str, Value]]) -> Self:
        """Return the classifier as if ``rows`` had run out of memory."""


ModelT = TypeVar("ModelT", bound=FeasibilityModel)


def with_fantasy_failures(memory: ModelT, features: NDArray[np.float64], rows: Sequence[Mapping[str, Value]]) -> ModelT:
    """Return the classifier as if those of ``rows`` that may well not fit had run out of memory."""
    risky = np.flatnonzero(memory.probability(features, rows) < LIKELY_TO_FIT)
    return memory.fantasize_failures(features[risky], [rows[at] for at in risky.tolist()]) if len(risky) else memory


class Forecaster(Protocol):
    """A predictor of rows, each of workload facts and a config."""

    def forecast(self, rows: Sequence[Mapping[str, Value]]) -> Prediction:
        """Return the prediction of the true throughput of ``rows``, and of their fit."""


class Surrogate(Forecaster, Protocol):
    """A model of the throughput of one workload's configs, fitted to trials (Bayesian optimization's surrogate)."""

    def outliers(self, rows: Sequence[Mapping[str, Value]]) -> NDArray[np.bool_]:
        """Return whether rows are outliers: slowed down by something else in each measurement, ``[n]``."""

    def ensemble(self, *, one: bool) -> list[Surrogate]:
        """Return surrogates of several predictors on the same trials, for search in turn, the most trusted first.

        With ``one``, the list has a single surrogate.
        """

    def fantasize(self, rows: Sequence[Mapping[str, Value]]) -> Self:
        """Return this surrogate with fantasy observations: ``rows`` measured at their predicted means.

        Rows that may well not fit become fantasy failures.
        """

    def optimistic(self) -> Self:
        """Return this surrogate with an optimistic prior mean where data is lacking.

        It is for search alone, never for a claimed gain.
        """

    def sample_function(self, rows: Sequence[Mapping[str, Value]], *, rng: np.random.Generator) -> Forecaster:
        """Return a Thompson sample: a function drawn from the posterior at ``rows``, as a forecaster.

        Its forecast of a row never changes.
        """


@runtime_checkable
class JointSurrogate(Surrogate, Protocol):
    """Surrogate with a joint posterior over configs, conditioned on each measurement of the workload.

    A forecast already includes the measurements of the config itself.
    """

    def sample(
        self, rows: Sequence[Mapping[str, Value]], *, count: int, rng: np.random.Generator
    ) -> NDArray[np.float64]:
        """Return joint posterior samples of the logarithms of true throughput of few ``rows``, ``[count, n]``."""

    def without(self, row: Mapping[str, Value]) -> Prediction:
        """Return the prediction of ``row`` from the measurements of other configs alone (leave-one-out)."""

    def ratios(self, rows: Sequence[Mapping[str, Value]], over: Mapping[str, Value]) -> Prediction:
        """Return the posterior of the ratio of true throughput of ``rows`` to ``over``."""
