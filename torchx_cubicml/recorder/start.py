"""One recorded process from start to end: the program runs, and what is told of it never changes how it ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchx_cubicml.recorder.run_program import execute, hide_own_frames, parse_program, take_place

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchx_cubicml.recorder.run_program import Program
    from torchx_cubicml.recorder.session import Session


def main(arguments: Sequence[str]) -> None:
    """Run the program that the arguments name as Python would; exceptions and exits are the program's own."""
    program = parse_program(arguments)
    take_place(program)
    session = _open(program)
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


def _open(program: Program) -> Session | None:
    """Return the session that records this process; ``None``, and one warning, where it cannot be recorded."""
    try:
        from torchx_cubicml.recorder.session import open_session

        return open_session(program)
    except Exception as error:  # noqa: BLE001  no failure of ours may stop a launch
        from torchx_cubicml.recorder.notice import warn

        warn(f"this launch is not recorded: {error}")
        return None
