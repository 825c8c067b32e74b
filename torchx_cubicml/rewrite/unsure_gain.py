"""Measured gain that is not sure: why a launch keeps its arguments although another config measured faster."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from torchx_cubicml.launch.messages import better_word, interval_text, per_cost_text, short
from torchx_cubicml.records.crowding import crowding_text, mean_launches_beside
from torchx_cubicml.records.workload import comparable_trials, value_key
from torchx_cubicml.rewrite.rules import with_equal_frozen_values

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.records.values import Config
    from torchx_cubicml.rewrite.choice import DecisionContext
    from torchx_cubicml.space import SearchSpace

_WORTH_SAYING = 1.05  # ratio of throughputs from which a measured config is mentioned
_SURE = 1.88  # standard deviations of a normal distribution: faster with a probability of 97 %
_NAMED = 3  # changed parameters that are named


def unsure_gain(case: DecisionContext, *, recorded: Sequence[Trial]) -> str:
    """Return the reason for doubt that the fastest measured config beats the user's own; empty if none measured faster.

    Only configs that an ordinary launch may run count, and only if the user's own config was measured, too.

    Args:
        case: input of the decision, whose advice is the user's own config.
        recorded: all trials of the store, which tell what ran beside a launch.
    """
    configs = _measured_configs(case)
    own = configs.pop(_key(case, case.current), None)
    best = max(configs.values(), key=lambda each: each.mean, default=None)
    if own is None or best is None or best.mean < _WORTH_SAYING * own.mean:
        return ""
    objective, ratio = case.space.objective, best.mean / own.mean
    gain = f"{_changes(case, best.trials[0].config)} measured {ratio:.2f}x yours {per_cost_text(objective)}".rstrip()
    return f"{gain}, not surely {better_word(objective)}: {_doubt(own, best, ratio, recorded)}"


@dataclass(frozen=True, slots=True)
class _Measured:
    """Measured launches of one config.

    Args:
        trials: at the statistic of the space file.
        throughputs: of the trials.
        errors: standard deviations of their logarithms, as the runs report them.
    """

    trials: Sequence[Trial]
    throughputs: Sequence[float]
    errors: Sequence[float]

    @property
    def mean(self) -> float:
        """Mean throughput."""
        return fmean(self.throughputs)

    @property
    def error(self) -> float:
        """Standard deviation of the logarithm of all launches together; 0 if unknown."""
        return 0.0 if min(self.errors) == 0.0 else 1.0 / math.sqrt(sum(each**-2 for each in self.errors))


def _measured_configs(case: DecisionContext) -> dict[Hashable, _Measured]:
    """Return the measured launches of each config that an ordinary launch may run, and of the user's own."""
    space, workload, current = case.searched_space(), case.workload, case.current
    bound = space.bind(workload=workload, current=current)
    own = with_equal_frozen_values(case.own_trials(), space, workload=workload, current=current)
    groups: defaultdict[Hashable, list[tuple[Trial, float]]] = defaultdict(list)
    for each in comparable_trials(own, workload, any_device=space.chooses_machine)[0]:
        trial = each.at(case.space.statistic).priced(case.space.prices)
        throughput = trial.throughput(case.space.objective)
        key = _key(case, trial.config)
        if throughput is not None and (key == _key(case, current) or _may_run(case, bound, trial.config)):
            groups[key].append((trial, throughput))
    objective = case.space.objective
    return {
        key: _Measured(
            [trial for trial, _ in found],
            [throughput for _, throughput in found],
            [trial.uncertainty(objective) for trial, _ in found],
        )
        for key, found in groups.items()
    }


def _may_run(case: DecisionContext, bound: SearchSpace, config: Config) -> bool:
    """Return whether a config is legal in the searched space and keeps the global batch size."""
    is_legal = {item.name: config[item.name] for item in bound.parameters if item.name in config} in bound
    return is_legal and not case.changed_batch(config)


def _key(case: DecisionContext, config: Config) -> Hashable:
    free = [item.name for item in case.space.parameters if item.derive is None]
    return tuple((name, value_key(config[name])) for name in free if name in config)


def _changes(case: DecisionContext, config: Config) -> str:
    before = case.current
    changed = [
        f"{item.label or item.name} {short(before[item.name])} -> {short(config[item.name])}"
        for item in case.space.parameters
        if item.derive is None
        and item.name in before
        and item.name in config
        and value_key(config[item.name]) != value_key(before[item.name])
    ]
    more = [f"{len(changed) - _NAMED} more changes"] if len(changed) > _NAMED else []
    return ", ".join([*changed[:_NAMED], *more])


def _doubt(own: _Measured, best: _Measured, ratio: float, recorded: Sequence[Trial]) -> str:
    """Return the cause of the doubt: the error of the launches themselves, or the noise from run to run."""
    if math.log(ratio) >= _SURE * math.hypot(own.error, best.error):
        return f"launches vary from run to run (it ran {_times(best)}, yours {_times(own)}); launch both again"
    side, whose, what = (own, "yours", "") if own.error >= best.error else (best, "it", " that config")
    trial, error = min(zip(side.trials, side.errors, strict=True), key=lambda pair: pair[1])
    beside = mean_launches_beside(recorded)
    launches = {each.trial_id: beside.get(id(each), 0.0) for each in recorded}
    crowded = crowding_text(trial, beside=launches.get(trial.trial_id, 0.0))
    is_unsteady = trial.measurement is not None and trial.measurement.is_steady is False
    why = crowded or ("not steady" if is_unsteady else "")
    width = interval_text(error)
    known = f"{'to ' if width.startswith('±') else ''}{width}{f' ({why})' if why else ''}"
    which = whose if len(side.trials) == 1 else f"the surest of {len(side.trials)} launches of {whose}"
    cure = f"launch{what} again{' when the machine is free' if crowded else ''}"
    return f"{which} is known {known}; {cure}"


def _times(measured: _Measured) -> str:
    return {1: "once"}.get(len(measured.trials), f"{len(measured.trials)} times")
