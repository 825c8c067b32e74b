"""Facts of recorded launches that their commands tell and the recorder could not observe."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from torchx_cubicml.launch.command_facts.command_facts import facts_of_command
from torchx_cubicml.launch.launch import workload_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torchx_cubicml.launch.launch import Launch
    from torchx_cubicml.records.trial import Trial

_MOST = 50  # launches whose commands are read: the latest


def with_command_facts(trials: Iterable[Trial], launch: Launch) -> list[Trial]:
    """Return trials with the facts of their commands beside those that were observed, which win.

    They are the tables of a recommender of plain torch, where the recorder sees but modules; what it observes of other
    trainings is enough. Only launches of the program of ``launch`` are read: of others the source, with its defaults,
    is not at hand. The source counts as unchanged since.

    Args:
        trials: recorded launches, the latest last.
        launch: the command at hand.
    """
    program = workload_of(launch).get("program")
    trials = list(trials)
    if "embedding_rows" not in facts_of_command(launch).facts:
        return trials
    own = [
        trial
        for trial in trials
        if trial.workload.get("program") == program
        and trial.arguments is not None
        and "embedding_rows" not in trial.observed
    ]
    read = {id(trial) for trial in own[-_MOST:]}
    return [_with_facts(trial, launch) if id(trial) in read else trial for trial in trials]


def _with_facts(trial: Trial, launch: Launch) -> Trial:
    size = trial.workload.get("world_size")
    known = facts_of_command(
        replace(
            launch, script_args=trial.arguments or (), world_size=size if isinstance(size, int) else None, device=""
        )
    )
    return replace(trial, observed={**known.facts, **trial.observed})
