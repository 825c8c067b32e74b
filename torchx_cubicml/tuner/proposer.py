"""Who says what a tune launches next: the advisor, or, where that is not what is tried, a quick stand-in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, Self

from torchx_cubicml.advisor import DEFAULT_METHOD, ProposalMethod, Study, expected_gain, sensitivity, verdict
from torchx_cubicml.records.workload import matches

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchx_cubicml.advisor import ParameterWorth
    from torchx_cubicml.records.suggestion import Suggestion
    from torchx_cubicml.records.trial import Config, Trial, Workload
    from torchx_cubicml.space import SearchSpace
    from torchx_cubicml.tuner.request import Prepared


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalReport:
    """What is to be said of a winner.

    Args:
        confidence: probability that no measured config is faster by more than a per cent; ``None`` where unknown.
        worths: what each parameter is worth.
    """

    confidence: float | None = None
    worths: tuple[ParameterWorth, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What a tune knows when it asks.

    Args:
        space: bound or not.
        workload: facts.
        current: the user's own config.
        trials: of any workload; planned and running ones are under way.
        seed: of all randomness.
    """

    space: SearchSpace
    workload: Workload
    current: Config
    trials: Sequence[Trial]
    seed: int


class Proposer(Protocol):
    """Says what to launch next, and what is best: the advisor, or a quick stand-in."""

    def suggest(self, snapshot: Snapshot) -> list[Suggestion]:
        """Return what to launch next, the most telling first."""

    def best_known(self, snapshot: Snapshot) -> Suggestion | None:
        """Return the best config surely faster than the own, else that; ``None`` where nothing was measured."""

    def expected_gain(self, snapshot: Snapshot) -> float | None:
        """Return by which share another launch is expected to raise the best; ``None`` where that is not known."""

    def rivals(self, snapshot: Snapshot, winner: Config) -> list[Suggestion]:
        """Return measured configs that may well be faster than ``winner``, the likeliest first."""

    def account(self, snapshot: Snapshot, winner: Config) -> FinalReport:
        """Return what is to be said of ``winner`` at the end."""


@dataclass(slots=True, kw_only=True)
class StudyProposer:
    """See ``Proposer``. Questions that follow each other on the same trials share what was learned for the first.

    Args:
        predictor: name of the predictor.
        method: how launches are chosen.
    """

    predictor: str
    method: ProposalMethod = DEFAULT_METHOD
    _asked: Snapshot | None = None
    _study: Study | None = None

    @classmethod
    def serving(cls, prepared: Prepared) -> Self:
        """Return the advisor that a tune asks."""
        return cls(predictor=prepared.predictor, method=prepared.request.method)

    def suggest(self, snapshot: Snapshot) -> list[Suggestion]:
        """See ``Proposer``."""
        return self._studied(snapshot).suggest(method=self.method)

    def best_known(self, snapshot: Snapshot) -> Suggestion | None:
        """See ``Proposer``."""
        if not any(trial.measurement is not None and matches(trial, snapshot.workload) for trial in snapshot.trials):
            return None  # without the time that learning takes
        return self._studied(snapshot).best_known()

    def expected_gain(self, snapshot: Snapshot) -> float | None:
        """See ``Proposer``."""
        return expected_gain(self._studied(snapshot), method=self.method)

    def rivals(self, snapshot: Snapshot, winner: Config) -> list[Suggestion]:
        """See ``Proposer``."""
        found = verdict(self._studied(snapshot), winner=winner)
        return list(found.rivals) if found is not None else []

    def account(self, snapshot: Snapshot, winner: Config) -> FinalReport:
        """See ``Proposer``."""
        study = self._studied(snapshot)
        found = verdict(study, winner=winner)
        return FinalReport(
            confidence=found.confidence if found is not None else None, worths=sensitivity(study, winner=winner)
        )

    def _studied(self, snapshot: Snapshot) -> Study:
        asked = self._asked
        if self._study is None or asked is None or asked.trials is not snapshot.trials or asked.seed != snapshot.seed:
            self._study = Study.of(
                snapshot.space,
                workload=snapshot.workload,
                current=snapshot.current,
                trials=snapshot.trials,
                seed=snapshot.seed,
                predictor=self.predictor,
            )
            self._asked = snapshot
        return self._study
