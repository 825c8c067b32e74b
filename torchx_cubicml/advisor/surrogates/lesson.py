"""What is learned from, and what for: trials of one workload and of others, as the tables that predictors take."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torchx_cubicml.predictors import DEFAULT_PREDICTOR, PREDICTORS
from torchx_cubicml.predictors.features.history import History

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import numpy as np

    from torchx_cubicml.predictors import Predictor
    from torchx_cubicml.records.trial import Scalar, Trial, Workload

MOST_LEARNED = 1000  # trials that trees learn from: somebody waits, and the nearest say most
FEWEST_ELSEWHERE = 20  # measured trials of other workloads that say how configs compare
FEWEST_OWN = 3  # measurements of a workload with which its own process knows it better than trees over all


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
