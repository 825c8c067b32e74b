"""The surrogate's interface and its training data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, Self, runtime_checkable

from torchx_cubicml.predictors import DEFAULT_PREDICTOR, PREDICTORS
from torchx_cubicml.predictors.features.history import History

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from torchx_cubicml.predictors import Predictor
    from torchx_cubicml.records.trial import Scalar, Trial, Value, Workload


MOST_LEARNED = 1000  # trials that trees learn from: somebody waits, and the nearest say most
FEWEST_ELSEWHERE = 20  # measured trials of other workloads that say how configs compare
FEWEST_OWN = 3  # measurements of a workload with which its own process knows it better than trees over all


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingData:
    """What is learned from, and what for.

    Args:
        everything: trials of all workloads.
        own: those among them of the workload itself.
        objective: name of the throughput.
        observe: see ``training_row``.
        compare: see ``CrossWorkloadFeasibility``.
        tuned: parameters that candidates vary -> their choices.
        noise: standard deviation of the logarithm of throughput from run to run; ``None`` before any config was
            measured twice.
        workload: its facts, by which trials are near or far.
        predictor: name of the method that learns from all workloads, in ``PREDICTORS``.
    """

    everything: Sequence[Trial]
    own: Sequence[Trial]
    objective: str
    observe: Mapping[str, str]
    compare: Sequence[str]
    tuned: Mapping[str, Sequence[Scalar]]
    noise: float | None
    workload: Workload = field(default_factory=dict)
    predictor: str = DEFAULT_PREDICTOR

    def fitted(self, history: History, *, rng: np.random.Generator) -> Predictor:
        """Return the predictor, fitted on ``history``."""
        return PREDICTORS[self.predictor]().fit(history, rng=rng)

    def history(self, trials: Iterable[Trial]) -> History:
        """Return the table of ``trials``."""
        return History.from_trials(trials, objective=self.objective, observe=self.observe)

    def own_history(self) -> History:
        """Return the table of the workload's own trials, whose columns tell all choices apart."""
        return History.from_trials(self.own, objective=self.objective, observe=self.observe, choices=self.tuned)


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


class Forecaster(Protocol):
    """Expects something of rows: workload facts and a config each."""

    def forecast(self, rows: Sequence[Mapping[str, Value]]) -> Forecast:
        """Return what is expected of ``rows``."""


class Surrogate(Forecaster, Protocol):
    """What trials teach of the configs of one workload."""

    def outliers(self, rows: Sequence[Mapping[str, Value]]) -> NDArray[np.bool_]:
        """Return whether rows were measured, but each time slowed down by something else than their config, ``[n]``."""

    def ensemble(self, *, one: bool) -> list[Surrogate]:
        """Return what several predictors make of the same trials, to search by in turns, the most trusted first.

        Where only ``one`` is asked for, it is that.
        """

    def fantasize(self, rows: Sequence[Mapping[str, Value]]) -> Self:
        """Return this knowledge as if ``rows`` had been measured at what is expected of them."""

    def optimistic(self) -> Self:
        """Return this knowledge with what is usual expected where nothing is known: to search by, never to claim by."""

    def sample_function(self, rows: Sequence[Mapping[str, Value]], *, rng: np.random.Generator) -> Forecaster:
        """Return who tells one function that this knowledge believes in as if it were true, drawn as it is at ``rows``.

        What it forecasts of a row is always the same.
        """


@runtime_checkable
class JointSurrogate(Surrogate, Protocol):
    """Knowledge that was told each measurement of the workload, and of what its configs have in common.

    A forecast already weighs what was measured of the very config.
    """

    def sample(
        self, rows: Sequence[Mapping[str, Value]], *, count: int, rng: np.random.Generator
    ) -> NDArray[np.float64]:
        """Return logarithms of true values of few ``rows`` drawn together from what is believed, ``[count, n]``."""

    def ratios(
        self, rows: Sequence[Mapping[str, Value]], over: Mapping[str, Value]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return mean and deviation of the logarithm of the true ratio of each of ``rows`` to ``over``, ``[n]``."""
