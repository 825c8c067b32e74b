"""Passes that make a history of what a store contains, in the order in which each command lists them."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING

from torchx_cubicml.history.hook_refusals import hook_refusals
from torchx_cubicml.history.migration import migrated_trials
from torchx_cubicml.history.objective import measured_objective, uncounted_sizes
from torchx_cubicml.history.same_training import batch_lines, kept_batch, with_fixed_batch
from torchx_cubicml.history.same_work import with_same_work
from torchx_cubicml.records.argument_words import argument_words
from torchx_cubicml.records.trial import Origin
from torchx_cubicml.records.workload import comparable_trials, expire_lost_trials, is_same_program, passed_over, recency

if TYPE_CHECKING:
    from collections.abc import Callable

    from torchx_cubicml.history.history import History
    from torchx_cubicml.records.trial import Trial


def passed(history: History, *passes: Callable[[History], History]) -> History:
    """Return a history after passes, in their order."""
    return reduce(lambda found, step: step(found), passes, history)


def migrated(history: History) -> History:
    """Return the trials in the terms of the space; see ``migration``."""
    return history.noting(passed_over(history.trials, history.workload), trials=migrated_trials(history))


def with_stated_configs(history: History) -> History:
    """Give launches that were recorded without a space file the config that their arguments state.

    The space describes a program if one of its launches has a value of the space, or an argument that it declares. The
    latest launch with a value, as typed if there is one, stands for the program's command.
    """
    names, declared = {item.name for item in history.space.parameters}, history.command.declared

    def has_value(trial: Trial) -> bool:
        return not names.isdisjoint(trial.config)

    def states_value(trial: Trial) -> bool:
        return not declared.isdisjoint(argument_words(trial.arguments or ()))

    described = [trial for trial in history.trials if has_value(trial) or states_value(trial)]
    described.sort(key=lambda trial: (has_value(trial), trial.origin is Origin.USER, recency(trial)), reverse=True)
    commands: list[Trial] = []
    for trial in described:
        if not any(is_same_program(trial, each.workload) for each in commands):
            commands.append(trial)
    for typed in commands:
        found = migrated_trials(replace(history, workload=typed.workload, current=typed.config))
        pairs = zip(history.trials, found, strict=True)
        history = replace(history, trials=[recorded if recorded.config else stated for recorded, stated in pairs])
    return history


def of_same_work(history: History) -> History:
    """Leave out the trials of the workload that did other work than the command; see ``same_work``."""
    known = with_same_work(history)
    return replace(history.noting(*known.lines, trials=known.trials), unseen=known.reason)


def surely_of_same_work(history: History) -> History:
    """Leave out the trials of the workload that may have done other work than the command, too."""
    known = with_same_work(history)
    return history.noting(*known.lines, trials=known.certain)


def of_one_size(history: History) -> History:
    """Leave out the trials of the workload with another value of a parameter of ``uncounted_sizes``."""
    return history.as_typed(uncounted_sizes(history.space, history.own, current=history.current))


def searched(history: History) -> History:
    """Return the history in the space of the configs that the command may run with."""
    return history.holding({*history.held, *batch_lines(history)})


def with_objective(history: History) -> History:
    """Fix the objective: the stated one, or the one that the trials of the searched space were measured in."""
    found, note = measured_objective(searched(history))
    space = replace(history.space, objective=found.objective, is_objective_stated=True)
    return replace(history.noting(note), space=space)


def with_refusals(history: History) -> History:
    """Tell what hooks cannot set in the program, as its launches have shown."""
    return history.noting(*hook_refusals(history.space, history.current, history.own).texts())


def with_kept_batch(history: History) -> History:
    """Find the global batch size that the script keeps."""
    return replace(history, kept=kept_batch(history.own, current=history.current))


def keeping_batch(history: History) -> History:
    """Constrain the space to configs with the global batch size of the command; see ``with_fixed_batch``."""
    facts = {**history.workload, **history.kept}
    return replace(history, space=with_fixed_batch(history.space, workload=facts, current=history.current))


def comparable(history: History) -> History:
    """Keep the trials that compare with the latest one, at the statistic and the prices of the space.

    Lost launches are expired.
    """
    space, workload = history.space, history.workload
    found = expire_lost_trials([trial.at(space.statistic).priced(space.prices) for trial in history.trials], workload)
    kept, notes = comparable_trials(found, workload, any_device=space.chooses_machine)
    return history.noting(*notes, trials=kept)


OF_LAUNCH = (migrated, of_same_work, of_one_size, with_objective, with_refusals, with_kept_batch)
"""Passes of an ordinary launch. Trials that may have done other work stay, as such a launch runs as typed."""
OF_SUGGESTIONS = (migrated, surely_of_same_work, of_one_size, with_refusals)
"""Passes of ``suggest``, whose proposals run whether the command has run or not."""
OF_TUNE = (migrated, surely_of_same_work)
"""Passes of a tune: the first on all trials, others on those from before. It varies sizes that a launch keeps."""
