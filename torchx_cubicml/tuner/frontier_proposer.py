"""Proposer of a tune with two objectives: each launch maximises another mixture of them.

The weights come from a fixed sequence by the number of trials, so a resumed tune finds its place. The winner is that of
the first objective, judged as in any tune.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Self

from torchx_cubicml.records.mixture import mixed
from torchx_cubicml.records.workload import is_same_workload
from torchx_cubicml.tuner.proposer import StudyProposer

if TYPE_CHECKING:
    from torchx_cubicml.records.suggestion import Suggestion
    from torchx_cubicml.records.trial import Config
    from torchx_cubicml.tuner.proposer import FinalReport, Snapshot
    from torchx_cubicml.tuner.request import Prepared

WEIGHTS = (0.0, 0.5, 0.25, 0.0, 0.75, 0.125, 0.0, 0.5, 0.375, 1.0)
"""Shares of the second objective: spread, and the first objective alone more often, as its best is handed over.

A tune that begins at both ends finds less of the frontier in its first launches. A tune of the first objective alone
finds as much on simulated models that these weights were not chosen on (``benchmarks/frontier.py``).
"""


@dataclass(slots=True, kw_only=True)
class FrontierProposer:
    """Proposer that searches the frontier of two objectives.

    Args:
        study: proposer of the first objective; it plans the first launches and judges the winner.
        second: the second objective.
    """

    study: StudyProposer
    second: str
    _mixture: StudyProposer = field(init=False)

    def __post_init__(self) -> None:
        self._mixture = replace(self.study)

    @classmethod
    def serving(cls, prepared: Prepared) -> Self:
        """Return the proposer for a checked request."""
        return cls(study=StudyProposer.serving(prepared), second=prepared.space.second_objective)

    def suggest(self, snapshot: Snapshot) -> list[Suggestion]:
        """See ``Proposer``: the initial design, then the best of the mixture whose turn it is."""
        designs = self.study.designs(snapshot)
        weight = WEIGHTS[_own_trials(snapshot) % len(WEIGHTS)]
        if designs or not weight:
            return designs or self.study.suggest(snapshot)
        name = mixed(snapshot.space.objective, self.second, weight)
        found = self._mixture.suggest(replace(snapshot, space=replace(snapshot.space, objective=name)))
        why = f"for the frontier, with a weight of {weight:g} on {self.second}"
        return self.study.explained(snapshot, [(each.config, why) for each in found])

    def best_known(self, snapshot: Snapshot) -> Suggestion | None:
        """See ``Proposer``."""
        return self.study.best_known(snapshot)

    def expected_gain(self, snapshot: Snapshot) -> float | None:
        """Return ``None``: a gain in the first objective alone tells nothing about the frontier."""

    def rivals(self, snapshot: Snapshot, winner: Config) -> list[Suggestion]:
        """See ``Proposer``."""
        return self.study.rivals(snapshot, winner)

    def account(self, snapshot: Snapshot, winner: Config) -> FinalReport:
        """See ``Proposer``."""
        return self.study.account(snapshot, winner)


def _own_trials(snapshot: Snapshot) -> int:
    return sum(is_same_workload(trial, snapshot.workload) for trial in snapshot.trials)
