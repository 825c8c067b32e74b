"""Who says what a tune launches next: the advisor, or, where that is not what is tried, a quick stand-in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from torchx_cubicml.advisor import Study, expected_gain, sensitivity, verdict
from torchx_cubicml.same_workload import matches

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchx_cubicml.advisor import ParameterWorth
    from torchx_cubicml.space import SearchSpace
    from torchx_cubicml.suggestion import Suggestion
    from torchx_cubicml.trial import Config, Trial, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """What is to be said of a winner.

    Args:
        confidence: probability that no measured config is faster by more than a per cent; ``None`` where unknown.
        worths: what each parameter is worth.
    """

    confidence: float | None = None
    worths: tuple[ParameterWorth, ...] = ()


class Advisor(Protocol):
    """Says what to launch next, and what is best: the advisor, or a quick stand-in."""

    def suggest(
        self, space: SearchSpace, *, workload: Workload, current: Config, trials: Sequence[Trial], seed: int
    ) -> list[Suggestion]:
        """Return what to launch next, the most telling first; planned and running trials are under way."""

    def best_known(
        self, space: SearchSpace, *, workload: Workload, current: Config, trials: Sequence[Trial], seed: int
    ) -> Suggestion | None:
        """Return the best config surely faster than ``current``, else that; ``None`` where nothing was measured."""

    def expected_gain(
        self, space: SearchSpace, *, workload: Workload, current: Config, trials: Sequence[Trial], seed: int
    ) -> float | None:
        """Return by which share another launch is expected to raise the best; ``None`` where that is not known."""

    def rivals(
        self,
        space: SearchSpace,
        *,
        workload: Workload,
        current: Config,
        trials: Sequence[Trial],
        seed: int,
        winner: Config,
    ) -> list[Suggestion]:
        """Return measured configs that may well be faster than ``winner``, the likeliest first."""

    def account(
        self,
        space: SearchSpace,
        *,
        workload: Workload,
        current: Config,
        trials: Sequence[Trial],
        seed: int,
        winner: Config,
    ) -> Account:
        """Return what is to be said of ``winner`` at the end."""


@dataclass(slots=True, kw_only=True)
class StudyingAdvisor:
    """See ``Advisor``. Questions that follow each other on the same trials share what was learned for the first.

    Args:
        predictor: name of the predictor.
    """

    predictor: str
    _trials: Sequence[Trial] | None = None
    _seed: int = 0
    _study: Study | None = None

    def suggest(
        self, space: SearchSpace, *, workload: Workload, current: Config, trials: Sequence[Trial], seed: int
    ) -> list[Suggestion]:
        """See ``Advisor``."""
        return self._studied(space, workload=workload, current=current, trials=trials, seed=seed).suggest()

    def best_known(
        self, space: SearchSpace, *, workload: Workload, current: Config, trials: Sequence[Trial], seed: int
    ) -> Suggestion | None:
        """See ``Advisor``."""
        if not any(trial.measurement is not None and matches(trial, workload) for trial in trials):
            return None  # without the time that learning takes
        return self._studied(space, workload=workload, current=current, trials=trials, seed=seed).best_known()

    def expected_gain(
        self, space: SearchSpace, *, workload: Workload, current: Config, trials: Sequence[Trial], seed: int
    ) -> float | None:
        """See ``Advisor``."""
        return expected_gain(self._studied(space, workload=workload, current=current, trials=trials, seed=seed))

    def rivals(
        self,
        space: SearchSpace,
        *,
        workload: Workload,
        current: Config,
        trials: Sequence[Trial],
        seed: int,
        winner: Config,
    ) -> list[Suggestion]:
        """See ``Advisor``."""
        study = self._studied(space, workload=workload, current=current, trials=trials, seed=seed)
        found = verdict(study, winner=winner)
        return list(found.rivals) if found is not None else []

    def account(
        self,
        space: SearchSpace,
        *,
        workload: Workload,
        current: Config,
        trials: Sequence[Trial],
        seed: int,
        winner: Config,
    ) -> Account:
        """See ``Advisor``."""
        study = self._studied(space, workload=workload, current=current, trials=trials, seed=seed)
        found = verdict(study, winner=winner)
        return Account(
            confidence=found.confidence if found is not None else None, worths=sensitivity(study, winner=winner)
        )

    def _studied(
        self, space: SearchSpace, *, workload: Workload, current: Config, trials: Sequence[Trial], seed: int
    ) -> Study:
        if self._study is None or trials is not self._trials or seed != self._seed:
            self._study = Study.of(
                space, workload=workload, current=current, trials=trials, seed=seed, predictor=self.predictor
            )
            self._trials, self._seed = trials, seed
        return self._study
