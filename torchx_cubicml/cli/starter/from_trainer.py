"""Starter space file for a command of a known trainer, and the rules that the configs of any space file must meet."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from torchx_cubicml.cli.starter.toml_text import listed, one_line, toml, with_heading
from torchx_cubicml.errors import CubicMLError
from torchx_cubicml.launch import read_config, with_rule_facts
from torchx_cubicml.launch.bindings.argv import flags_in
from torchx_cubicml.space.toml import parse_space

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchx_cubicml.launch import Launch
    from torchx_cubicml.records.values import Config, Scalar, Workload
    from torchx_cubicml.space import SearchSpace
    from torchx_cubicml.space.trainers import Trainer
    from torchx_cubicml.space.trainers.base import TrainerFlag


def trainer_text(trainer: Trainer, launch: Launch, *, sections: Sequence[Sequence[str]]) -> tuple[str, list[str]]:
    """Return the starter space file of a trainer's command, and comments on the parameters that it lacks.

    The file is empty where no parameter of the trainer's table fits the command.

    Args:
        trainer: trainer of the command.
        launch: the command.
        sections: lines of each further section.
    """
    head = f"trainer = {json.dumps(trainer.name)}"
    proposed, commented = {}, []
    for name in (name for name, flag in trainer.flags.items() if flag.choices and _is_possible_place(flag, launch)):
        try:
            proposed[name] = _proposal(head, launch, name)
        except CubicMLError as error:
            commented.append(f'# {name} = "auto" # not available: {one_line(str(error), max_length=300)}')
    if not proposed:
        return "", [f"# The parameters of {head} need more than this command states:", *commented] if commented else []
    space, workload, config = _read([head, "[parameters]", *proposed.values()], launch)
    space, kept = with_rule_facts(launch, space), []
    for item in (item for item in space.parameters if item.name in proposed):
        others = (value for value in item.choices if value != config[item.name])
        if any(_is_possible(space, item.name, value, workload, config) for value in others):
            kept.append(proposed[item.name])
        else:
            line = proposed[item.name].partition(" #")[0]
            commented.append(f"# {line} # no other value is legal: see the rules below")
    note = (
        f"# Accumulation ({trainer.accumulation}) is adjusted to keep the global batch, and so the training, the same."
    )
    notes = [note] if "micro_batch_size" in trainer.flags else []
    first = f"{head} # defines the flags and keys of these parameters"
    parameters = [*notes, "[parameters]", *kept, *commented]
    return with_heading(launch.program, [first], [parameters, *sections]), commented


def rules_comment(text: str, launch: Launch) -> str:
    """Return the comment on the rules that exclude configs of a command's space file; empty if there are none.

    Args:
        text: the space file.
        launch: the command.
    """
    try:
        space, workload, config = _read([text], launch)
        bound = with_rule_facts(launch, space).bind(workload=workload, current=config)
    except CubicMLError:
        return ""  # a comment only: the file is written without it
    effective = {effect.text for effect in bound.effects()}
    lines = [f"# {rule.text}" for rule in bound.in_force.rules if rule.text in effective]
    lines += [f"# {rule.text}: set aside, {why}" for rule, why in bound.in_force.set_aside]
    head = '# Every proposed config also meets these rules; ignore_rules = ["NAME"] before all tables ignores one:'
    return "\n".join(["", head, *map(one_line, lines), ""]) if lines else ""


def _read(lines: Sequence[str], launch: Launch) -> tuple[SearchSpace, Workload, Config]:
    space = parse_space("\n".join(lines), where="the command")
    return (space, *read_config(launch, space))


def _is_possible_place(flag: TrainerFlag, launch: Launch) -> bool:
    """Return whether the command may state the value of a flag, in its words or in a file that it names."""
    if not flag.of_launcher:
        return bool(flag.flag) or flag.file in flags_in(launch.script_args)
    return not {flag.flag, flag.file}.isdisjoint(flags_in(launch.launcher_args))


def _is_possible(space: SearchSpace, name: str, value: Scalar, workload: Workload, config: Config) -> bool:
    """Return whether a parameter has a value in some legal config."""
    parameters = (replace(item, choices=(value,)) if item.name == name else item for item in space.parameters)
    with suppress(CubicMLError):
        replace(space, parameters=tuple(parameters)).bind(workload=workload, current=config)
        return True
    return False


def _proposal(head: str, launch: Launch, name: str) -> str:
    """Return the line of the space file that tunes a parameter of the trainer in its first line.

    Raises:
        CubicMLError: the command lacks a fact that the parameter needs.
    """
    space, _, config = _read([head, "[parameters]", f'{name} = "auto"'], launch)
    choices, present = space.parameters[0].choices, config[name]
    present = present[0] if isinstance(present, tuple) else present
    line = f'{name} = "auto" # {listed(choices)}; now {toml(present)}'
    if present not in choices:
        ordered = sorted((*choices, present), key=lambda each: 0 if isinstance(each, str) else each)
        line = f"{name} = [{listed(ordered)}] # now {toml(present)}"
    space, workload, config = _read([head, "[parameters]", line], launch)
    illegal = space.bind(workload=workload, current=config).why_illegal(config)
    if illegal is not None:
        raise CubicMLError(illegal)
    return line
