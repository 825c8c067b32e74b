"""Main function of a recorded process: runs the program and records it without changing its outcome."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from torchx_cubicml.recorder.process.import_path import unload_shadowed_modules
from torchx_cubicml.recorder.process.run_program import execute, hide_own_frames, parse_program, prepare_main

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torchx_cubicml.recorder.process.run_program import Program
    from torchx_cubicml.recorder.session import Session


def main(arguments: Sequence[str], *, before: frozenset[str], path: Sequence[str] | None = None) -> None:
    """Run the program that the arguments name as Python would; its exceptions and exits propagate unchanged.

    Args:
        arguments: of the recorder.
        before: names of the modules that were loaded before any module of this package.
        path: module search path of the program without its own folder; by default the current ``sys.path``.
    """
    program = parse_program(arguments)
    # Imported before the program's folder is first on sys.path, where its resource.py would shadow the library's.
    open_session = _load()
    program = _with_config_files(program)
    sys.path[:] = path if path is not None else sys.path
    prepare_main(program)
    unload_shadowed_modules(before)
    session = _open(open_session, program)
    try:
        execute(program)
    except SystemExit as exit_:
        if session is not None:
            session.exited(exit_)
        raise
    except BaseException as error:
        hide_own_frames(error)
        with suppress(KeyboardInterrupt):  # a second one, while the end is recorded
            if session is not None:
                session.failed(error)
        raise
    if session is not None:
        session.completed()


def _load() -> Callable[[Program], Session | None] | None:
    try:
        from torchx_cubicml.recorder.own_ranks.watch import watch_own_ranks
        from torchx_cubicml.recorder.session import open_session
    except Exception as error:  # noqa: BLE001 - a recorder failure must not stop a launch
        _warn(error)
        return None

    def open_watched(program: Program) -> Session | None:
        session = open_session(program)
        if session is not None:
            session.guarded(watch_own_ranks)(session)
        return session

    return open_watched


def _with_config_files(program: Program) -> Program:
    """Return the program with edited copies of its config files; warn and return it unchanged if that fails."""
    try:
        from torchx_cubicml.recorder.apply.config_files import with_config_files

        return with_config_files(program)
    except Exception as error:  # noqa: BLE001 - a recorder failure must not stop a launch
        from torchx_cubicml.recorder.process.console import warn

        warn(f"config files unchanged: {error}")
        return program


def _open(open_session: Callable[[Program], Session | None] | None, program: Program) -> Session | None:
    """Return the session that records this process; warn once and return ``None`` if it cannot be recorded."""
    if open_session is None:
        return None
    try:
        return open_session(program)
    except Exception as error:  # noqa: BLE001 - a recorder failure must not stop a launch
        _warn(error)
        return None


def _warn(error: Exception) -> None:
    from torchx_cubicml.recorder.process.console import warn

    warn(f"this launch is not recorded: {error}")
