"""Facts of a command that earlier launches of its program recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchx_cubicml.launch.command_facts.fact_names import COUNTS, FACTS, SIZES, fact_name
from torchx_cubicml.launch.command_facts.stated_settings import Setting
from torchx_cubicml.predictors.features.history import training_row
from torchx_cubicml.records.argument_words import argument_words
from torchx_cubicml.records.arguments import digested_arguments
from torchx_cubicml.records.harmless_settings import is_harmless
from torchx_cubicml.records.provenance import Trust
from torchx_cubicml.records.trial import short_id
from torchx_cubicml.records.workload import is_informative, recency

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.records.values import Value

_OF_JOB = frozenset({"world_size", "nnodes", "nproc_per_node", "global_batch_size", "n_params"})
_FEW = 3  # differing arguments that a source names


def recorded_facts(
    trials: Iterable[Trial], *, program: str, arguments: Sequence[str], known: Mapping[str, Value], keys: Sequence[str]
) -> dict[str, Setting]:
    """Return the facts that the nearest launch recorded: that with the fewest different arguments, then the latest.

    Facts that the command itself tells count more, so a launch that contradicts one of its sizes is left out. A fact of
    a launch with other arguments is assumed, and the sizes of its model are not taken if an argument that no table
    knows to be harmless differs.

    Args:
        trials: recorded launches.
        program: its name, as a workload has it.
        arguments: of the present command.
        known: facts that the command tells.
        keys: of the store's digests.
    """
    near = [
        (differing_arguments(trial, arguments, keys), trial)
        for trial in trials
        if trial.workload.get("program") == program
        and trial.trust is Trust.OWN
        and trial.arguments is not None
        and is_informative(trial)
        and not _contradicts(trial, known)
    ]
    if not near:
        return {}
    near.sort(key=lambda each: recency(each[1]), reverse=True)
    differing, trial = min(near, key=lambda each: len(each[0]))
    row = training_row(trial)
    may_differ = {fact_name(name) for name in differing}
    taken = FACTS - may_differ - _OF_JOB - (SIZES if "" in may_differ else frozenset())
    if not differing and row.get("world_size") == known.get("world_size"):
        taken |= {"n_params"}
    source = f"launch {short_id(trial.trial_id)} of yours"
    if differing:
        source += f", which differs in {', '.join(differing[:_FEW])}{' ...' if len(differing) > _FEW else ''}"
    return {
        fact: Setting(value=value, source=source, is_assumed=bool(differing))
        for fact, value in row.items()
        if fact in taken and not isinstance(value, tuple)
    }


def differing_arguments(trial: Trial, arguments: Sequence[str], keys: Sequence[str]) -> list[str]:
    """Return the arguments, harmless ones left out, in which a launch differs from the present command."""
    there = argument_words(trial.arguments or ())
    tables = [argument_words(digested_arguments(arguments, key)) for key in (*keys, "")]
    here = min(tables, key=lambda table: sum(there.get(name) != value for name, value in table.items()))
    names = [name for name in {**there, **here} if there.get(name) != here.get(name)]
    return [name for name in names if not any(is_harmless(name, table.get(name) or "") for table in (there, here))]


def _contradicts(trial: Trial, known: Mapping[str, Value]) -> bool:
    row = training_row(trial)
    sizes = (SIZES & COUNTS & known.keys() & row.keys()) - {"n_params", "n_positions"}
    return any(row[name] != known[name] for name in sizes)
