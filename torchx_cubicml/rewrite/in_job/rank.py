"""One rank before its program runs: it learns with which arguments, and with which contract.

All of the work is done by a child process, so that the program finds no library loaded and no thread started, and a
decision that hangs or crashes ends there.
"""

from __future__ import annotations

import contextlib
import json
import sys
from typing import TYPE_CHECKING

from torchx_cubicml.recorder.process.console import warn
from torchx_cubicml.recorder.process.own_child import COUNTED_ON, answer_of_a_child, said_by_child, why_no_answer
from torchx_cubicml.recorder.process.own_process import own_command
from torchx_cubicml.recorder.process.run_program import parse_program
from torchx_cubicml.records.contract import CONTRACT_VARIABLE
from torchx_cubicml.rewrite.in_job.answer import Answer, deadline_s
from torchx_cubicml.settings import export, read_job_environment

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchx_cubicml.recorder.process.run_program import Program

_STARTING_S = 40.0  # for the child to load torch while all other ranks do


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
            warn(f"arguments stay as typed: {why_no_answer(error)}")
    _tell(answer.lines)
    export({**answer.env, **({CONTRACT_VARIABLE: answer.contract} if answer.contract else {})})
    script_args = program.arguments if answer.args is None else answer.args
    return ["--", *(["-m"] if program.is_module else []), program.name, *script_args]


def _tell(lines: Sequence[str]) -> None:
    with contextlib.suppress(AttributeError, OSError, ValueError):  # no stderr, or a closed one
        sys.stderr.write("".join(f"{line}\n" for line in lines))
        sys.stderr.flush()


def _ask_again(program: Program) -> Answer:
    job, limit_s = read_job_environment(), deadline_s() + _STARTING_S
    # What the attempt before agreed on still stands, and the other ranks read it at once, where there is a place.
    counted_on = job.attempt[1] > 0 and job.store_address is not None
    return answer_of_a_child(lambda counts: _ask(program, counted_on=counts), counted_on=counted_on, within_s=limit_s)


def _ask(program: Program, *, counted_on: bool) -> Answer:
    question = {"program": program.name, "is_module": program.is_module, "args": program.arguments}
    command = own_command("torchx_cubicml.rewrite.in_job.agreement", *([COUNTED_ON] if counted_on else []))
    said = said_by_child(command, json.dumps(question), within_s=deadline_s() + _STARTING_S)
    return Answer.from_json(json.loads(said))
