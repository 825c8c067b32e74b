"""Config files with other values, in copies of this process's own: made before the program runs, gone when it ended.

The work is done by a child process (``file_copies``), so that the program finds no library loaded. Where it cannot be
done on every rank alike, all ranks run the command as typed, which is told once and recorded.
"""

from __future__ import annotations

import json
import os
import subprocess
from contextlib import suppress
from dataclasses import replace
from typing import IO, TYPE_CHECKING

from torchx_cubicml.errors import ContractError
from torchx_cubicml.recorder.process.child import (
    COUNTED_ON,
    answer_of_a_child,
    own_command,
    said_by_child,
    why_no_answer,
)
from torchx_cubicml.recorder.process.console import warn
from torchx_cubicml.records.contract import CONTRACT_VARIABLE, decode_contract, encode_contract
from torchx_cubicml.settings import export, read_job_environment, unset

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torchx_cubicml.recorder.process.run_program import Program
    from torchx_cubicml.records.contract import Contract, TypedCommand

AGREE_S = 60.0  # for the other ranks to come, whose children load torch too
_LIMIT_S = AGREE_S + 60.0  # to start besides
_PREFIX = "torchx-cubicml-files-"
# When the last process that holds the other end of its input is gone. What the program wrote there stays: it is newer
# than the file that was written when all copies were made. Where there is no such file, the program has not seen them.
# The shell itself ends at once, so that a program that waits for all of its children does not wait for this one.
_SWEEPS = """exec 3<&0
{ cat >/dev/null
made="$1/made"
if [ -e "$made" ]; then
    find "$1" -type l ! -newer "$made" -exec rm -f -- {} +
    xargs -0 rm -f -- <"$made"
    rm -f -- "$1/answer.json" "$made"
    find "$1" -depth -type d -exec rmdir -- {} +
else
    rm -rf -- "$1"
fi; } <&3 3<&- &
"""
_held: list[IO[bytes]] = []


def with_config_files(program: Program) -> Program:
    """Return the program with the arguments that name its own copies of config files; most launches have none.

    Variables that name such files, and the contract of what is then launched, are set in this process's environment.
    """
    job = read_job_environment()
    try:
        contract = decode_contract(job.contract) if job.contract else None
    except ContractError:  # told by who opens the session
        return program
    if contract is None or not contract.files:
        return program
    try:
        folder = _folder()
        answer = answer_of_a_child(
            lambda counts: _ask(program, folder, counted_on=counts), counted_on=False, within_s=_LIMIT_S
        )
        args, env = _read(answer)
    except Exception as error:  # noqa: BLE001 - no failure of ours may stop a launch
        _let_go()
        return _as_typed(program, contract, why_no_answer(error), tells=job.local_rank == 0)
    export(env)
    return replace(program, arguments=args)


def _folder() -> str:
    """Return the folder for the copies of this process, which goes when it ends, in whatever way; empty without one."""
    import tempfile

    chosen = tempfile.tempdir
    try:
        folder = tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-")
    except OSError:
        return ""
    finally:
        tempfile.tempdir = chosen  # the program may choose another
    with suppress(OSError):  # no shell: a folder that stays is the lesser evil
        sweeper = subprocess.Popen(
            ["/bin/sh", "-c", _SWEEPS, "sh", folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # what ends this process's group must not end it
        )
        if sweeper.stdin is not None:
            _held.append(sweeper.stdin)
        sweeper.wait()
    return folder


def _let_go() -> None:
    """Have the folder swept now: the program runs without it."""
    while _held:
        _held.pop().close()


def _ask(program: Program, folder: str, *, counted_on: bool) -> Mapping[str, object]:
    words = (folder, *([COUNTED_ON] if counted_on else []))
    command = own_command("torchx_cubicml.recorder.apply.config_copies", *words)
    answer = json.loads(said_by_child(command, json.dumps(list(program.arguments)), within_s=_LIMIT_S))
    return dict(answer)


def _read(answer: Mapping[str, object]) -> tuple[tuple[str, ...], dict[str, str]]:
    if answer.get("refused"):
        raise ValueError(str(answer["refused"]))
    return _texts(answer["args"]), _variables(answer["env"])


def _as_typed(program: Program, contract: Contract, reason: str, *, tells: bool) -> Program:
    if contract.launch_id:  # of a tune, which must not write where the user's own launches do
        raise SystemExit(
            f"torchx-cubicml: this launch of a tune ends, for its config files cannot be changed: {reason}"
        )
    if tells:
        warn(f"this launch runs as typed, for its config files cannot be changed: {reason}")
    typed = replace(contract.typed(), refused=reason[:400])
    export({CONTRACT_VARIABLE: encode_contract(typed)})
    if contract.as_typed is None:
        return program
    _restore(contract.as_typed)
    return replace(program, arguments=contract.as_typed.args)


def _restore(way_back: TypedCommand) -> None:
    export({name: text for name, text in way_back.env.items() if text is not None})
    unset([name for name, text in way_back.env.items() if text is None])


def _texts(value: object) -> tuple[str, ...]:
    if isinstance(value, list) and all(isinstance(word, str) for word in value):
        return tuple(map(str, value))
    raise ValueError("its child process gave no answer")


def _variables(value: object) -> dict[str, str]:
    if isinstance(value, dict):
        return {str(name): str(text) for name, text in value.items()}
    raise ValueError("its child process gave no answer")
