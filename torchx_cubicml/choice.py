"""Which config an ordinary launch runs, and what speaks against it: predictions under the user's rules.

Law 4 of the design: a config is made here of the literals of the user's own space file, whatever a store holds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torchx_cubicml.errors import LaunchError
from torchx_cubicml.guards import (
    batch_may_slip,
    changed_batch,
    comparable,
    expected_device_hours,
    explored_device_hours,
    explores,
    held,
    hold,
    keeping_batch,
    why_not,
)
from torchx_cubicml.launch import same_value
from torchx_cubicml.trial import Origin

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from torchx_cubicml.space import SearchSpace
    from torchx_cubicml.suggestion import Suggestion
    from torchx_cubicml.trial import Config, Trial, Workload

_EXPLORE_AMONG = 8  # suggestions, of which the first that surely fits is tried


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What is known where a launch is decided.

    Args:
        space: as the user wrote it.
        workload: facts of the launch.
        current: the config that the command has.
        trials: of the store.
    """

    space: SearchSpace
    workload: Workload
    current: Config
    trials: Sequence[Trial]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A config for a launch.

    Args:
        config: complete, derived values included.
        suggestion: what is promised for it.
        origin: why it was chosen.
        why_not: why the user's own config runs instead, in words; empty where this one runs.
        note: what is to be told besides; empty where nothing is.
    """

    config: Config
    suggestion: Suggestion
    origin: Origin
    why_not: str = ""
    note: str = ""


def choose(case: Case, *, now: datetime) -> Choice | None:
    """Return the config for the next launch; ``None`` where no launch of its workload was measured yet.

    Args:
        case: what is known.
        now: the time, by which launches under way are charged to the budget of exploring.

    Raises:
        SpaceError: the space cannot be bound to the workload, or what is frozen leaves no legal config.
        LaunchError: the best config known may not run.
    """
    # The advisor's libraries take a second to load: not for a program of which nothing is known.
    program = case.workload["program"]
    if not any(trial.measurement and trial.fact("program") == program for trial in case.trials):
        return None
    space = hold(case.space, case.current, held(case.space))
    trials = comparable(case.trials, space, workload=case.workload, current=case.current)
    narrow = replace(case, trials=trials)
    explored, note = _explored(narrow, space, now)
    best = explored or _best(narrow, space)
    return replace(best, note=note) if best is not None else None


def _best(case: Case, space: SearchSpace) -> Choice | None:
    from torchx_cubicml.advisor import best_known

    def known(space: SearchSpace) -> Suggestion | None:
        return best_known(space, workload=case.workload, current=case.current, trials=case.trials)

    suggestion = known(space)
    if suggestion is None:
        return None
    config = _own_literals(case, space, suggestion.config)
    changed = _changed_batch(case, config)
    if changed:
        space = keeping_batch(space, workload=case.workload, current=case.current)
        suggestion = known(space)
        config = case.current if suggestion is None else _own_literals(case, space, suggestion.config)
    if suggestion is None or (changed and config is case.current):
        raise LaunchError(changed)
    reason = why_not(suggestion, case.space.rewrite)
    same = "nothing known is faster than your own config" if config is case.current else ""
    return Choice(config=config, suggestion=suggestion, origin=Origin.REWRITE, why_not=same or reason)


def _explored(case: Case, space: SearchSpace, now: datetime) -> tuple[Choice | None, str]:
    """Return a config worth learning from where this launch is to try one, and what is to be told of it."""
    from torchx_cubicml.history import matches

    rules = case.space.rewrite
    n_trials = sum(matches(trial, case.workload) for trial in case.trials)
    if not explores(case.space, workload=case.workload, n_trials=n_trials):
        return None, ""
    spent = explored_device_hours(case.trials, program=str(case.workload["program"]), now=now)
    of_budget = f"{spent:.3g} of {rules.explore_budget_device_hours:g} device hours are spent"
    if max(spent, spent + expected_device_hours(case.trials, case.workload)) >= rules.explore_budget_device_hours:
        return None, f"this launch would explore, but its budget has no room for it: {of_budget}"
    if batch_may_slip(case.space, workload=case.workload, current=case.current):
        space = keeping_batch(space, workload=case.workload, current=case.current)
    from torchx_cubicml.advisor import suggest

    found = suggest(
        space, workload=case.workload, current=case.current, trials=case.trials, count=_EXPLORE_AMONG, seed=n_trials
    )
    for suggestion in found:
        config = _own_literals(case, space, suggestion.config)
        fits = suggestion.probability_to_fit >= rules.min_fit
        if fits and config is not case.current and not _changed_batch(case, config):
            note = f"this launch explores, as a share of {rules.explore:g} does: {of_budget}"
            return Choice(config=config, suggestion=suggestion, origin=Origin.EXPLORE), note
    return None, "this launch would explore, but nothing untried clears min_fit"


def _changed_batch(case: Case, config: Config) -> str:
    return changed_batch(case.space, workload=case.workload, current=case.current, config=config)


def _own_literals(case: Case, space: SearchSpace, suggested: Config) -> Config:
    """Return a suggested config made of the literals of the user's own space file and of the user's own command.

    Whatever a store holds, only positions in the user's lists of choices pass; derived values are computed here.
    """
    if all(name in case.current and same_value(value, case.current[name]) for name, value in suggested.items()):
        return case.current
    bound = space.bind(workload=case.workload, current=case.current)
    config = bound.decode(bound.encode(suggested))
    if config is None:
        raise LaunchError("the suggested config is not legal in the space file")
    stays = {name: case.current[name] for name in held(case.space) if name in case.current}
    config = {**{name: value for name, value in stays.items() if name not in config}, **config}
    moved = [name for name, value in stays.items() if not same_value(config[name], value)]
    if moved:
        raise LaunchError(f"the suggested config changes {', '.join(moved)}, which stays as typed")
    return config
