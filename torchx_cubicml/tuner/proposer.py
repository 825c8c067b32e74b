"""Proposer of the next launch of a tune: the interface, and its implementation by the advisor's ``Study``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, Self

from torchx_cubicml.advisor import DEFAULT_METHOD, ProposalMethod, Study, expected_gain, sensitivity, verdict
from torchx_cubicml.history.history import History

if TYPE_CHECKING:
    from torchx_cubicml.advisor import ParameterSensitivity
    from torchx_cubicml.records.suggestion import Suggestion
    from torchx_cubicml.records.values import Config
    from torchx_cubicml.tuner.request import Prepared


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalReport:
    """Confidence and sensitivity of a winner, reported at the end of a tune.

    Args:
        confidence: probability that no measured config is faster by more than one per cent; ``None`` if unknown.
        sensitivities: sensitivity of the throughput to each parameter.
    """

    confidence: float | None = None
    sensitivities: tuple[ParameterSensitivity, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Snapshot(History):
    """Input of a proposer: the history at one point in time, in which planned and running trials are in flight.

    Args:
        seed: random seed.
        known: ids of the trials from before this tune.
    """

    seed: int
    known: frozenset[str] = frozenset()


class Proposer(Protocol):
    """Proposer of launches, queried by the tune loop: the advisor, or a quick replacement in tests and simulations."""

    def suggest(self, snapshot: Snapshot) -> list[Suggestion]:
        """Return suggestions for the next launch, the most promising first."""

    def best_known(self, snapshot: Snapshot) -> Suggestion | None:
        """Return the incumbent; ``None`` if nothing was measured.

        It is the best config that is surely faster than the user's own, else the own one.
        """

    def expected_gain(self, snapshot: Snapshot) -> float | None:
        """Return the expected improvement of the best by another launch, as a share; ``None`` if unknown."""

    def rivals(self, snapshot: Snapshot, winner: Config) -> list[Suggestion]:
        """Return measured configs that may be faster than ``winner``, the most likely first."""

    def account(self, snapshot: Snapshot, winner: Config) -> FinalReport:
        """Return the final report on ``winner``."""


@dataclass(slots=True, kw_only=True)
class StudyProposer:
    """Proposer by the advisor's ``Study``; consecutive queries on the same trials and seed share one study.

    Args:
        predictor: name of the predictor.
        method: method by which launches are chosen.
    """

    predictor: str
    method: ProposalMethod = DEFAULT_METHOD
    _last: Snapshot | None = None
    _study: Study | None = None

    @classmethod
    def serving(cls, prepared: Prepared) -> Self:
        """Return the proposer for a checked request."""
        return cls(predictor=prepared.predictor, method=prepared.request.method)

    def suggest(self, snapshot: Snapshot) -> list[Suggestion]:
        """See ``Proposer``."""
        return self._study_of(snapshot).suggest(method=self.method)

    def designs(self, snapshot: Snapshot) -> list[Suggestion]:
        """Return the next launch of the initial design; empty when it is complete."""
        return self._study_of(snapshot).designs(count=1, method=self.method)

    def search_by_predictor(self, snapshot: Snapshot, *, count: int, round_number: int) -> list[Suggestion]:
        """Return the configs of a round; see ``Study.search_by_predictor``."""
        return self._study_of(snapshot).search_by_predictor(count=count, method=self.method, round_number=round_number)

    def best_known(self, snapshot: Snapshot) -> Suggestion | None:
        """See ``Proposer``."""
        if not any(trial.measurement is not None for trial in snapshot.own):
            return None  # saves the time of fitting a surrogate
        return self._study_of(snapshot).best_known()

    def expected_gain(self, snapshot: Snapshot) -> float | None:
        """See ``Proposer``."""
        return expected_gain(self._study_of(snapshot), method=self.method)

    def rivals(self, snapshot: Snapshot, winner: Config) -> list[Suggestion]:
        """See ``Proposer``."""
        found = verdict(self._study_of(snapshot), winner=winner)
        return list(found.rivals) if found is not None else []

    def account(self, snapshot: Snapshot, winner: Config) -> FinalReport:
        """See ``Proposer``."""
        study = self._study_of(snapshot)
        found = verdict(study, winner=winner)
        return FinalReport(
            confidence=found.confidence if found is not None else None, sensitivities=sensitivity(study, winner=winner)
        )

    def _study_of(self, snapshot: Snapshot) -> Study:
        last = self._last
        is_same = (
            last is not None
            and last.trials is snapshot.trials
            and last.space is snapshot.space
            and last.seed == snapshot.seed
        )
        if self._study is None or not is_same:
            self._study = Study.fitted(replace(snapshot, predictor=self.predictor), seed=snapshot.seed)
            self._last = snapshot
        return self._study
