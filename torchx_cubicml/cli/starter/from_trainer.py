"""Starter space file for a command of a known trainer, from the parameters that the trainer's table proposes."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

from torchx_cubicml.cli.starter.toml_text import one_line, toml, with_heading
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
    proposed, commented = [], []
    for name in (name for name, flag in trainer.flags.items() if flag.choices and _is_possible_place(flag, launch)):
        try:
            proposed.append(_proposal(trainer, launch, name))
        except CubicMLError as error:
            commented.append(f'# {name} = "auto" # not available: {one_line(str(error), max_length=300)}')
    proposed, without_choice = _with_other_values(trainer, launch, proposed)
    commented += without_choice
    if not proposed:
        head = f'# The parameters of trainer = "{trainer.name}" need more than this command states:'
        return "", [head, *commented] if commented else []
    scope = _batch_size_scope(trainer)
    header = [f"# Accumulation is adjusted to keep the global batch, and thus the training, the same ({scope})."]
    header = header if "micro_batch_size" in trainer.flags else []
    parameters = ["[parameters]", *proposed, *commented]
    first = [f"trainer = {json.dumps(trainer.name)} # defines the flags and keys of these parameters"]
    return with_heading(launch.program, first, [header + parameters, *sections]), commented


def _is_possible_place(flag: TrainerFlag, launch: Launch) -> bool:
    """Return whether the command may state the value of a flag, in its words or in a file that it names."""
    if not flag.of_launcher:
        return bool(flag.flag) or flag.file in flags_in(launch.script_args)
    return not {flag.flag, flag.file}.isdisjoint(flags_in(launch.launcher_args))


def _with_other_values(trainer: Trainer, launch: Launch, proposed: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the lines of parameters that have another legal value, and comments on those that have none."""
    if not proposed:
        return [], []
    text = "\n".join([f"trainer = {json.dumps(trainer.name)}", "[parameters]", *proposed])
    space = parse_space(text, where="the command")
    workload, config = read_config(launch, space)
    space = with_rule_facts(launch, space)
    kept, commented = [], []
    for line in proposed:
        name = line.partition(" ")[0]
        others = [value for item in space.parameters if item.name == name for value in item.choices]
        if any(_is_possible(space, name, value, workload, config) for value in others if value != config[name]):
            kept.append(line)
        else:
            commented.append(f"# {line.partition(' #')[0]} # no other value is legal: see the rules below")
    return kept, commented


def _is_possible(space: SearchSpace, name: str, value: Scalar, workload: Workload, config: Config) -> bool:
    """Return whether a parameter has a value in some legal config."""
    parameters = (replace(item, choices=(value,)) if item.name == name else item for item in space.parameters)
    try:
        replace(space, parameters=tuple(parameters)).bind(workload=workload, current=config)
    except CubicMLError:
        return False
    return True


def _proposal(trainer: Trainer, launch: Launch, name: str) -> str:
    """Return the line of the space file that tunes a parameter.

    Raises:
        CubicMLError: the command lacks a fact that the parameter needs.
    """
    head = f"trainer = {json.dumps(trainer.name)}\n[parameters]\n"
    space = parse_space(f'{head}{name} = "auto"\n', where="the command")
    workload, config = read_config(launch, space)
    choices, present = space.parameters[0].choices, config[name]
    if isinstance(present, tuple):
        present = present[0]
    if present in choices:
        line = f'{name} = "auto" # {_listed(choices)}; now {toml(present)}'
    else:
        choices = _sorted((*choices, present))
        line = f"{name} = [{_listed(choices)}] # now {toml(present)}"
    bound = parse_space(f"{head}{line}\n", where="the command").bind(workload=workload, current=config)
    illegal = bound.why_illegal(config)
    if illegal is not None:
        raise CubicMLError(illegal)
    return line


def _sorted(choices: tuple[Scalar, ...]) -> tuple[Scalar, ...]:
    numbers = [choice for choice in choices if isinstance(choice, int | float)]
    return tuple(sorted(numbers)) if len(numbers) == len(choices) else choices


def _listed(choices: Sequence[Scalar]) -> str:
    return ", ".join(map(toml, choices))


def _batch_size_scope(trainer: Trainer) -> str:
    return {
        "per rank": "counted on each rank",
        "whole job": "counted over all ranks",
        "implied": "implied by the global batch size",
    }[trainer.accumulation]
