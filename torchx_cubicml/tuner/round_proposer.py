"""Proposer of a tune in rounds by one predictor, the paper's recipe (CubicML, arXiv 2409.04585, section 3).

Random launches come first. Then the predictor is fitted, a searcher proposes a round of configs, all of them are
launched, and the predictor is fitted again. The round of each launch is recorded with its prediction, so a resumed tune
finds its place by the trials alone. Each tune counts its own rounds; the predictor learns from all trials.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

from torchx_cubicml.predictors.features.history import config_key
from torchx_cubicml.records.suggestion import promised_round
from torchx_cubicml.tuner.proposer import StudyProposer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchx_cubicml.records.suggestion import Suggestion
    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.records.values import Config
    from torchx_cubicml.tuner.proposer import FinalReport, Snapshot
    from torchx_cubicml.tuner.request import Prepared


@dataclass(slots=True, kw_only=True)
class RoundProposer:
    """Proposer by one predictor, fitted once a round; the winner is judged by the advisor as in any tune.

    Args:
        study: the advisor's proposer.
        per_round: launches of a round, >= 1.
        seed: of the tune.
    """

    study: StudyProposer
    per_round: int
    seed: int = 0
    _key: tuple[int, tuple[str, ...]] | None = None
    _found: tuple[Suggestion, ...] = ()

    @classmethod
    def serving(cls, prepared: Prepared) -> Self:
        """Return the proposer for a checked request."""
        per_round = prepared.request.parallel if prepared.request.rounds else 1
        return cls(study=StudyProposer.serving(prepared), per_round=per_round, seed=prepared.request.seed)

    def suggest(self, snapshot: Snapshot) -> list[Suggestion]:
        """See ``Proposer``: the initial design, then what is left of the present round, then spares."""
        designs = self.study.designs(snapshot)
        if designs:
            return designs
        launched = _launched_by_round(snapshot)
        number = max(launched, default=1)
        if len(launched[number]) >= self.per_round:
            number += 1
        left = self._left_of_round(snapshot, number, launched[number])
        if not left and launched[number] and all(trial.state.ended for trial in launched[number]):
            left = self._left_of_round(snapshot, number + 1, [])  # too few configs were found, or values are set aside
        return left

    def _left_of_round(self, snapshot: Snapshot, number: int, launched: Sequence[Trial]) -> list[Suggestion]:
        before = _before(snapshot, number)
        key = number, tuple(sorted(f"{trial.trial_id} {trial.state}" for trial in before))
        if key != self._key:
            past = replace(snapshot, trials=before, seed=self.seed + number)
            self._found = tuple(self.study.search_by_predictor(past, count=2 * self.per_round, round_number=number))
            self._key = key
        done = {config_key(trial.config) for trial in launched}
        legal = snapshot.space.bind(workload=snapshot.workload, current=snapshot.current)  # values may be set aside
        return [each for each in self._found if config_key(each.config) not in done and each.config in legal]

    def best_known(self, snapshot: Snapshot) -> Suggestion | None:
        """See ``Proposer``."""
        return self.study.best_known(snapshot)

    def expected_gain(self, snapshot: Snapshot) -> float | None:
        """See ``Proposer``."""
        return self.study.expected_gain(snapshot)

    def rivals(self, snapshot: Snapshot, winner: Config) -> list[Suggestion]:
        """See ``Proposer``."""
        return self.study.rivals(snapshot, winner)

    def account(self, snapshot: Snapshot, winner: Config) -> FinalReport:
        """See ``Proposer``."""
        return self.study.account(snapshot, winner)


def _launched_by_round(snapshot: Snapshot) -> defaultdict[int, list[Trial]]:
    launched: defaultdict[int, list[Trial]] = defaultdict(list)
    for trial in snapshot.own:
        number = promised_round(trial.suggestion) if trial.trial_id not in snapshot.known else None
        if number is not None:
            launched[number].append(trial)
    return launched


def _before(snapshot: Snapshot, number: int) -> list[Trial]:
    """Return the trials that a round was proposed from: those that had started before its first launch did."""
    of_round = _launched_by_round(snapshot)[number]
    ids, begin = set(map(id, of_round)), min(filter(None, (trial.started_at for trial in of_round)), default="")
    return [trial for trial in snapshot.trials if id(trial) not in ids and (not begin or trial.started_at < begin)]
