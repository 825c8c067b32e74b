"""Table of launchers, and the parser of a command that any of them may start."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from torchx_cubicml.errors import LaunchError
from torchx_cubicml.launch.launchers import accelerate_command, deepspeed_command, mpirun_command, srun_command
from torchx_cubicml.launch.torchrun_command import PYTHON, LaunchCommand, parse_command

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchx_cubicml.launch.launchers.option_table import OptionTable, TypedOptions


class ScriptLauncher(Protocol):
    """Launcher that starts Python with a script or a module, which it names behind its own options."""

    @property
    def MODULES(self) -> tuple[str, ...]:  # noqa: N802 - a constant of the module
        """Modules that ``python -m`` starts the launcher with."""

    def first_option(self, words: Sequence[str]) -> int | None:
        """Return the index behind the words that start the launcher; ``None`` if another program starts."""

    def parse(self, words: Sequence[str], start: int, *, python: slice | None = None) -> LaunchCommand:
        """Parse a command whose options begin at ``start``."""


class CommandLauncher(Protocol):
    """Launcher that starts any command, which stands behind its own options."""

    @property
    def NAME(self) -> str:  # noqa: N802 - a constant of the module
        """Name of the launcher."""

    @property
    def PROGRAMS(self) -> frozenset[str]:  # noqa: N802 - likewise
        """Names of its commands."""

    @property
    def OPTIONS(self) -> OptionTable:  # noqa: N802 - likewise
        """Its options."""

    def sized(self, command: LaunchCommand, typed: TypedOptions) -> LaunchCommand:
        """Return the command of one process as a command of the launcher, with its size."""


SCRIPT_LAUNCHERS: tuple[ScriptLauncher, ...] = (accelerate_command, deepspeed_command)
COMMAND_LAUNCHERS: tuple[CommandLauncher, ...] = (mpirun_command, srun_command)
LAUNCHERS = "torchrun, accelerate launch, deepspeed, mpirun, srun or python"
"""Words that start a launch, for messages."""
_NAMES = frozenset({"torchrun", "accelerate", "accelerate-launch", "deepspeed", "ds"}).union(
    *(launcher.PROGRAMS for launcher in COMMAND_LAUNCHERS)
)


def parse_any_command(words: Sequence[str]) -> LaunchCommand:
    """Parse a command of torchrun, Python or a launcher of the table.

    Raises:
        LaunchError: the command starts no Python program that can be recorded.

    >>> command = parse_any_command("srun -n 4 python train.py --lr 0.1".split())
    >>> command.launcher, command.program, command.nproc_per_node, command.process_start
    ('srun', 'train.py', None, 3)
    """
    words = list(words)
    for launcher in COMMAND_LAUNCHERS:
        if words and _base_name(words[0]) in launcher.PROGRAMS:
            return _parse_behind(launcher, words)
    for script_launcher in SCRIPT_LAUNCHERS:
        start = script_launcher.first_option(words)
        if start is not None:
            return script_launcher.parse(words, start)
    command = parse_command(words)
    for script_launcher in SCRIPT_LAUNCHERS:
        if command.is_module and command.program in script_launcher.MODULES and not command.is_torchrun:
            return script_launcher.parse(words, command.args_start, python=command.python)
    return command


def is_launcher(word: str) -> bool:
    """Return whether a word starts a launcher, or Python, rather than being a script.

    >>> [is_launcher(word) for word in ("accelerate", "/usr/bin/srun", "python3.12", "train.py")]
    [True, True, True, False]
    """
    return _base_name(word) in _NAMES or bool(PYTHON.fullmatch(_base_name(word)))


def launcher_at(words: Sequence[str]) -> int | None:
    """Return the index of the first word that starts a launcher, or Python with a program; ``None`` without one.

    >>> [launcher_at(line.split()) for line in ("env A=1 python train.py", "python -c 1", "bash run.sh", "pip python")]
    [2, 0, None, None]
    """
    return next((at for at, word in enumerate(words) if is_launcher(word) and (not at or _starts(words[at:]))), None)


def _starts(words: Sequence[str]) -> bool:
    """Return whether a command starts a Python program that can be recorded."""
    try:
        parse_any_command(words)
    except LaunchError:
        return False
    return True


def _parse_behind(launcher: CommandLauncher, words: Sequence[str]) -> LaunchCommand:
    """Parse a command with a launcher of any command."""
    typed = launcher.OPTIONS.parse(words, 1)
    if ":" in words[typed.stop :]:
        raise LaunchError(f"{launcher.NAME} starts several programs, separated by colons")
    inner = parse_any_command(words[typed.stop :])
    if inner.launcher:
        raise LaunchError(f"{launcher.NAME} starts another launcher, {inner.launcher}")
    command = _shifted(inner, by=typed.stop)
    if inner.is_torchrun:  # one agent per task; its options state the size
        return replace(command, launcher=launcher.NAME, starts_all_nodes=True)
    return launcher.sized(command, typed)


def _base_name(word: str) -> str:
    return word.rpartition("/")[2]


def _shifted(command: LaunchCommand, *, by: int) -> LaunchCommand:
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
