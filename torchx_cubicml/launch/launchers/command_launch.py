"""Launch by a whole command, which names its launcher: ``accelerate launch``, ``srun python`` and others."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

from torchx_cubicml.errors import LaunchError
from torchx_cubicml.launch.command_texts import user_program
from torchx_cubicml.launch.launch import Launch
from torchx_cubicml.launch.launchers import accelerate_command
from torchx_cubicml.launch.launchers.table import LAUNCHERS, is_launcher, launcher_at, parse_any_command
from torchx_cubicml.launch.shell import ShellWord, respell, with_macro_escape, without_macro_escape
from torchx_cubicml.launch.torchrun_command import (
    LAUNCHER_WITH_SECOND_ATTEMPT,
    PYTHON,
    TORCHRUN_PREFIX,
    TORCHRUN_WITH_SECOND_ATTEMPT,
    recorder_words,
    without_module_options,
)
from torchx_cubicml.settings import KEEP_COMMAND, read_job_environment
from torchx_cubicml.user_files import read_head, read_python

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torchx_cubicml.launch.torchrun_command import LaunchCommand

FLAGS = "--cubicml-"
"""Prefix of our options. No torchrun option begins so, and ours cannot pass for an abbreviation of one of its own."""
DRY_RUN = "dryrun"
OPTIONS, SWITCHES = ("space", "store", "mode"), (KEEP_COMMAND, DRY_RUN)
"""Names of our options behind ``FLAGS``, and of those without a value."""
_LONGEST_FIRST_LINE = 4096  # bytes
# As pip and uv write it where the path of Python is long.
_BEHIND_SHELL = re.compile(r"""#!/bin/sh\n'''exec' ["']?([^"'\n]+)["']? "\$0" """)
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=", re.ASCII)  # as env, docker run -e and others take it


def split_options(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Split the arguments into our leading options and torchrun's arguments.

    An unknown option with our prefix stays; ``usage_error`` refuses it.

    >>> split_options(["--cubicml-mode", "off", "--cubicml-space=s.toml", "--nproc_per_node", "2", "train.py"])
    ({'mode': 'off', 'space': 's.toml'}, ['--nproc_per_node', '2', 'train.py'])
    """
    given: dict[str, str] = {}
    rest = list(words)
    while rest and rest[0].startswith(FLAGS):
        name, joined, value = rest[0].removeprefix(FLAGS).partition("=")
        if (switch := name.replace("-", "_")) in SWITCHES and not joined:
            given[switch] = "yes"
            rest = rest[1:]
            continue
        if name not in OPTIONS or not (joined or rest[1:]):
            break
        given[name] = value if joined else rest[1]
        rest = rest[1 if joined else 2 :]
    return given, rest


def is_command(args: Sequence[str]) -> bool:
    """Return whether arguments of cubicrun are ``--`` and a command of its own, not a Python program for torchrun.

    >>> [is_command(line.split()) for line in ("-- accelerate launch train.py", "-- bash run.sh", "-- train.py")]
    [True, True, False]
    """
    if list(args[:1]) != ["--"] or len(args) < 2 or args[1].startswith("-"):
        return False
    word = args[1]
    if is_launcher(word) or word.endswith(".py"):
        return is_launcher(word)
    if shutil.which(word) is not None or not os.path.isfile(word):  # noqa: PTH113 - takes any word
        return not os.path.exists(f"{word}/__main__.py")  # noqa: PTH110 - likewise
    return _first_line(word).startswith("#!") and not _names_python(word)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandLaunch:
    """A launch by a whole command.

    Args:
        args: the words of the command from its launcher on; of a script that starts Python, with Python in front.
        parts: the parsed command.
        env: environment in which it is started.
        before: words in front of the launcher, such as ``timeout 60``.
        script: path of the script that starts Python, such as that of ``fabric``; empty where a launcher is named.
    """

    args: tuple[str, ...]
    parts: LaunchCommand
    env: Mapping[str, str]
    before: tuple[str, ...] = ()
    script: str = ""

    @classmethod
    def parse(cls, args: Sequence[str], *, env: Mapping[str, str]) -> Self:
        """Parse a command.

        Raises:
            LaunchError: it names no Python program that can be recorded.
        """
        at = launcher_at(args)
        script = "" if at is not None else shutil.which(args[0]) or ""
        if at is None and not (script and _names_python(script)):
            raise LaunchError(f"{args[0]} starts nothing that is known; it may stand in front of {LAUNCHERS}")
        before = tuple(args[:at]) if at else ()
        words = ("python", script, *args[1:]) if script else tuple(args[at:])
        parts = parse_any_command(words)
        if before and parts.process_start:  # the launcher's own words stay as typed
            parts = replace(parts, size_place=None)
        env = {**env, **dict(word.split("=", 1) for word in before if _ASSIGNMENT.match(word))}
        preset = next((name for name in env if name.startswith(TORCHRUN_PREFIX)), "") if parts.is_torchrun else ""
        if preset and parts.launcher != accelerate_command.NAME:
            raise LaunchError(f"{preset} sets an option of torchrun: put cubicrun in the place of torchrun, without --")
        return cls(args=words, parts=parts, env=env, before=before, script=script)

    @property
    def starts_as_typed(self) -> bool:
        """Return whether the words stay as typed, and the Python that they start becomes the recorded command."""
        return bool(self.before or self.script)

    def process_words(self, recorded: Sequence[str]) -> tuple[str, list[str], list[str | None]]:
        """Return the words that tell the Python of a command that ``starts_as_typed``, and those that it becomes.

        Args:
            recorded: words of this command under the recorder.

        Returns:
            Name of the script that starts Python, empty where a word does; the words behind it; those that take their
            place, with ``None`` for the path of the script.
        """
        start = self.parts.process_start
        typed, words = self.args[start:], recorded[start + 1 :]
        if self.script:
            at = words.index(self.script)
            return Path(self.script).name, list(typed[2:]), [*words[:at], None, *words[at + 1 :]]
        name = Path(typed[0]).name
        return ("", list(typed[1:]), [*words]) if PYTHON.fullmatch(name) else (name, list(typed[1:]), [None, *words])

    @property
    def launch(self) -> Launch:
        """Launch record of the command."""
        parts = self.parts
        known = bool(parts.nnodes and parts.nproc_per_node) or not (parts.launcher or parts.is_torchrun)
        nnodes, nproc = parts.nnodes or 1, parts.nproc_per_node or 1
        return Launch(
            program=parts.program if parts.is_module else user_program(parts.program, self.args[parts.args_start :]),
            is_module=parts.is_module,
            script_args=tuple(word.value for word in self._script_words),
            env=self.env,
            world_size=self._ranks_outside or (nnodes * nproc if known else parts.n_processes),
            nnodes=nnodes if known and not self._ranks_outside else None,
            nproc_per_node=nproc if known and not self._ranks_outside else None,
            resizable=frozenset({"nproc_per_node"} if known and parts.size_place is not None else ()),
            why_not_rewritten=self._obstacle(),
            can_have_second_attempt=self._can_have_second_attempt,
            launcher=parts.launcher,
            launcher_args=self.args[parts.launcher_options],
        )

    @property
    def starts_all(self) -> bool:
        """Return whether this command alone starts all processes of the job, and surely starts it once."""
        parts = self.parts
        if self.starts_as_typed and not parts.process_start:
            return False
        is_python = not (parts.launcher or parts.is_torchrun)
        return parts.starts_all_nodes or ((parts.nnodes == 1 or is_python) and not self._ranks_outside)

    def with_launcher_of(self, launch: Launch) -> Self:
        """Return the command with the launcher's own options, and its number of processes, of ``launch``."""
        options = self.parts.launcher_options
        words = (*self.args[: options.start], *launch.launcher_args, *self.args[options.stop :])
        made = self if words == self.args else replace(self, args=words, parts=parse_any_command(words))
        place = made.parts.size_place
        if place is None or launch.nproc_per_node in {None, made.parts.nproc_per_node}:
            return made
        word = f"{place.before}{launch.nproc_per_node}"
        return replace(made, args=(*made.args[: place.index], word, *made.args[place.index + 1 :]))

    def wrapped(self, script_args: Sequence[str], *, recorder: str) -> list[str]:
        """Return the command that runs the program under the module ``recorder``.

        Args:
            script_args: arguments of the program.
            recorder: name of the module.
        """
        parts = self.parts
        head = [*self.args[: parts.options_start], *without_module_options(self.args, parts.options_start, parts)]
        arguments = respell(self._script_words, script_args, spell=self._spell)
        return [*head, *recorder_words(parts, recorder), parts.program, *arguments]

    def with_second_attempt(self, first: Sequence[str], second: Sequence[str]) -> list[str]:
        """Return the words that run ``first``, and in the same process ``second`` if that fails early.

        Args:
            first: words of this command with other arguments, recorded.
            second: its words as typed, recorded.

        Raises:
            LaunchError: the launcher is a script that is not found.
        """
        parts, is_script = self.parts, self.parts.python is None
        python = [*self.python(), *(["-P"] if is_script else [])]  # a script does not search the working directory
        if parts.is_torchrun and not parts.launcher:
            start, module, path = parts.options_start, TORCHRUN_WITH_SECOND_ATTEMPT, []
        else:
            start, module = 1 if parts.python is None else parts.python.stop, LAUNCHER_WITH_SECOND_ATTEMPT
            path = [found_script(self.args[0])] if is_script else []
        typed = [*path, *second[start:]]
        return [*python, "-m", module, str(len(typed)), *typed, *path, *first[start:]]

    def typed(self, script_args: Sequence[str]) -> list[str]:
        """Return the command with other arguments of the program, unrecorded."""
        head = [*self.before, *self.args[bool(self.script) : self.parts.args_start]]
        return [*head, *respell(self._script_words, script_args, spell=self._spell)]

    def python(self) -> tuple[str, ...]:
        """Return the words that start the Python of the program.

        Raises:
            LaunchError: the launcher is a script whose Python is not known.
        """
        if self.parts.python is not None:
            return self.args[self.parts.python]
        return (python_of_script(self.args[self.parts.process_start]),)

    def _spell(self, value: str) -> str:
        return with_macro_escape(value) if self.parts.is_torchrun else value

    @property
    def _script_words(self) -> list[ShellWord]:
        words = [ShellWord(value=text, text=text) for text in self.args[self.parts.args_start :]]
        if self.parts.is_torchrun:  # torch's agent substitutes macros such as ${local_rank}
            words = [replace(word, value=without_macro_escape(word.text)) for word in words]
        return words

    @property
    def _ranks_outside(self) -> int:
        """Number of ranks that each run this command of one process, started by ``mpirun cubicrun``; 0 if none does."""
        parts = self.parts
        is_one = not (parts.is_torchrun or parts.starts_all_nodes or parts.left_open) and parts.nproc_per_node == 1
        ranks = read_job_environment(self.env).world_size if is_one else 1
        return ranks if ranks > 1 else 0

    @property
    def _can_have_second_attempt(self) -> bool:
        """True if a launcher in Python starts all processes, so that it can be run again in its own process."""
        parts = self.parts
        is_of_python = parts.picks_python or bool(parts.module_switch)
        if self.starts_as_typed or parts.process_start or parts.nnodes != 1 or not is_of_python:
            return False
        return parts.python is not None or _is_python_source(self.args[0])

    def _obstacle(self) -> str:
        parts = self.parts
        if self._ranks_outside:
            return f"each of {self._ranks_outside} ranks would choose for itself"
        if parts.left_open:
            return f"{parts.left_open} is known only when the job starts"
        if (parts.nnodes or 1) > 1 and not parts.starts_all_nodes:
            return "each of several nodes would choose for itself"
        return ""


def python_of_script(word: str) -> str:
    """Return the Python that runs a script such as ``accelerate``: that of its first line, else the one beside it.

    Raises:
        LaunchError: there is no such script, or no Python is found for it.
    """
    found = found_script(word)
    first = _first_line(found)
    words = first.removeprefix("#!").split()
    named = shutil.which(words[-1]) if first.startswith("#!") and words and "python" in words[-1] else None
    beside = Path(found).parent / "python"
    if named is None and not beside.exists():
        raise LaunchError(f"the Python of {found} is not known")
    return named or str(beside)


def _first_line(path: str) -> str:
    """Return the first line of a file, with Python for a shell that starts it; empty where it cannot be read."""
    try:
        head = read_head(path, _LONGEST_FIRST_LINE).decode(errors="replace")
    except LaunchError:
        return ""
    found = _BEHIND_SHELL.match(head)
    return f"#!{found[1]}" if found else head.partition("\n")[0].rstrip()


def _names_python(path: str) -> bool:
    """Return whether the first line of a file says that Python runs it, without options of its own."""
    first = _first_line(path)
    return first.startswith("#!") and PYTHON.fullmatch(first.rpartition("/")[2].rpartition(" ")[2]) is not None


def found_script(word: str) -> str:
    """Return the path of a command.

    Raises:
        LaunchError: there is none.
    """
    found = shutil.which(word)
    if found is None:
        raise LaunchError(f"there is no command {word}")
    return found


def _is_python_source(word: str) -> bool:
    try:
        return read_python(found_script(word))[1] is not None
    except LaunchError:
        return False
