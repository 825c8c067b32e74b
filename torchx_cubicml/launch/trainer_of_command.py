"""Trainer of a command, by the tables of known trainers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from torchx_cubicml.launch.bindings.argv import flags_in
from torchx_cubicml.space.trainers import TRAINERS

if TYPE_CHECKING:
    from collections.abc import Collection

    from torchx_cubicml.launch.launch import Launch
    from torchx_cubicml.space.trainers import Trainer


def detect_trainer(launch: Launch, source: str) -> Trainer | None:
    """Return the trainer whose table matches the command; ``None`` where no table does.

    Args:
        launch: the command.
        source: text of its script; empty where unavailable.
    """
    typed = frozenset(flags_in(launch.script_args))
    underscored = frozenset(f"--{flag[2:].replace('-', '_')}" for flag in typed if flag.startswith("--"))
    for trainer in TRAINERS.values():
        flags = typed | underscored if trainer.both_dashes else typed
        if (
            any(re.fullmatch(pattern, launch.program) for pattern in trainer.programs)
            or any(marks <= flags for marks in trainer.marks)
            or (trainer.source and trainer.source in source)
        ):
            return trainer
    options = flags_in(launch.launcher_args)
    of_launcher = TRAINERS.get(launch.launcher)
    return of_launcher if of_launcher is not None and _has_place(of_launcher, options) else None


def _has_place(trainer: Trainer, options: Collection[str]) -> bool:
    """Return whether a launcher's options state a value of the trainer's table, or name its config file."""
    flags = [flag for flag in trainer.flags.values() if flag.of_launcher]
    return any(flag.flag in options or flag.file in options for flag in flags)
