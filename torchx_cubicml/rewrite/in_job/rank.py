"""Every rank of a job whose config is decided in the job: it asks a child process, waits for the answer, and runs."""

from __future__ import annotations

import contextlib
import json
import sys
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Self

from torchx_cubicml.launch.messages import KEPT, message_line
from torchx_cubicml.recorder.attempt.notes import AttemptNotes
from torchx_cubicml.recorder.process.child import (
    RELIED_ON,
    ask_with_retries,
    child_command,
    failure_reason,
    run_child,
)
from torchx_cubicml.recorder.process.console import warn
from torchx_cubicml.recorder.process.run_program import parse_program
from torchx_cubicml.records.contract import CONTRACT_VARIABLE
from torchx_cubicml.settings import export, read_job_environment, seconds_option

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torchx_cubicml.recorder.process.run_program import Program


DEADLINE_S = 20.0  # for rank 0 to read the store (5 s), to decide, and for all ranks to join


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Answer for one rank: the arguments, environment and contract that it runs with.

    Args:
        args: arguments of the program; ``None`` to keep those that were typed.
        env: additional environment variables.
        contract: encoded contract of the launch; empty if there is none.
        second: encoded contract of a second attempt as typed; empty if the launch has none.
        lines: messages that this rank prints to stderr.
    """

    args: tuple[str, ...] | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    contract: str = ""
    second: str = ""
    lines: tuple[str, ...] = ()

    @classmethod
    def from_json(cls, payload: Mapping[str, object]) -> Self:
        """Decode the object written by ``to_json``.

        Raises:
            ValueError: the object is damaged.
        """
        args, env, contract, lines = (payload.get(name) for name in ("args", "env", "contract", "lines"))
        second = payload.get("second", "")
        are_texts = isinstance(contract, str) and isinstance(second, str)
        if not (isinstance(env, dict) and are_texts and isinstance(lines, list)):
            raise ValueError("the answer is damaged")
        return cls(
            args=tuple(map(str, args)) if isinstance(args, list) else None,
            env={str(name): str(value) for name, value in env.items()},
            contract=str(contract),
            second=str(second),
            lines=tuple(map(str, lines)),
        )

    def to_json(self) -> str:
        """Encode the answer as one line of JSON."""
        return json.dumps(asdict(self))

    def because(self, reason: str) -> Self:
        """Return a copy with one more line: the reason why the arguments stay as typed."""
        return replace(self, lines=(*self.lines, message_line(f"{KEPT}: {reason}")))


def deadline_s() -> float:
    """Return the deadline of a decision in seconds."""
    return seconds_option("decision_deadline_s", DEADLINE_S)


_STARTING_S = 40.0  # for the child process to import torch while all other ranks do


def settle(arguments: Sequence[str]) -> list[str]:
    """Return the recorder's arguments that all ranks have agreed on, and set the environment that belongs to them.

    If the ranks cannot agree, the program's arguments stay as typed.
    """
    program = parse_program(arguments)
    try:
        answer = _ask_with_retries(program)
    except Exception as error:  # noqa: BLE001 - no failure of ours may stop a launch
        answer = Answer()
        if read_job_environment().rank == 0:
            warn(f"{KEPT}: {failure_reason(error)}")
    _print_lines(answer.lines)
    export({**answer.env, **({CONTRACT_VARIABLE: answer.contract} if answer.contract else {})})
    job = read_job_environment()
    if answer.second and job.attempt_folder:
        AttemptNotes(job.attempt_folder, job.rank).rewritten(answer.second)
    script_args = program.arguments if answer.args is None else answer.args
    return ["--", *(["-m"] if program.is_module else []), program.name, *script_args]


def _print_lines(lines: Sequence[str]) -> None:
    with contextlib.suppress(AttributeError, OSError, ValueError):  # no stderr, or a closed one
        sys.stderr.write("".join(f"{line}\n" for line in lines))
        sys.stderr.flush()


def _ask_with_retries(program: Program) -> Answer:
    job, limit_s = read_job_environment(), deadline_s() + _STARTING_S
    # After a restart, the verdict of the attempt before still holds; the other ranks read it at once from the TCPStore.
    counted_on = job.attempt[1] > 0 and job.store_address is not None
    return ask_with_retries(lambda counts: _ask(program, counted_on=counts), counted_on=counted_on, within_s=limit_s)


def _ask(program: Program, *, counted_on: bool) -> Answer:
    question = {"program": program.name, "is_module": program.is_module, "args": program.arguments}
    command = child_command("torchx_cubicml.rewrite.in_job.decider", *([RELIED_ON] if counted_on else []))
    reply = run_child(command, json.dumps(question), within_s=deadline_s() + _STARTING_S)
    return Answer.from_json(json.loads(reply))
