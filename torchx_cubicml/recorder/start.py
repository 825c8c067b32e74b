"""One recorded process from start to end: the program runs, and what is told of it never changes how it ends."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from torchx_cubicml.recorder.process.run_program import execute, hide_own_frames, parse_program, take_place

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torchx_cubicml.recorder.process.run_program import Program
    from torchx_cubicml.recorder.session import Session


def main(arguments: Sequence[str], *, before: frozenset[str], path: Sequence[str] | None = None) -> None:
    """Run the program that the arguments name as Python would; exceptions and exits are the program's own.

    Args:
        arguments: the recorder's own.
        before: names of the modules that were loaded before any of ours.
        path: where the program looks for modules, its own folder aside; as it stands by default.
    """
    program = parse_program(arguments)
    # Ours first: once the program's folder leads the search path, its resource.py would stand for the library's.
    open_session = _load()
    program = _with_config_files(program)
    sys.path[:] = path if path is not None else sys.path
    take_place(program)
    give_names_back(before)
    session = _open(open_session, program)
    try:
        execute(program)
    except SystemExit as exit_:
        if session is not None:
            session.exited(exit_)
        raise
    except BaseException as error:
        if session is not None:
            session.failed(error)
        hide_own_frames(error)
        raise
    if session is not None:
        session.completed()


def give_names_back(before: frozenset[str]) -> None:
    """Forget the library's modules that came since ``before`` and whose names the program uses for its own.

    They lie in its folder or on PYTHONPATH. The program then imports its own, as it does without us; what we hold of
    the library's stays ours.
    """
    library = os.path.dirname(os.__file__)  # noqa: PTH120 - pathlib is not needed yet
    first = sys.path.index(library) if library in sys.path else 1
    own = {name.partition(".")[0] for entry in sys.path[: max(first, 1)] for name in _names_in(entry)}
    for name in set(sys.modules) - before:
        top = name.partition(".")[0]
        if top in own and top not in {"torchx_cubicml", "__main__"}:
            del sys.modules[name]


def _names_in(entry: str) -> list[str]:
    try:
        return os.listdir(entry or os.curdir)  # noqa: PTH208 - names are all it takes
    except OSError:  # an archive
        return []


def _load() -> Callable[[Program], Session | None] | None:
    try:
        from torchx_cubicml.recorder.session import open_session
    except Exception as error:  # noqa: BLE001 - no failure of ours may stop a launch
        _warn(error)
        return None
    return open_session


def _with_config_files(program: Program) -> Program:
    """Return the program as its launch wants it; as it came, and one warning, where that fails."""
    try:
        from torchx_cubicml.recorder.apply.config_files import with_config_files

        return with_config_files(program)
    except Exception as error:  # noqa: BLE001 - no failure of ours may stop a launch
        from torchx_cubicml.recorder.process.console import warn

        warn(f"config files stay as they are: {error}")
        return program


def _open(open_session: Callable[[Program], Session | None] | None, program: Program) -> Session | None:
    """Return the session that records this process; ``None``, and one warning, where it cannot be recorded."""
    if open_session is None:
        return None
    try:
        return open_session(program)
    except Exception as error:  # noqa: BLE001 - no failure of ours may stop a launch
        _warn(error)
        return None


def _warn(error: Exception) -> None:
    from torchx_cubicml.recorder.process.console import warn

    warn(f"this launch is not recorded: {error}")
