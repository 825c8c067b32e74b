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
from typing import TYPE_CHECKING

from torchx_cubicml.contract import CONTRACT_VARIABLE, decode_contract, encode_contract
from torchx_cubicml.errors import ContractError
from torchx_cubicml.own_process import own_command, own_environment
from torchx_cubicml.recorder.notice import warn
from torchx_cubicml.settings import export, read_job_environment, unset

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torchx_cubicml.contract import AsTyped, Contract
    from torchx_cubicml.recorder.run_program import Program

AGREE_S = 60.0  # for the other ranks to come, whose children load torch too
_STARTING_S = 60.0
# When the last process that holds the other end of its input is gone. What the program wrote there stays.
_SWEEPS = """cat >/dev/null
folder="$1"; shift
for last do :; done
find "$folder" -type l ! -newer "${last:-$folder}" -exec rm -f -- {} +
rm -f -- "$@"
find "$folder" -depth -type d -exec rmdir -- {} +
"""
_sweepers: list[subprocess.Popen[bytes]] = []


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
        answer = _ask(program, folder_of=os.getpid())
        args, env = _texts(answer["args"]), _variables(answer["env"])
    except Exception as error:  # noqa: BLE001 - no failure of ours may stop a launch
        return _as_typed(program, contract, str(error) or type(error).__name__, tells=job.local_rank == 0)
    export(env)
    return replace(program, arguments=args)


def _ask(program: Program, *, folder_of: int) -> Mapping[str, object]:
    """Return what the child process has done.

    Raises:
        ValueError: it could not, with the reason.
        OSError: it cannot be started.
        subprocess.SubprocessError: it died, or took too long.
    """
    done = subprocess.run(
        own_command("torchx_cubicml.recorder.file_copies", str(folder_of)),
        input=json.dumps(list(program.arguments)),
        env=own_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        timeout=AGREE_S + _STARTING_S,
        check=True,
    )
    answer = json.loads(done.stdout)
    if answer.get("folder"):
        _sweep(str(answer["folder"]), _texts(answer.get("copies", [])))
    if answer.get("refused"):
        raise ValueError(str(answer["refused"]))
    return dict(answer)


def _sweep(folder: str, copies: Sequence[str]) -> None:
    """Have copies and links removed when this process has ended, in whatever way, with all that it forked."""
    with suppress(OSError):  # no shell: all ranks have agreed by now, and a folder that stays is the lesser evil
        sweeper = subprocess.Popen(
            ["/bin/sh", "-c", _SWEEPS, "sh", folder, *copies],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # what ends this process's group must not end it
        )
        _sweepers.append(sweeper)


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


def _restore(way_back: AsTyped) -> None:
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
