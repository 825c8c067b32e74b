"""Trainer of a command, by the tables of known trainers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from torchx_cubicml.launch.bindings.argv import flags_in
from torchx_cubicml.space.trainers import TRAINERS

if TYPE_CHECKING:
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
    return None
