"""Runner of a script or module as ``__main__``, equivalent to Python's command line."""

from __future__ import annotations

import builtins
import io
import os
import runpy
import sys
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

_LOCAL_RANK = "--local_rank="
USAGE = "usage: python -m torchx_cubicml.recorder -- (SCRIPT | -m MODULE) [ARGUMENT ...]"
_PACKAGE_FOLDER = __file__.removesuffix(os.path.join("recorder", "process", "run_program.py"))  # noqa: PTH118 - as code objects spell it


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """The user's program: a script's path as typed or a module's dotted name, and its arguments."""

    name: str
    is_module: bool = False
    arguments: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """Name of the program in a workload."""
        return f"-m {self.name}" if self.is_module else self.name


def parse_program(arguments: Sequence[str]) -> Program:
    """Parse the recorder's arguments; without a program, print the usage and exit with status 2.

    DeepSpeed's launcher puts ``--local_rank=N`` behind the first word of its program, which is the recorder's. It is
    the first argument of the program.

    >>> parse_program(["--", "train.py", "--steps", "3"]).arguments
    ('--steps', '3')
    >>> parse_program(["--local_rank=1", "train.py", "--steps", "3"]).arguments
    ('--local_rank=1', '--steps', '3')
    >>> parse_program(["--", "-m", "team.train"]).label
    '-m team.train'
    """
    words = list(arguments[1:] if arguments[:1] == ["--"] else arguments)
    added = words[:1] if words and words[0].startswith(_LOCAL_RANK) else []
    words = words[len(added) :]
    is_module = words[:1] == ["-m"]
    words = words[1:] if is_module else words
    if not words or words[0].startswith("-"):
        _end(USAGE)
    return Program(name=words[0], is_module=is_module, arguments=(*added, *words[1:]))


def prepare_main(program: Program) -> None:
    """Set ``sys.argv``, the first entry of ``sys.path`` and an empty ``__main__`` as Python does for ``program``."""
    sys.argv[:] = ["-m" if program.is_module else program.name, *program.arguments]
    if _is_container(program):
        sys.path.insert(0, _as_python_spells(program.name))
    elif not sys.flags.safe_path:
        sys.path.insert(0, str(Path.cwd() if program.is_module else Path(os.path.realpath(program.name)).parent))
    main = ModuleType("__main__")
    main.__dict__.update(__annotations__={}, __builtins__=builtins)
    sys.modules["__main__"] = main


def execute(program: Program) -> None:
    """Run ``program`` to its end after ``prepare_main``; its exceptions propagate."""
    if program.is_module:
        _run_module(program.name, alter_argv=True)
    elif _is_container(program):
        _run_module("__main__", alter_argv=False)
    else:
        _run_script(program.name)


def hide_own_frames(error: BaseException) -> None:
    """Show only the program's frames in the traceback of ``error``, which is about to end this process.

    Python's ``sys.excepthook``, or the one that the program has set, still prints the traceback.
    """
    previous_hook = sys.excepthook

    def report(kind: type[BaseException], value: BaseException, traceback: TracebackType | None) -> None:
        sys.excepthook = previous_hook
        if value is error:
            traceback = program_frames(traceback)
            value.__traceback__ = sys.last_traceback = traceback
        previous_hook(kind, value, traceback)

    sys.excepthook = report


def program_frames(traceback: TracebackType | None) -> TracebackType | None:
    """Return a traceback without the frames that lead to the program and without this package's frames inside it."""
    start = traceback
    while start is not None and start.tb_frame.f_code is not execute.__code__:
        start = start.tb_next
    first = _skip_own(start)
    current = first
    while current is not None:
        current.tb_next = _skip_own(current.tb_next)
        current = current.tb_next
    return first


def _skip_own(traceback: TracebackType | None) -> TracebackType | None:
    while traceback is not None and traceback.tb_frame.f_code.co_filename.startswith(_PACKAGE_FOLDER):
        traceback = traceback.tb_next
    return traceback


def _run_module(name: str, *, alter_argv: bool) -> None:
    # `python -m` calls this function too: tracebacks have the same frames.
    runpy._run_module_as_main(name, alter_argv)  # type: ignore[attr-defined]  # private


def _run_script(name: str) -> None:
    path = _as_python_spells(name)
    try:
        with io.open_code(path) as file:
            source = file.read()
    except OSError as error:
        _end(f"{sys.executable}: can't open file {path!r}: [Errno {error.errno}] {error.strerror}")
    main = sys.modules["__main__"]
    main.__dict__.update(__file__=path, __cached__=None, __loader__=SourceFileLoader("__main__", path))
    code = compile(source, path, "exec", dont_inherit=True)
    exec(code, main.__dict__)  # noqa: S102 - running a script executes its code


def _is_container(program: Program) -> bool:
    """Return whether the program is a folder or an archive, whose ``__main__`` module Python runs."""
    if program.is_module or program.name.endswith(".py"):
        return False
    from pkgutil import get_importer

    return get_importer(program.name) is not None


def _as_python_spells(name: str) -> str:
    return os.path.join(str(Path.cwd()), name)  # noqa: PTH118 - keeps "./" and "..", as Python does


def _end(message: str) -> NoReturn:
    sys.stderr.write(f"{message}\n")
    raise SystemExit(2)
