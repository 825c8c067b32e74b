"""Measured gain that is not sure: why a launch keeps its arguments although another config measured faster."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from torchx_cubicml.history.passes import comparable, searched
from torchx_cubicml.launch.messages import better_word, per_cost_text
from torchx_cubicml.records.config_changes import config_changes
from torchx_cubicml.records.crowding import crowding_text, mean_launches_beside
from torchx_cubicml.records.workload import value_key
from torchx_cubicml.rewrite.choice import changed_batch

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from torchx_cubicml.history.history import History
    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.records.values import Config
    from torchx_cubicml.space import SearchSpace

_WORTH_SAYING = 1.05  # ratio of throughputs from which a measured config is mentioned
_NAMED = 3  # changed parameters that are named


def unsure_gain(case: History, *, recorded: Sequence[Trial]) -> str:
    """Return the reason for doubt that the fastest measured config beats the user's own; empty if none measured faster.

    Only configs that an ordinary launch may run count, and only if the user's own config was measured, too.

    Args:
        case: input of the decision, whose advice is the user's own config.
        recorded: all trials of the store, which tell what ran beside a launch.
    """
    from torchx_cubicml.advisor.comparison import compared, fastest_measured

    objective, own = case.space.objective, _key(case, case.current)
    trials = _measured_trials(case)
    best = fastest_measured([each for each in trials if _key(case, each.config) != own], objective=objective)
    if best is None:
        return ""
    trials = [replace(each, config=_free(case, each.config)) for each in trials]
    both = _free(case, case.current), _free(case, best.config)
    found = compared(*both, trials, objective=objective, elsewhere=case.others)
    if found is None or found.measured < _WORTH_SAYING:
        return ""
    changes = config_changes(*both[::-1])
    named = [*changes[:_NAMED], *([f"{len(changes) - _NAMED} more changes"] if len(changes) > _NAMED else [])]
    gain = f"{', '.join(named)} measured {found.measured:.2f}x yours {per_cost_text(objective)}".rstrip()
    crowded = _crowding([each for each in trials if each.config in both], recorded)
    doubt = f"{found.doubt}{crowded}; launch both again{' when the machine is free' if crowded else ''}"
    return f"{gain}, not surely {better_word(objective)}: {doubt}"


def _measured_trials(case: History) -> list[Trial]:
    """Return the measured launches of the configs that an ordinary launch may run, and of the user's own."""
    found = searched(case)
    known = comparable(replace(found, trials=found.own))
    bound = known.space.bind(workload=case.workload, current=case.current)
    return [
        each
        for each in known.trials
        if each.throughput(case.space.objective) is not None
        and (_key(case, each.config) == _key(case, case.current) or _may_run(case, bound, each.config))
    ]


def _crowding(trials: Sequence[Trial], recorded: Sequence[Trial]) -> str:
    """Return what ran beside the most crowded of the launches, in brackets; empty if nothing did."""
    beside = mean_launches_beside(recorded)
    launches = {each.trial_id: beside.get(id(each), 0.0) for each in recorded}
    most = max(trials, key=lambda each: each.crowding or 0.0)
    text = crowding_text(most, beside=launches.get(most.trial_id, 0.0))
    return f" ({text})" if text else ""


def _may_run(case: History, bound: SearchSpace, config: Config) -> bool:
    """Return whether a config is legal in the searched space and keeps the global batch size."""
    is_legal = {item.name: config[item.name] for item in bound.parameters if item.name in config} in bound
    return is_legal and not changed_batch(case, config)


def _free(case: History, config: Config) -> Config:
    """Return the values that are not derived."""
    return {item.name: config[item.name] for item in case.space.parameters if not item.derive and item.name in config}


def _key(case: History, config: Config) -> Hashable:
    return tuple((name, value_key(value)) for name, value in _free(case, config).items())
