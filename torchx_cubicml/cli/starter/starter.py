"""Generator of a starter space file from a command, its config files, and the source and help of its program."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from torchx_cubicml.cli.starter.checkpoints import saving_call
from torchx_cubicml.cli.starter.embedding_tables import table_lines
from torchx_cubicml.cli.starter.from_files import keys_in_files
from torchx_cubicml.cli.starter.from_help import described_flags
from torchx_cubicml.cli.starter.from_keys import hydra_remarks, is_hydra, is_sweep, listed_keys, typed_keys
from torchx_cubicml.cli.starter.from_launches import RecordedLaunches, with_launch_meanings
from torchx_cubicml.cli.starter.from_trainer import trainer_text
from torchx_cubicml.cli.starter.hook_offers import hook_lines
from torchx_cubicml.cli.starter.meanings import meaning_of
from torchx_cubicml.cli.starter.offers import offer_lines, offered_flags, variable_lines
from torchx_cubicml.cli.starter.outputs import (
    is_destination,
    is_offered_destination,
    is_path_key,
    output_keys,
    output_variables,
    typed_value,
    variables_read,
)
from torchx_cubicml.cli.starter.rules_comment import rules_comment
from torchx_cubicml.cli.starter.script import source_of
from torchx_cubicml.cli.starter.script_flag import ScriptFlag
from torchx_cubicml.cli.starter.toml_text import starter_text
from torchx_cubicml.cli.starter.tune_text import tune_lines
from torchx_cubicml.facts.named_places import words_of
from torchx_cubicml.launch.bindings.argv import flags_in
from torchx_cubicml.launch.bindings.hydra import is_one_value, unquoted
from torchx_cubicml.launch.command_facts.argument_files import with_file_arguments
from torchx_cubicml.launch.command_facts.source_literals import declared_flags, parser_flags
from torchx_cubicml.launch.scheduler import program_environment
from torchx_cubicml.launch.source_files import imports_package, source_files
from torchx_cubicml.launch.trainer_of_command import detect_trainer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchx_cubicml.cli.starter.from_help import FlagHelp
    from torchx_cubicml.launch import Launch
    from torchx_cubicml.space.trainers import Trainer

_VARIABLES = re.compile(r"default_env|env_var|auto_env")  # parsers that take the value of a flag from a variable


def starter_space(launch: Launch, help_text: str, recorded: RecordedLaunches | None = None) -> str:
    """Return a commented space file, TOML, for a command.

    Args:
        launch: the command.
        help_text: output of the script's ``--help``; may be empty.
        recorded: launches of the same program; where names tell nothing, they may.
    """
    source, recorded = source_of(launch)[0], recorded or RecordedLaunches()
    flags = _with_other_sources(_script_flags(launch, help_text, source), launch)
    variables = output_variables(launch)
    words = (*flags_in(launch.script_args), *typed_keys(launch.script_args), *launch.env)
    uses_wandb = any("wandb" in word.lower() for word in words) or imports_package(launch, "wandb")
    saving = saving_call(launch)
    trainer = detect_trainer(launch, source)
    remarks = hydra_remarks(help_text, launch.script_args) if is_hydra(source) else []
    if trainer is not None:
        flags = _as_trainer_spells(flags, trainer)
        outputs = [*(flag for flag in flags if flag.destination), *output_keys(launch), *variables]
        tune = tune_lines(outputs, uses_wandb=uses_wandb, saving=saving)
        variable = variable_lines(launch, recorded, is_needed=False)
        text, remarks = trainer_text(trainer, launch, sections=[variable, tune])
        if text:
            return text + rules_comment(text, launch)
    flags = with_launch_meanings(flags, recorded, source)
    meanings = {flag.meaning for flag in flags if flag.present is not None}
    keys = keys_in_files(launch, lambda *found: _known_key(*found, used_meanings=meanings))
    in_files = {key.meaning for key in keys}  # a config file counts for more than a default
    flags = [replace(flag, meaning="") if flag.present is None and flag.meaning in in_files else flag for flag in flags]
    flags += keys
    outputs = [*(flag for flag in flags if flag.destination), *variables]
    offered = offered_flags(flags)
    text = starter_text(
        flags,
        program=launch.program,
        world_size=launch.world_size,
        offered=offered,
        variable=partial(variable_lines, launch, recorded),
        sections=[
            remarks,
            table_lines(launch, flags, recorded.trials),
            offer_lines(offered, taken={flag.meaning for flag in flags}),
            hook_lines(launch, taken={flag.meaning for flag in flags}, has_n_layers=_counts_layers(flags)),
            tune_lines(outputs, uses_wandb=uses_wandb, saving=saving),
        ],
    )
    return text + rules_comment(text, launch)


def _counts_layers(flags: Sequence[ScriptFlag]) -> bool:
    """Return whether a flag with a value counts the layers, which the file then states as a workload fact."""
    return any(flag.meaning == "n_layers" and (flag.value or "").isdecimal() for flag in flags)


def _script_flags(launch: Launch, help_text: str, source: str) -> list[ScriptFlag]:
    """Return the flags and the ``key=value`` arguments of the command and of its script, no two of one meaning."""
    is_hydra_program = is_hydra(source)
    # Without a help the script alone counts: a module beside it may have a parser for itself.
    tree = None if help_text else next(source_files(launch)).tree
    declared = declared_flags(launch) if tree is None else parser_flags(tree)
    described = {} if is_hydra_program else {flag.name: flag for flag in described_flags(help_text, declared)}
    keys = typed_keys(launch.script_args)
    listed = listed_keys(help_text, launch.script_args) if is_hydra_program else {}
    flags = _hydra_outputs(launch, keys) if is_hydra_program or any(key.startswith("hydra.") for key in keys) else []
    known = {flag.name for flag in flags}
    flags += [
        _known_flag(name, launch.script_args, described.get(name))
        for name in dict.fromkeys([*flags_in(launch.script_args), *described])
    ]
    flags += [_key(name, keys.get(name), listed.get(name)) for name in {**keys, **listed} if name not in known]
    return _without_repeats(flags)


def _with_other_sources(flags: Sequence[ScriptFlag], launch: Launch) -> list[ScriptFlag]:
    """Return the flags with the defaults that argument files state, and without those that may come from elsewhere."""
    files = list(source_files(launch))
    read, unread = with_file_arguments(launch, files)
    variables = {name for file in files if file.tree is not None for name in variables_read(file.tree)}
    if any(_VARIABLES.search(file.text) for file in files):
        variables.update(program_environment(launch))
    words = [words_of(name) for name in variables]
    is_open = bool(unread) or typed_value("--flagfile", launch.script_args) is not None

    def default_of(flag: ScriptFlag) -> str | None:
        own = words_of(flag.name)
        may_differ = is_open or (flag.meaning and any(each[-len(own) :] == own for each in words))
        return typed_value(flag.name, read.script_args) or (None if may_differ else flag.default)

    return [flag if flag.present is not None else replace(flag, default=default_of(flag)) for flag in flags]


def _hydra_outputs(launch: Launch, keys: dict[str, str]) -> list[ScriptFlag]:
    name = "hydra.sweep.dir=" if is_sweep(launch.script_args) else "hydra.run.dir="
    return [ScriptFlag(name=name, present=keys.get(name), destination=True)]


def _without_repeats(flags: Sequence[ScriptFlag]) -> list[ScriptFlag]:
    """Return the flags, of which only the first keeps its meaning, with typed flags before others."""
    first: dict[str, ScriptFlag] = {}
    for flag in sorted(flags, key=lambda flag: flag.present is None):
        first.setdefault(flag.meaning, flag)
    return [flag if first[flag.meaning] is flag else replace(flag, meaning="") for flag in flags]


def _known_flag(name: str, args: Sequence[str], described: FlagHelp | None) -> ScriptFlag:
    present = typed_value(name, args)
    destination = is_destination(name, present)
    if described is None:
        return ScriptFlag(
            name=name, meaning=meaning_of(name), present=present, is_switch=present == "", destination=destination
        )
    offered = present is None and described.takes_value and not described.choices
    of_switch = None if described.default == "True" else "false"  # it may have a --no- form
    return ScriptFlag(
        name=name,
        meaning=meaning_of(name),
        present=present,
        is_switch=not described.takes_value,
        choices=described.choices,
        default=described.default if described.takes_value else of_switch,
        text=described.text,
        destination=destination or (offered and is_offered_destination(name)),
    )


def _key(name: str, present: str | None, default: str | None) -> ScriptFlag:
    """Return a ``key=value`` argument, typed or listed by the help; keys of Hydra itself have no meaning."""
    destination = is_destination(name, present) if present is not None else is_path_key(name, default or "")
    has_value = present is None or is_one_value(present)
    meaning = meaning_of(name) if has_value and not name.startswith("hydra.") else ""
    present = unquoted(present) if present is not None else None
    return ScriptFlag(name=name, meaning=meaning, present=present, default=default, destination=destination)


def _known_key(file: str, key: str, text: str, *, used_meanings: set[str]) -> ScriptFlag | None:
    """Return a key of a config file by its meaning; ``None`` for an unknown or repeated meaning."""
    meaning = meaning_of(key)
    if meaning and meaning not in used_meanings:
        used_meanings.add(meaning)
        return ScriptFlag(name=key, file=file, meaning=meaning, present=text)
    return ScriptFlag(name=key, file=file, present=text, destination=True) if is_path_key(key, text) else None


def _as_trainer_spells(flags: list[ScriptFlag], trainer: Trainer) -> list[ScriptFlag]:
    """Return the flags in the trainer's spelling, and its default outputs that are not among them."""
    joined = all(flag.flag.endswith("=") for flag in trainer.flags.values())
    found = [replace(flag, name=f"{flag.name.rstrip('=')}=") for flag in flags] if joined else flags
    known = {flag.name for flag in found}
    return [*found, *(ScriptFlag(name=name, destination=True) for name in trainer.outputs if name not in known)]
