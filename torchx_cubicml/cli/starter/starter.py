"""Generator of a starter space file from a command, its config files, and the source and help of its program."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from torchx_cubicml.cli.starter.from_keys import hydra_remarks, is_hydra, key_flags, keys_in_files
from torchx_cubicml.cli.starter.from_launches import RecordedLaunches, with_launch_meanings
from torchx_cubicml.cli.starter.from_trainer import rules_comment, trainer_text
from torchx_cubicml.cli.starter.meanings import (
    ScriptFlag,
    is_destination,
    is_offered_destination,
    meaning_of,
)
from torchx_cubicml.cli.starter.offers import hook_lines, log_lines, offer_lines, variable_lines
from torchx_cubicml.cli.starter.outputs import output_variables, saving_call, tune_lines, typed_value, variables_read
from torchx_cubicml.cli.starter.script import described_flags
from torchx_cubicml.cli.starter.toml_text import one_line, parameter_sections, toml, with_heading
from torchx_cubicml.facts.named_places import words_of
from torchx_cubicml.launch.bindings.argv import flags_in
from torchx_cubicml.launch.command_facts.argument_files import with_file_arguments
from torchx_cubicml.launch.command_facts.source_literals import declared_flags, parser_flags
from torchx_cubicml.launch.scheduler import program_environment
from torchx_cubicml.launch.source_files import names_in, source_files
from torchx_cubicml.launch.trainer_of_command import detect_trainer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchx_cubicml.launch import Launch
    from torchx_cubicml.launch.source_files import SourceFile
    from torchx_cubicml.space.trainers import Trainer

_VARIABLES = re.compile(r"default_env|env_var|auto_env")  # parsers that take the value of a flag from a variable


def starter_space(launch: Launch, help_text: str, recorded: RecordedLaunches | None = None) -> str:
    """Return a commented space file, TOML, for a command.

    Args:
        launch: the command.
        help_text: output of the script's ``--help``; may be empty.
        recorded: launches of the same program; where names tell nothing, they may.
    """
    files, recorded = list(source_files(launch)), recorded or RecordedLaunches()
    trees = [file.tree for file in files if file.tree is not None]
    flags = _with_other_sources(_script_flags(launch, help_text, files[0]), launch, files)
    keys, variables = keys_in_files(launch), output_variables(launch)
    words = (*launch.script_args, *launch.env)
    names = frozenset(name for tree in trees for name in names_in(tree))
    uses_wandb = any(re.match(r"wandb\b", name) for name in names) or any("wandb" in word.lower() for word in words)
    tune = partial(tune_lines, uses_wandb=uses_wandb, saving=saving_call(launch))
    trainer = detect_trainer(launch, files[0].text)
    remarks = hydra_remarks(help_text, launch.script_args) if is_hydra(files[0].text) else []
    logged = log_lines(recorded.trials)
    if trainer is not None:
        flags = _as_trainer_spells(flags, trainer)
        variable = variable_lines(launch, recorded, is_needed=False)
        text, remarks = trainer_text(trainer, launch, sections=[variable, logged, tune([*flags, *keys, *variables])])
        if text:
            return text + rules_comment(text, launch)
    flags = _without_repeats([*with_launch_meanings(flags, recorded, trees[:1]), *keys])
    parameters = parameter_sections(flags, launch.world_size)
    is_free = any(line.startswith("choices") and "," in line for lines in parameters for line in lines)
    sections = [
        *parameters,
        variable_lines(launch, recorded, is_needed=not is_free),
        remarks,
        offer_lines(flags),
        hook_lines(trees, names, flags, recorded.trials),
        logged,
        tune([*flags, *variables]),
    ]
    told = "\n".join(chain(*sections))
    others = [flag.name for flag in flags if flag.present is not None and not flag.file and toml(flag.name) not in told]
    not_tuned = [f"# Not tuned: {', '.join(map(one_line, others))}"] if others else []
    text = with_heading(launch.program, [], [*sections, not_tuned])
    return text + rules_comment(text, launch)


def _script_flags(launch: Launch, help_text: str, script: SourceFile) -> list[ScriptFlag]:
    """Return the flags and the ``key=value`` arguments of the command and of its script, no two of one meaning."""
    is_of_hydra = is_hydra(script.text)
    # Without a help the script alone counts: a module beside it may have a parser for itself.
    declared = declared_flags(launch) if help_text or script.tree is None else parser_flags(script.tree)
    described = {} if is_of_hydra else {flag.name: flag for flag in described_flags(help_text, declared)}
    flags = [
        _known_flag(name, launch.script_args, described.get(name))
        for name in dict.fromkeys([*flags_in(launch.script_args), *described])
    ]
    return _without_repeats([*flags, *key_flags(launch.script_args, help_text, is_of_hydra=is_of_hydra)])


def _with_other_sources(flags: Sequence[ScriptFlag], launch: Launch, files: Sequence[SourceFile]) -> list[ScriptFlag]:
    """Return the flags with the defaults that argument files state, and without those that may come from elsewhere."""
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


def _without_repeats(flags: Sequence[ScriptFlag]) -> list[ScriptFlag]:
    """Return the flags and keys, of which only the first of a meaning keeps it; stated ones count before defaults."""
    first: dict[str, ScriptFlag] = {}
    for flag in sorted(flags, key=lambda flag: flag.present is None):
        first.setdefault(flag.meaning, flag)
    return [flag if first[flag.meaning] is flag else replace(flag, meaning="") for flag in flags]


def _known_flag(name: str, args: Sequence[str], described: ScriptFlag | None) -> ScriptFlag:
    """Return a flag as the program describes it, if it does, with its value in a command and its meaning."""
    present = typed_value(name, args)
    flag = described or ScriptFlag(name=name, is_switch=present == "")
    is_offered = present is None and not (flag.is_switch or flag.choices)
    of_switch = "false" if described and flag.default != "True" else None  # it may have a --no- form
    return replace(
        flag,
        meaning=meaning_of(name),
        present=present,
        default=of_switch if flag.is_switch else flag.default,
        destination=is_destination(name, present) or (is_offered and is_offered_destination(name)),
    )


def _as_trainer_spells(flags: list[ScriptFlag], trainer: Trainer) -> list[ScriptFlag]:
    """Return the flags in the trainer's spelling, and its default outputs that are not among them."""
    joined = all(flag.flag.endswith("=") for flag in trainer.flags.values())
    found = [replace(flag, name=f"{flag.name.rstrip('=')}=") for flag in flags] if joined else flags
    known = {flag.name for flag in found}
    return [*found, *(ScriptFlag(name=name, destination=True) for name in trainer.outputs if name not in known)]
