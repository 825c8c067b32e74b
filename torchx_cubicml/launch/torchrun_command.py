"""Parser and editor of torchrun command lines."""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self, TypeVar

from torchx_cubicml.errors import LaunchError
from torchx_cubicml.launch.launch import Launch
from torchx_cubicml.launch.shell import ShellWord, respell, with_macro_escape, without_macro_escape

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torchx_cubicml.launch.launchers.option_table import ValuePlace

_Word = TypeVar("_Word")

RECORDER = "torchx_cubicml.recorder"
_RECORDER_OPTION = f"-m{RECORDER}"
TORCHRUN_WITH_SECOND_ATTEMPT = "torchx_cubicml.recorder.torchrun"
"""Module that runs torchrun, and runs it again as typed if a rewritten launch fails early."""
LAUNCHER_WITH_SECOND_ATTEMPT = "torchx_cubicml.recorder.launcher"
"""Module that does the same with another launcher in Python."""

TORCHRUN_WITH_VALUE = frozenset(
    {
        *("nnodes", "nproc_per_node", "node_rank", "master_addr", "master_port", "local_addr"),
        *("rdzv_backend", "rdzv_endpoint", "rdzv_id", "rdzv_conf", "max_restarts", "monitor_interval"),
        *("start_method", "event_log_handler", "role", "log_dir", "redirects", "tee", "local_ranks_filter"),
        *("duplicate_stdout_filters", "duplicate_stderr_filters", "logs_specs", "numa_binding"),
        *("signals_to_handle", "shutdown_timeout"),
    }
)
"""Options of ``torchrun`` with a value, in underscores for hyphens; a test compares them with torch's own parser."""

TORCHRUN_WITHOUT_VALUE = frozenset({"standalone", "module", "no_python", "run_path", "virtual_local_rank", "help"})
TORCHRUN_SHORT = {"m": "module", "r": "redirects", "t": "tee", "h": "help"}

_TORCHRUN_MODULE = "torch.distributed.run"
PYTHON = re.compile(r"python(?:\d+(?:\.\d+)?)?")
_PYTHON_SWITCHES = re.compile(r"-[bBdEiIOPqsSuvx]+")
_PYTHON_WITH_VALUE = re.compile(r"-[bBdEiIOPqsSuvx]*[WX]")
_FIXED_NUMBER = re.compile(r"(\d+)(?::\1)?")  # 2, or 2:2 for least and most


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchCommand:
    """A launch command, parsed; positions are indices of its words.

    Args:
        program: the script or the module.
        is_module: whether ``-m`` starts it.
        head_stop: end of the words that stay in front of the program.
        args_start: index of the program's first argument.
        python: words that start the job's Python; ``None`` for the interpreter of ``torchrun`` itself.
        is_torchrun: whether torchrun starts the program.
        picks_python: whether torchrun selects the job's Python, so that ``PYTHON_EXEC`` can name another.
        module_options: indices of torchrun's ``-m`` and ``--module``; negative where the environment sets it.
        nnodes: number of nodes; ``None`` if the command leaves it open.
        nproc_per_node: processes per node, likewise.
        left_open: description of what the command leaves open; empty if nothing.
        options_start: index of the launcher's first option.
        launcher: name of the launcher that starts the program in place of torchrun or Python; empty for these two.
        process_start: index of the first word that each process runs; above 0 behind a launcher of any program.
        module_switch: option by which the launcher is told that the program is a module; empty where a word ``-mNAME``
            may stand for the program.
        size_place: place of the typed number of processes; ``None`` where it cannot be changed there.
        starts_all_nodes: whether the command is given once for all nodes.
        n_processes: processes of the job where only the job knows on how many nodes they run; else ``None``.
    """

    program: str
    is_module: bool
    head_stop: int
    args_start: int
    python: slice | None = None
    is_torchrun: bool = False
    picks_python: bool = False
    module_options: tuple[int, ...] = ()
    nnodes: int | None = None
    nproc_per_node: int | None = 1
    left_open: str = ""
    options_start: int = 1
    launcher: str = ""
    process_start: int = 0
    module_switch: str = ""
    size_place: ValuePlace | None = None
    starts_all_nodes: bool = False
    n_processes: int | None = None

    @property
    def world_size(self) -> int | None:
        """Processes of the job; ``None`` if the command leaves nodes or their processes open."""
        return self.nnodes * self.nproc_per_node if self.nnodes and self.nproc_per_node else None

    @property
    def launcher_options(self) -> slice:
        """Words of the options of the launcher that starts the program in place of torchrun; else an empty slice."""
        has_own = bool(self.launcher) and self.process_start == 0
        return slice(self.options_start, self.head_stop) if has_own else slice(0, 0)


def parse_command(words: Sequence[str]) -> LaunchCommand:
    """Parse a command of torchrun or Python; ``launchers.table`` reads those of other launchers, too.

    Raises:
        LaunchError: the command is not torchrun or python with a script or a module.

    >>> command = parse_command("torchrun --nnodes 2 --nproc-per-node=8 -m pkg.train --lr 0.1".split())
    >>> command.program, command.is_module, command.nnodes, command.nproc_per_node, command.args_start
    ('pkg.train', True, 2, 8, 6)
    """
    words = list(words)
    if _name_at(words, 0) == "torchrun":
        return _parse_torchrun(words, start=1, python=None)
    return _parse_python(words, start=0)


def with_option(words: Sequence[str], stop: int, option: str, value: str) -> tuple[str, ...]:
    """Return the words of a torchrun command with another value for one option.

    Args:
        words: the options and what follows them.
        stop: end of the options.
        option: its name, with underscores.
        value: its value.

    >>> with_option(["--nproc-per-node=2", "train.py"], 1, "nproc_per_node", "4")
    ('--nproc-per-node=4', 'train.py')
    """
    index, changed = 0, list(words)
    while index < stop and changed[index].startswith("-") and changed[index] != "--":
        name, joined, _ = _option_parts(changed[index])
        known = _torchrun_option(name)
        takes_word = known in TORCHRUN_WITH_VALUE and not joined
        if known == option:
            changed[index : index + 1 + takes_word] = [f"{name}={value}"] if joined else [name, value]
            return tuple(changed)
        index += 1 + takes_word
    return (f"--{option}={value}", *changed)


def recorder_words(parts: LaunchCommand, recorder: str) -> list[str]:
    """Return the words between the options of the launcher and the program that start the module ``recorder``.

    Options and module are one word that begins with a hyphen. So torchrun names the program in its messages, which is
    the first word without one:
    https://github.com/pytorch/pytorch/blob/v2.13.0/torch/distributed/launcher/api.py (``_get_entrypoint_name``).

    >>> recorder_words(parse_command("torchrun -m pkg.train".split()), "rec")
    ['--', '-mrec', '-m']
    """
    program = ["-m"] if parts.is_module else []
    if parts.module_switch:
        return [parts.module_switch, recorder, *program]
    if _environment_sets_module(parts):
        return [recorder, "--", *program]
    # The "--" keeps torchrun from taking the next word for an option of its own.
    return [*(["--"] if parts.picks_python else []), f"-m{recorder}", *program]


def without_module_options(words: Sequence[_Word], start: int, parts: LaunchCommand) -> tuple[_Word, ...]:
    """Return the words from ``start`` to the program without ``-m``, which belongs to the recorder."""
    dropped = () if _environment_sets_module(parts) else parts.module_options
    return tuple(word for index, word in enumerate(words[: parts.head_stop]) if index >= start and index not in dropped)


def _environment_sets_module(parts: LaunchCommand) -> bool:
    return any(index < 0 for index in parts.module_options)


def _name_at(words: Sequence[str], index: int) -> str:
    return posixpath.basename(words[index]) if index < len(words) else ""


def _parse_python(words: Sequence[str], *, start: int) -> LaunchCommand:
    name = _name_at(words, start)
    if not PYTHON.fullmatch(name):
        raise LaunchError(f"{name or 'an empty command'} is neither torchrun nor python")
    stop = start + 1
    while stop < len(words) and words[stop].startswith("-") and words[stop] not in {"-m", _RECORDER_OPTION}:
        stop += _width_of_python_option(words[stop])
    is_module = words[stop : stop + 1] == ["-m"]
    program_at = stop + is_module
    program = check_program(words, program_at)
    python = slice(start, stop)
    if is_module and program == _TORCHRUN_MODULE:
        return _parse_torchrun(words, start=program_at + 1, python=python)
    return LaunchCommand(program=program, is_module=is_module, head_stop=stop, args_start=program_at + 1, python=python)


def _width_of_python_option(word: str) -> int:
    if _PYTHON_SWITCHES.fullmatch(word):
        return 1
    if match := _PYTHON_WITH_VALUE.match(word):
        return 2 if match.end() == len(word) else 1
    raise LaunchError(f"python option {word} leaves no script to record")


def _parse_torchrun(words: Sequence[str], *, start: int, python: slice | None) -> LaunchCommand:
    options, modules, stop = _torchrun_options(words, start)
    if "run_path" in options:
        raise LaunchError("torchrun's --run-path runs the script in the launcher's own process")
    ended = words[stop : stop + 1] == ["--"]
    program_at = stop + ended
    if "no_python" in options:
        command = replace(_parse_python(words, start=program_at), is_torchrun=True)
    else:
        # torchrun's parser drops one "--" that follows the script, unless another came before it.
        dropped = not ended and list(words[program_at + 1 : program_at + 2]) == ["--"]
        is_module = "module" in options
        command = LaunchCommand(
            program=check_program(words, program_at),
            is_module=is_module,
            head_stop=stop,
            args_start=program_at + 1 + dropped,
            python=python,
            is_torchrun=True,
            picks_python=True,
            module_options=modules,
        )
    command = replace(command, options_start=start)
    return _with_size(command, nnodes=options.get("nnodes", "1"), nproc=options.get("nproc_per_node", "1"))


def _torchrun_options(words: Sequence[str], start: int) -> tuple[dict[str, str], tuple[int, ...], int]:
    """Return torchrun's options, the indices of ``-m`` and ``--module`` among them, and the end of the options."""
    options: dict[str, str] = {}
    modules: list[int] = []
    index = start
    while index < len(words) and words[index].startswith("-") and words[index] != "--":
        name, joined, value = _option_parts(words[index])
        option = _torchrun_option(name)
        modules += [index] if option == "module" else []
        index += 1
        if option in TORCHRUN_WITH_VALUE and not joined:
            value = words[index] if index < len(words) else ""
            index += 1
        options[option] = value
    return options, tuple(modules), index


def _option_parts(word: str) -> tuple[str, bool, str]:
    """Return the option of a word, whether the word holds its value, too, and that value.

    >>> _option_parts("--tee=3"), _option_parts("-t3"), _option_parts("-m")
    (('--tee', True, '3'), ('-t', True, '3'), ('-m', False, ''))
    """
    if TORCHRUN_SHORT.get(word[1:2]) in TORCHRUN_WITH_VALUE and word[2:]:
        return word[:2], True, word[2:].removeprefix("=")
    name, joined, value = word.partition("=")
    return name, bool(joined), value


def _torchrun_option(name: str) -> str:
    """Return the torchrun option that a word names, in full or abbreviated."""
    if not name.startswith("--"):
        option = TORCHRUN_SHORT.get(name[1:])
        if option is None:
            raise LaunchError(f"unknown torchrun option {name}")
        return option
    name_typed = name[2:].replace("-", "_")
    legal = TORCHRUN_WITH_VALUE | TORCHRUN_WITHOUT_VALUE
    matches = [name_typed] if name_typed in legal else [option for option in legal if option.startswith(name_typed)]
    if len(matches) != 1:
        raise LaunchError(f"unknown torchrun option {name}")
    return matches[0]


def _with_size(command: LaunchCommand, *, nnodes: str, nproc: str) -> LaunchCommand:
    fixed = _FIXED_NUMBER.fullmatch(nnodes)
    left_open = [f"the number of nodes ({nnodes})"] if fixed is None else []
    left_open += [] if nproc.isdecimal() else [f"the number of processes per node ({nproc})"]
    return replace(
        command,
        nnodes=int(fixed[1]) if fixed is not None else None,
        nproc_per_node=int(nproc) if nproc.isdecimal() else None,
        left_open=" and ".join(left_open),
    )


def check_program(words: Sequence[str], index: int) -> str:
    """Return the word at ``index``, which names the program.

    Raises:
        LaunchError: it names none, or the recorder.
    """
    if words[index : index + 1] in ([RECORDER], [_RECORDER_OPTION]):
        raise LaunchError("the command already starts the recorder")
    if index >= len(words) or not words[index] or words[index].startswith("-"):
        raise LaunchError("the command names no script or module")
    return words[index]


TORCHRUN_PREFIX = "PET_"
"""Prefix of the variables from which torchrun reads the options that are not typed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchrunLaunch:
    """A launch by torchrun.

    Args:
        args: words after ``torchrun``.
        parts: the parsed command; positions are indices of ``args``.
        env: environment in which torchrun is started.
    """

    args: tuple[str, ...]
    parts: LaunchCommand
    env: Mapping[str, str]

    @classmethod
    def parse(cls, args: Sequence[str], *, env: Mapping[str, str]) -> Self:
        """Parse a command as torchrun does, including options from the environment.

        Raises:
            LaunchError: the command starts no script or module that can be recorded.
        """
        preset = _options_from_env(env)
        parts = parse_command(["torchrun", *preset, *args])
        return cls(args=tuple(args), parts=_shift(parts, by=1 + len(preset)), env=env)

    @property
    def launch(self) -> Launch:
        """Launch record of the command."""
        parts = self.parts
        known = parts.nnodes is not None and parts.nproc_per_node is not None
        return Launch(
            program=parts.program,
            is_module=parts.is_module,
            script_args=tuple(word.value for word in self._script_words),
            env=self.env,
            world_size=parts.world_size,
            nnodes=parts.nnodes if known else None,
            nproc_per_node=parts.nproc_per_node,
            resizable=frozenset({"nproc_per_node"} if known and parts.nnodes == 1 else ()),
            why_not_rewritten=f"{parts.left_open} is known only when the job starts" if parts.left_open else "",
            can_have_second_attempt=True,
        )

    @property
    def starts_all(self) -> bool:
        """Return whether this command alone starts all processes of the job."""
        return self.parts.nnodes == 1

    def with_launcher_of(self, launch: Launch) -> Self:
        """Return the command with the number of processes per node of ``launch``."""
        if launch.nproc_per_node in {None, self.parts.nproc_per_node}:
            return self
        words = with_option(self.args, self.parts.args_start, "nproc_per_node", str(launch.nproc_per_node))
        return self.parse(words, env=self.env)

    def wrapped(self, script_args: Sequence[str], *, recorder: str) -> list[str]:
        """Return the arguments of ``torchrun`` that run the program under the module ``recorder``.

        Args:
            script_args: arguments of the program.
            recorder: name of the module.
        """
        parts = self.parts
        options = without_module_options(self.args, 0, parts)
        arguments = respell(self._script_words, script_args, spell=with_macro_escape)
        return [*options, *recorder_words(parts, recorder), parts.program, *arguments]

    def typed(self, script_args: Sequence[str]) -> list[str]:
        """Return the arguments of ``torchrun`` that run the program with other arguments, unrecorded."""
        head = self.args[: self.parts.args_start]
        return [*head, *respell(self._script_words, script_args, spell=with_macro_escape)]

    def python(self, *, torchrun_python: Sequence[str]) -> tuple[str, ...]:
        """Return the words that start the Python of the program.

        Args:
            torchrun_python: words that start the Python of torchrun.
        """
        if self.parts.python is not None:
            return self.args[self.parts.python]
        override = self.env.get("PYTHON_EXEC")
        return (override,) if override else tuple(torchrun_python)

    @property
    def _script_words(self) -> list[ShellWord]:
        # torchrun substitutes macros of its own, such as ${local_rank}, in the arguments of its workers.
        typed = self.args[self.parts.args_start :]
        return [ShellWord(value=without_macro_escape(text), text=text) for text in typed]


def _options_from_env(env: Mapping[str, str]) -> list[str]:
    variables = {name: TORCHRUN_PREFIX + name.upper() for name in sorted(TORCHRUN_WITH_VALUE | TORCHRUN_WITHOUT_VALUE)}
    words = [f"--{name}={env[variables[name]]}" for name in sorted(TORCHRUN_WITH_VALUE) if variables[name] in env]
    flags = sorted(TORCHRUN_WITHOUT_VALUE)
    return words + [f"--{name}" for name in flags if env.get(variables[name], "0").strip() not in {"0", ""}]


def _shift(parts: LaunchCommand, *, by: int) -> LaunchCommand:
    python = parts.python and slice(parts.python.start - by, parts.python.stop - by)
    return replace(
        parts,
        head_stop=parts.head_stop - by,
        args_start=parts.args_start - by,
        python=python,
        module_options=tuple(index - by for index in parts.module_options),
    )
