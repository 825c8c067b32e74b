"""Facts of a training read from its command: arguments, config files, and defaults in the source; nothing is run."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from torchx_cubicml.launch.command_facts.argument_files import with_file_arguments
from torchx_cubicml.launch.command_facts.fact_names import fact_name, fact_value, known_facts
from torchx_cubicml.launch.command_facts.hydra_files import hydra_files
from torchx_cubicml.launch.command_facts.known_facts import CommandFacts
from torchx_cubicml.launch.command_facts.recommender_settings import (
    OF_RECOMMENDERS,
    RECOMMENDER_ASKED,
    recommender_settings,
)
from torchx_cubicml.launch.command_facts.source_facts import called_names, default_facts, observed_facts
from torchx_cubicml.launch.command_facts.source_literals import is_plain, other_spellings, parser_flags
from torchx_cubicml.launch.command_facts.stated_settings import Setting, StatedSettings
from torchx_cubicml.launch.command_facts.trainer_facts import trainer_facts, with_rules_of
from torchx_cubicml.launch.source_files import source_files
from torchx_cubicml.launch.source_models.counted_models import followed_program
from torchx_cubicml.launch.trainer_of_command import detect_trainer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torchx_cubicml.launch.launch import Launch
    from torchx_cubicml.launch.source_files import SourceFile
    from torchx_cubicml.launch.source_models.counted_models import CountedModel, FollowedProgram
    from torchx_cubicml.records.values import Value
    from torchx_cubicml.space.trainers import Trainer

STATED = "--fact"
_ASKED = (
    *("n_layers", "d_model", "vocab_size", "seq_len", "micro_batch_size", "world_size", "device", "precision"),
    *("gradient_accumulation_steps", "activation_checkpointing", "attention_kernel", "d_ff", "n_heads"),
)
"""Facts of a transformer that count, named where they are unknown."""
_DEGREES = {
    "tp_degree": ("parallelize_module", "ColwiseParallel", "RowwiseParallel", "ColumnParallelLinear"),
    "pp_degree": ("PipelineStage", "pipeline", "Schedule1F1B", "ScheduleGPipe", "PipelineModule"),
    "cp_degree": ("context_parallel",),
}
"""Degree of parallelism -> functions that a program with it calls; without them, one is taken."""
_BATCH = frozenset({"gradient_accumulation_steps", "global_batch_size"})


def facts_of_command(launch: Launch, *, stated: Mapping[str, Value] | None = None, device: str = "") -> CommandFacts:
    """Return the facts of a launch, before it is launched.

    Args:
        launch: the command.
        stated: facts that the user states; they win.
        device: kind of device that the user names; empty for none.

    >>> from torchx_cubicml.launch.launch import Launch
    >>> found = facts_of_command(Launch(program="x.py", script_args=("--n_layer", "4"), world_size=2))
    >>> found.facts["n_layers"], found.sources["n_layers"], "d_model" in found.unknown
    (4, '--n_layer', True)
    """
    files = list(source_files(launch))
    launch, unread = with_file_arguments(launch, files)
    settings = stated_settings(launch, files)
    trainer = detect_trainer(launch, files[0].text if files else "")
    if unread:
        files = []  # no default is sure
    elif not files or files[0].tree is None:
        unread = launch.program
    found = replace(CommandFacts.of(_of_user(stated or {}, device)), unread=unread)
    found = found.completed_by(_of_launch(launch))
    tables = _tables(launch, trainer, settings, files)
    recommender = recommender_settings(settings, files, world_size=launch.world_size)
    if recommender is not None or "embedding_rows" in found.facts:
        return _of_recommender(found.completed_by(recommender or {}), tables)
    not_understood = _not_understood(settings)
    for table in tables:
        found = found.completed_by({fact: each for fact, each in table.items() if fact not in not_understood})
    found = with_rules_of(trainer, found)
    unknown = [fact for fact in _ASKED if fact not in found.facts]
    if found.facts.keys() & _BATCH:
        unknown = [fact for fact in unknown if fact not in _BATCH]
    if _has_several(found) and not found.facts.keys() & {"sharding_strategy", "zero_stage"}:
        unknown.append("sharding_strategy")
    calls = called_names(files)
    unknown += [fact for fact, names in _DEGREES.items() if fact not in found.facts and any(map(calls.get, names))]
    return replace(found, unknown=tuple(unknown))


def stated_settings(launch: Launch, files: Sequence[SourceFile]) -> StatedSettings:
    """Return the settings of a command under the names that its program has for them."""
    trees = [file.tree for file in files if file.tree is not None]
    flags = [flag for tree in trees for flag in parser_flags(tree)]
    short = {typed: long for tree in trees for typed, long in other_spellings(tree).items()}
    return StatedSettings.of(launch).with_defaults(list(hydra_files(files))).with_full_names(flags, short)


def _of_recommender(found: CommandFacts, tables: Sequence[Mapping[str, Setting]]) -> CommandFacts:
    """Return the facts of a recommender; of the facts in ``tables``, those that a recommender has."""
    for table in tables:
        found = found.completed_by({fact: setting for fact, setting in table.items() if fact in OF_RECOMMENDERS})
    return replace(found, unknown=tuple(fact for fact in RECOMMENDER_ASKED if fact not in found.facts))


def _tables(
    launch: Launch, trainer: Trainer | None, settings: StatedSettings, files: Sequence[SourceFile]
) -> list[Mapping[str, Setting]]:
    """Return tables of facts, the strongest first."""
    stated, *others = trainer_facts(trainer, launch, settings, files) if trainer is not None else [{}]
    program = followed_program(files, settings)
    return [
        stated,
        _by_fact(settings.arguments),
        _by_fact(settings.files),
        *others[:-1],
        _followed_defaults(program, files),
        default_facts(files),
        *others[-1:],
        observed_facts(files, settings),
        _counted(program.model),
    ]


def _followed_defaults(program: FollowedProgram, files: Sequence[SourceFile]) -> dict[str, Setting]:
    """Return the facts among the defaults of a program's parser."""
    source = f"default in {files[0].path.name}" if files else ""
    return {
        fact: Setting(value=value, source=source)
        for fact, value in known_facts(program.defaults).items()
        if is_plain(value)
    }


def _counted(found: CountedModel | None) -> dict[str, Setting]:
    if found is None:
        return {}
    source = f"counted in the source of {found.name}"
    if not found.is_whole:
        source += ", which was not followed to its end"
    elif found.asks_for_files:
        source += " with the files that are here"
    return {"n_params": Setting(value=found.n_params, source=source, is_assumed=not found.is_whole)}


def _of_user(stated: Mapping[str, Value], device: str) -> dict[str, Setting]:
    found = {fact: Setting(value=value, source=STATED) for fact, value in stated.items()}
    return {**({"device": Setting(value=device, source="--device")} if device else {}), **found}


def _of_launch(launch: Launch) -> dict[str, Setting]:
    sizes = {"world_size": launch.world_size, "nnodes": launch.nnodes, "nproc_per_node": launch.nproc_per_node}
    return {name: Setting(value=size, source="the launcher") for name, size in sizes.items() if size is not None}


def _by_fact(settings: Mapping[str, Setting]) -> dict[str, Setting]:
    """Return the facts among settings; one that two of them tell differently is left out."""
    found: dict[str, Setting] = {}
    doubtful = set()
    for key, setting in settings.items():
        fact = fact_name(key)
        value = fact_value(fact, setting.value) if fact else None
        if value is None or fact in {"world_size", "nnodes", "nproc_per_node"}:
            continue
        if fact in found and found[fact].value != value:
            doubtful.add(fact)
        found[fact] = replace(setting, value=value)
    return {fact: setting for fact, setting in found.items() if fact not in doubtful}


def _not_understood(settings: StatedSettings) -> set[str]:
    """Return the facts whose flags have values that are not understood: no default of theirs counts."""
    named = [
        (fact_name(key), setting) for key, setting in settings.arguments.items() if setting.source.startswith("--")
    ]
    return {fact for fact, setting in named if fact and fact_value(fact, setting.value) is None}


def _has_several(found: CommandFacts) -> bool:
    world = found.facts.get("world_size")
    return isinstance(world, int) and world > 1
