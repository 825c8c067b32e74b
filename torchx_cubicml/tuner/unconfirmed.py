"""Fastest measured config that a tune has not confirmed, and why not: crowded launches, wide errors, few repeats."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from torchx_cubicml.advisor.noise import repeat_noise
from torchx_cubicml.launch.messages import best_word, interval_text, per_cost_text
from torchx_cubicml.predictors.features.history import config_key
from torchx_cubicml.records.config_changes import config_changes
from torchx_cubicml.records.crowding import crowded_share, crowding_text
from torchx_cubicml.tuner.comparison import Comparison, Repeats, compare
from torchx_cubicml.tuner.recorded_comparison import fastest_measured

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    def seen(self) -> str:
        """Sentence on the config and its ratio."""
        found = self.comparison
        changes = ", ".join(config_changes(found.best.config, found.baseline.config))
        ratio = f"{found.gain:.2f}x your config {per_cost_text(found.objective)}".rstrip()
        return f"{best_word(found.objective).capitalize()} seen: {changes}: {ratio}."

    @property
    def why(self) -> str:
        """Sentence on why the ratio is not confirmed."""
        found = self.comparison
        crowded = f"{self.crowded} of {self.launches} launches were crowded"
        crowding = f"{crowded} (at worst, {self.crowding})" if self.crowding else ""
        if found.is_imprecise:
            doubt = interval_text(median((*found.baseline.uncertainties, *found.best.uncertainties)))
            known = f"a launch is known only {doubt if doubt.startswith('within') else f'to {doubt}'}"
            reasons = [f"{known}, as {crowding}" if crowding else known]
        elif lacking := found.launches_lacking:
            more = f"at least {lacking} more launch{'es' if lacking > 1 else ''}"
            reasons = [f"it takes {more} of the two", crowding]
        elif found.claims_gain:
            reasons = ["it was chosen by these same measurements, and no further ones confirmed it", crowding]
        else:
            reasons = ["the difference is within the spread between repeats", crowding]
        if self.unsteady:
            reasons.append(f"the steps of {self.unsteady} of {self.launches} launches were not steady")
        return f"Not confirmed: {'; '.join(filter(None, reasons))}."

    @property
    def advice(self) -> str:
        """Sentence on what to do."""
        when = " when the machine is free" if self.crowding else ""
        return f"Run it again{when}; these launches are kept."


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
        earlier: other trials of the workload. They count if none of the tune is faster, for configs that it did not
            measure: what it measured itself tells more.
        elsewhere: trials of other workloads, for the noise from run to run.
    """
    every = [*trials, *earlier]
    found = _found(own, trials, objective, elsewhere, every=every)
    if found is not None or not earlier:
        return found
    known = {config_key(trial.config) for trial in trials if trial.throughput(objective) is not None}
    known.discard(config_key(own))
    others = [trial for trial in earlier if config_key(trial.config) not in known]
    return _found(own, [*trials, *others], objective, elsewhere, every=every)


def _found(
    own: Config, trials: Sequence[Trial], objective: str, elsewhere: Sequence[Trial], *, every: Sequence[Trial]
) -> Unconfirmed | None:
    """Return the fastest config of ``trials``; launches of ``every`` that are not among them are left out."""
    key = config_key(own)
    measured = [trial for trial in trials if trial.config and trial.throughput(objective) is not None]
    of_own = _of_config(measured, own)
    best = fastest_measured([trial for trial in measured if config_key(trial.config) != key], objective=objective)
    if best is None or not of_own:
        return None
    of_best = _of_config(measured, best.config)
    ran = [trial for trial in every if trial.throughput(objective) is not None]
    sides = [
        Repeats.of(config, counted, objective=objective, left_out=len(_of_config(ran, config)) - len(counted))
        for config, counted in ((own, of_own), (best.config, of_best))
    ]
    noise = repeat_noise(trials, objective=objective, elsewhere=elsewhere)
    comparison = compare(*sides, objective=objective, noise=noise)
    if comparison.gain <= 1.0:
        return None
    both = [*of_own, *of_best]
    most = max(both, key=crowded_share)
    return Unconfirmed(
        comparison=comparison,
        launches=len(both),
        crowded=sum(crowded_share(trial) > 0 for trial in both),
        crowding=crowding_text(most).removeprefix("crowded: "),
        unsteady=sum(trial.measurement is not None and trial.measurement.is_steady is False for trial in both),
    )


def _of_config(trials: Sequence[Trial], config: Config) -> list[Trial]:
    key = config_key(config)
    return [trial for trial in trials if config_key(trial.config) == key]
