"""Facts of earlier launches beside those of a command; the embedding tables and their plan among them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchx_cubicml.advisor.command_explanation.recorded_facts import differing_arguments, recorded_facts
from torchx_cubicml.launch.command_facts.fact_names import fact_name
from torchx_cubicml.launch.command_facts.stated_settings import Setting
from torchx_cubicml.predictors.features.history import training_row
from torchx_cubicml.records.provenance import Trust
from torchx_cubicml.records.workload import recency

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torchx_cubicml.launch.command_facts.known_facts import CommandFacts
    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.records.values import Value

_TABLES = ("n_embedding_tables", "embedding_rows", "embedding_dims", "embedding_pooling", "layer_n_params", "n_params")
_OF_PLAN = {"embedding_sharding": "embedding_plan", "embedding_ranks": "embedding_ranks"}
"""Observed fact of a table's placement -> the fact that tells it where the command leaves it to the planner."""


def with_recorded_facts(
    known: CommandFacts, trials: Sequence[Trial], *, program: str, arguments: Sequence[str], keys: Sequence[str]
) -> CommandFacts:
    """Return the facts of a command, with those of earlier launches of its program that it does not tell.

    Args:
        known: facts that the command tells.
        trials: recorded launches.
        program: its name, as a workload has it.
        arguments: of the present command.
        keys: of the store's digests.
    """
    facts = recorded_facts(trials, program=program, arguments=arguments, known=known.facts, keys=keys)
    tables = recorded_tables(trials, program=program, arguments=arguments, known=known.facts, keys=keys)
    return known.completed_by({**facts, **tables})


def recorded_tables(
    trials: Iterable[Trial], *, program: str, arguments: Sequence[str], known: Mapping[str, Value], keys: Sequence[str]
) -> dict[str, Setting]:
    """Return the facts of embedding tables that the latest comparable launch recorded; empty without one.

    The tables are those of a launch whose arguments differ in nothing but what is known to leave the model alone, if
    the command does not tell them. The plan is that of a launch with the same tables on as many ranks.

    Args:
        trials: recorded launches.
        program: its name, as a workload has it.
        arguments: of the present command.
        known: facts that the command tells.
        keys: of the store's digests.
    """
    own = [trial for trial in trials if trial.workload.get("program") == program and trial.trust is Trust.OWN]
    found: dict[str, Setting] = {}
    for trial in sorted(own, key=recency, reverse=True):
        row, source = training_row(trial), f"launch {trial.trial_id} of yours"
        if "embedding_rows" not in row:
            continue
        if "embedding_rows" not in known and "embedding_rows" not in found and _is_of_model(trial, arguments, keys):
            found |= {name: Setting(value=row[name], source=source) for name in _TABLES if name in row}
        tables = known.get("embedding_rows", found["embedding_rows"].value if "embedding_rows" in found else None)
        if row["embedding_rows"] == tables and row.get("world_size") == known.get("world_size"):
            plan = {fact: row[name] for name, fact in _OF_PLAN.items() if name in row}
            found |= {fact: Setting(value=value, source=source) for fact, value in plan.items()}
            break
    return found


def _is_of_model(trial: Trial, arguments: Sequence[str], keys: Sequence[str]) -> bool:
    """Return whether each differing argument is one of the batch or the hardware."""
    if trial.arguments is None:
        return False
    names = {fact_name(name) for name in differing_arguments(trial, arguments, keys)}
    return names <= {"micro_batch_size", "global_batch_size", "world_size"}
