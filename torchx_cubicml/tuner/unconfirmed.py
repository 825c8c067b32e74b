"""Fastest measured config that a tune has not confirmed, and why not: crowded launches, wide errors, few repeats."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchx_cubicml.advisor.comparison import Comparison, compared, fastest_measured, least_confirmed
from torchx_cubicml.launch.messages import best_word, per_cost_text
from torchx_cubicml.predictors.features.history import config_key
from torchx_cubicml.predictors.measurement_error import FEWEST_TO_CLAIM
from torchx_cubicml.records.config_changes import config_changes
from torchx_cubicml.records.crowding import crowded_share, crowding_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.records.values import Config


@dataclass(frozen=True, slots=True, kw_only=True)
class Unconfirmed:
    """Fastest measured config against the user's own, without a claim.

    Args:
        comparison: of both, over all their measured launches; the fastest was chosen by these same measurements.
        launches: measured launches of the two configs.
        crowded: number of them that were crowded.
        crowding: what ran beside the most crowded one, in words; empty if none was.
        unsteady: number of them whose steps had not settled.
    """

    comparison: Comparison
    launches: int
    crowded: int = 0
    crowding: str = ""
    unsteady: int = 0

    @property
    def label(self) -> str:
        """Name of the config."""
        return f"{best_word(self.comparison.objective)} seen"

    @property
    def seen(self) -> str:
        """Sentence on the config and its ratio."""
        found = self.comparison
        changes = ", ".join(config_changes(found.best.config, found.baseline.config))
        ratio = f"{found.measured:.2f}x your config {per_cost_text(found.objective)}".rstrip()
        return f"{self.label.capitalize()}: {changes}: {ratio}."

    @property
    def why(self) -> str:
        """Sentence on why the ratio is not confirmed."""
        found = self.comparison
        crowded = f"{self.crowded} of {self.launches} launches were crowded"
        crowding = f"{crowded} (at worst, {self.crowding})" if self.crowding else ""
        chosen = "it was chosen by these same measurements, and no further ones confirmed it"
        reasons = [chosen if found.claims_gain else found.doubt, crowding]
        if self.unsteady:
            reasons.append(f"the steps of {self.unsteady} of {self.launches} launches were not steady")
        return f"Not confirmed: {'; '.join(filter(None, reasons))}."

    @property
    def advice(self) -> str:
        """Sentence on what to do."""
        when = " when the machine is free" if self.crowding else ""
        return f"Run it again{when}; these launches are kept."

    def __str__(self) -> str:
        return f"{self.seen} {self.why} {self.advice}"


def least_gain_text(launch: Trial, repeats: int, *, objective: str) -> str:
    """Return in words the least gain that so many launches of each config confirm, as crowded as one."""
    repeats = max(repeats, FEWEST_TO_CLAIM)
    least = least_confirmed(launch, repeats, objective=objective)
    ratio = f"{least:.2f}" if least < 2.0 else f"{least:,.1f}"
    return f"{repeats} launches of each config, as crowded as this one, are likely to confirm gains above {ratio}x only"


def crowding_forecast(trials: Iterable[Trial], repeats: int, *, objective: str) -> str:
    """Return what launches can confirm if they are as crowded as the latest of ``trials``; empty if that was not."""
    measured = [trial for trial in trials if trial.throughput(objective) is not None]
    latest = max(measured, key=lambda trial: trial.started_at, default=None)
    if latest is None or not crowded_share(latest):
        return ""
    return f"the latest launch was {crowding_text(latest)}; {least_gain_text(latest, repeats, objective=objective)}"


def unconfirmed_of(
    own: Config,
    trials: Sequence[Trial],
    *,
    objective: str,
    earlier: Sequence[Trial] = (),
    elsewhere: Sequence[Trial] = (),
) -> Unconfirmed | None:
    """Return the fastest measured config besides the user's own; ``None`` if none was measured faster than it.

    Args:
        own: the user's own config.
        trials: of one tune.
        objective: name of the throughput.
        earlier: other trials of the workload. A config of theirs counts if none of the tune is faster.
        elsewhere: trials of other workloads, for the noise from run to run.
    """
    every = [*trials, *earlier]
    for candidates in (trials, every):
        others = [trial for trial in candidates if config_key(trial.config) != config_key(own)]
        best = fastest_measured(others, objective=objective)
        if best is None:
            continue
        found = compared(own, best.config, every, objective=objective, elsewhere=elsewhere)
        if found is not None and found.measured > 1.0:
            return _unconfirmed(found, every)
    return None


def _unconfirmed(found: Comparison, trials: Sequence[Trial]) -> Unconfirmed:
    keys = {config_key(found.baseline.config), config_key(found.best.config)}
    both = [
        trial
        for trial in trials
        if trial.config and config_key(trial.config) in keys and trial.throughput(found.objective) is not None
    ]
    return Unconfirmed(
        comparison=found,
        launches=len(both),
        crowded=sum(crowded_share(trial) > 0 for trial in both),
        crowding=crowding_text(max(both, key=crowded_share)).removeprefix("crowded: "),
        unsteady=sum(trial.measurement is not None and trial.measurement.is_steady is False for trial in both),
    )
