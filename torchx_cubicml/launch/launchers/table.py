"""Table of launchers, and the parser of a command that any of them may start."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from torchx_cubicml.errors import LaunchError
from torchx_cubicml.launch.launchers import accelerate, deepspeed, mpirun, srun
from torchx_cubicml.launch.torchrun_command import PYTHON, LaunchCommand, parse_command

if TYPE_CHECKING:
    from collections.abc import Sequence

SCRIPT_LAUNCHERS = (accelerate, deepspeed)
"""Launchers that start Python with a script or a module, which they name behind their own options."""
COMMAND_LAUNCHERS = (mpirun, srun)
"""Launchers that start any command, which stands behind their own options."""


def parse_any_command(words: Sequence[str]) -> LaunchCommand:
    """Parse a command of torchrun, Python or a launcher of the table.

    Raises:
        LaunchError: the command starts no Python program that can be recorded.

    >>> command = parse_any_command("srun -n 4 python train.py --lr 0.1".split())
    >>> command.launcher, command.program, command.nproc_per_node, command.process_start
    ('srun', 'train.py', 4, 3)
    """
    for launcher in SCRIPT_LAUNCHERS:
        start = launcher.first_option(words)
        if start is not None:
            return launcher.parse(words, start)
    for prefix in COMMAND_LAUNCHERS:
        if words and words[0].rpartition("/")[2] in prefix.PROGRAMS:
            typed = prefix.OPTIONS.parse(words, 1)
            if ":" in words[typed.stop :]:
                raise LaunchError(f"{prefix.NAME} starts several programs, separated by colons")
            inner = parse_any_command(words[typed.stop :])
            if inner.launcher:
                raise LaunchError(f"{prefix.NAME} starts another launcher, {inner.launcher}")
            command = shifted(inner, by=typed.stop)
            if inner.is_torchrun:  # one agent per task; its options state the size
                return replace(command, launcher=prefix.NAME, starts_all_nodes=True)
            return prefix.sized(command, typed)
    command = parse_command(words)
    for launcher in SCRIPT_LAUNCHERS:
        if command.is_module and command.program in launcher.MODULES and not command.is_torchrun:
            return launcher.parse(words, command.args_start, python=command.python)
    return command


def shifted(command: LaunchCommand, *, by: int) -> LaunchCommand:
    """Return a parsed command with ``by`` words in front of it."""
    python = command.python and slice(command.python.start + by, command.python.stop + by)
    return replace(
        command,
        head_stop=command.head_stop + by,
        args_start=command.args_start + by,
        python=python,
        module_options=tuple(index + by for index in command.module_options),
        options_start=command.options_start + by,
        process_start=command.process_start + by,
    )


def is_launcher(word: str) -> bool:
    """Return whether a word starts a launcher, or Python, rather than being a script.

    >>> [is_launcher(word) for word in ("accelerate", "/usr/bin/srun", "python3.12", "train.py")]
    [True, True, True, False]
    """
    name = word.rpartition("/")[2]
    return name in _NAMES or bool(PYTHON.fullmatch(name))


_NAMES = frozenset({"torchrun", "accelerate", "accelerate-launch", "deepspeed", "ds"}) | mpirun.PROGRAMS | srun.PROGRAMS
