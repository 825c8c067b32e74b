"""Command of a process whose config files change: it names temporary copies, which are removed when the process ends.

A child process (``config_copies``) makes the copies, so that no library is loaded when the program starts. If any rank
cannot make them, all ranks run the command as typed, with one warning and a record of the reason.
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
    RELIED_ON,
    ask_with_retries,
    child_command,
    failure_reason,
    run_child,
)
from torchx_cubicml.recorder.process.console import warn
from torchx_cubicml.records.contract import CONTRACT_VARIABLE, decode_contract, encode_contract
from torchx_cubicml.settings import export, read_job_environment, unset

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torchx_cubicml.recorder.process.run_program import Program
    from torchx_cubicml.records.contract import Contract, TypedCommand

AGREE_S = 60.0  # time for the ranks to agree, as each one's child loads torch first
_LIMIT_S = AGREE_S + 60.0  # with time to start the child
_PREFIX = "torchx-cubicml-files-"
# Cleans up when the last process that holds the other end of its input has ended. Files and links of the program stay:
# its links are newer than ``made``, which is written after all copies. Without ``made`` the program has not seen the
# copies, and the whole folder is removed. The shell ends at once, so that a program that waits for all of its children
# does not wait for this one.
_CLEANUP_SCRIPT = """exec 3<&0
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
_cleaner_inputs: list[IO[bytes]] = []


def with_config_files(program: Program) -> Program:
    """Return the program with arguments that name edited copies of its config files; most launches have none.

    Variables that name such files are set in this process's environment. If the launch must run as typed, so are the
    variables and the contract of that.
    """
    job = read_job_environment()
    try:
        contract = decode_contract(job.contract) if job.contract else None
    except ContractError:  # open_session reports it
        return program
    if contract is None or not contract.files:
        return program
    try:
        folder = _folder()
        answer = ask_with_retries(
            lambda counted_on: _run_child(program, folder, counted_on=counted_on), counted_on=False, within_s=_LIMIT_S
        )
        args, env = _read(answer)
    except Exception as error:  # noqa: BLE001 - a recorder failure must not stop a launch
        _clean_up()
        return _as_typed(program, contract, failure_reason(error), warns=job.local_rank == 0)
    export(env)
    return replace(program, arguments=args)


def _folder() -> str:
    """Make a temporary folder for the copies, removed however this process ends; return an empty path on failure."""
    import tempfile

    previous = tempfile.tempdir
    try:
        folder = tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-")
    except OSError:
        return ""
    finally:
        tempfile.tempdir = previous  # mkdtemp sets it, but the program may choose another
    with suppress(OSError):  # without a shell, the folder is left behind
        cleaner = subprocess.Popen(
            ["/bin/sh", "-c", _CLEANUP_SCRIPT, "sh", folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # a signal to this process's group must not end it
        )
        if cleaner.stdin is not None:
            _cleaner_inputs.append(cleaner.stdin)
        cleaner.wait()
    return folder


def _clean_up() -> None:
    """Have the folder removed now, as the program runs without it."""
    while _cleaner_inputs:
        _cleaner_inputs.pop().close()


def _run_child(program: Program, folder: str, *, counted_on: bool) -> Mapping[str, object]:
    words = (folder, *([RELIED_ON] if counted_on else []))
    command = child_command("torchx_cubicml.recorder.apply.config_copies", *words)
    answer = json.loads(run_child(command, json.dumps(list(program.arguments)), within_s=_LIMIT_S))
    return dict(answer)


def _read(answer: Mapping[str, object]) -> tuple[tuple[str, ...], dict[str, str]]:
    if answer.get("refused"):
        raise ValueError(str(answer["refused"]))
    return _argument_list(answer["args"]), _variables(answer["env"])


def _as_typed(program: Program, contract: Contract, reason: str, *, warns: bool) -> Program:
    if contract.launch_id:  # a launch of a tune must not write to the outputs of the user's own launches
        raise SystemExit(
            f"torchx-cubicml: stopping this launch of a tune: its config files cannot be changed: {reason}"
        )
    if warns:
        warn(f"running your command as typed: its config files cannot be changed: {reason}")
    typed = replace(contract.typed(), refused=reason[:400])
    export({CONTRACT_VARIABLE: encode_contract(typed)})
    if contract.as_typed is None:
        return program
    _restore(contract.as_typed)
    return replace(program, arguments=contract.as_typed.args)


def _restore(typed: TypedCommand) -> None:
    export({name: text for name, text in typed.env.items() if text is not None})
    unset([name for name, text in typed.env.items() if text is None])


def _argument_list(value: object) -> tuple[str, ...]:
    if isinstance(value, list) and all(isinstance(argument, str) for argument in value):
        return tuple(map(str, value))
    raise ValueError("the helper process gave no answer")


def _variables(value: object) -> dict[str, str]:
    if isinstance(value, dict):
        return {str(name): str(text) for name, text in value.items()}
    raise ValueError("the helper process gave no answer")
