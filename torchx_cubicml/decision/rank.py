"""One rank before its program runs: it learns with which arguments, and with which contract.

All of the work is done by a child process, so that the program finds no library loaded and no thread started, and a
decision that hangs or crashes ends there.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from typing import TYPE_CHECKING

from torchx_cubicml.contract import CONTRACT_VARIABLE
from torchx_cubicml.decision.answer import COMES, COUNTED_ON, Answer, deadline_s
from torchx_cubicml.own_process import own_command, own_environment
from torchx_cubicml.recorder.notice import warn
from torchx_cubicml.recorder.run_program import parse_program
from torchx_cubicml.settings import export, read_job_environment

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchx_cubicml.recorder.run_program import Program

_STARTING_S = 40.0  # for the child to load torch while all other ranks do
_ASKED, _ASKED_FOR_ALL = 2, 6  # children at most, and where others may count on this rank


def settle(arguments: Sequence[str]) -> list[str]:
    """Return the recorder's arguments as all ranks have agreed on them, and set the environment that goes with them.

    Where no agreement is reached, the program's arguments stay as typed.
    """
    program = parse_program(arguments)
    try:
        answer = _ask_again(program)
    except Exception as error:  # noqa: BLE001 - no failure of ours may stop a launch
        answer = Answer()
        if read_job_environment().rank == 0:
            warn(f"arguments stay as typed: {error}")
    _tell(answer.lines)
    export({**answer.env, **({CONTRACT_VARIABLE: answer.contract} if answer.contract else {})})
    script_args = program.arguments if answer.args is None else answer.args
    return ["--", *(["-m"] if program.is_module else []), program.name, *script_args]


def _tell(lines: Sequence[str]) -> None:
    with contextlib.suppress(AttributeError, OSError, ValueError):  # no stderr, or a closed one
        sys.stderr.write("".join(f"{line}\n" for line in lines))
        sys.stderr.flush()


def _ask_again(program: Program) -> Answer:
    """Return the answer of a child process, of another where one has died.

    As soon as one has said that this rank comes, the others may count on it: then it is asked for more often, and after
    one that hangs too.
    """
    # What the attempt before agreed on still stands, and the other ranks read it at once.
    comes, failed = read_job_environment().attempt[1] > 0, 0
    while True:
        try:
            return _ask(program, counted_on=comes)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired, ValueError, OSError) as error:
            comes = comes or _said_so(error)
            failed += 1
            if failed >= (_ASKED_FOR_ALL if comes else _ASKED) or (_hung(error) and not comes):
                raise


def _hung(error: Exception) -> bool:
    return isinstance(error, subprocess.TimeoutExpired)


def _said_so(error: Exception) -> bool:
    said = getattr(error, "stdout", None) or b""
    return (said if isinstance(said, bytes) else said.encode()).startswith(COMES.encode())


def _ask(program: Program, *, counted_on: bool) -> Answer:
    question = {"program": program.name, "is_module": program.is_module, "args": program.arguments}
    done = subprocess.run(
        own_command("torchx_cubicml.decision.agreement", *([COUNTED_ON] if counted_on else [])),
        input=json.dumps(question),
        env=own_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        timeout=deadline_s() + _STARTING_S,
        check=True,
    )
    return Answer.from_json(json.loads(done.stdout.removeprefix(COMES)))
