"""Child processes of this package: their command and environment, and their answers with retries."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TypeVar

from torchx_cubicml.settings import child_environment

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


# -P leaves out the working directory; entries of PYTHONPATH stay, but after the standard library.
_START = """import os, sys
library = os.path.dirname(os.__file__)
sys.path.sort(key=lambda entry: entry not in {library, library + "/lib-dynload"})
from importlib import import_module
import_module(sys.argv.pop(1)).main()
"""


def child_command(module: str, *arguments: str) -> list[str]:
    """Return the command of a child process that calls ``main`` of a module of this package, without warnings.

    >>> child_command("torchx_cubicml.recorder.events.writer")[-1]
    'torchx_cubicml.recorder.events.writer'
    """
    return [sys.executable, "-P", "-W", "ignore", "-c", _START, module, *arguments]


def child_process_environment() -> dict[str, str]:
    """Return the environment in which a child process finds this package, installed or not."""
    environment = child_environment({})
    folder = str(Path(__file__).absolute().parents[3])
    path = [entry for entry in (environment.get("PYTHONPATH"), folder) if entry]
    return {**environment, "PYTHONPATH": os.pathsep.join(path)}


JOINED = "comes\n"  # printed by a child before its answer, once other ranks may rely on its rank
RELIED_ON = "counted-on"  # argument of a child when other ranks already rely on its rank
FAILED = "fails: "  # printed by a child in place of an answer; the reason follows
_MAX_ATTEMPTS, _MAX_ATTEMPTS_RELIED_ON = 2, 6  # children started; the second once other ranks may rely on this one

T = TypeVar("T")


def ask_with_retries(ask: Callable[[bool], T], *, counted_on: bool, within_s: float) -> T:
    """Return the answer of a child process, and retry with a new child if one fails.

    Once a child has printed ``JOINED``, other ranks may rely on this one: then there are more retries, also after a
    child that hangs.

    Args:
        ask: starts a child, given whether other ranks rely on this one; raises as ``run_child`` does.
        counted_on: whether other ranks rely on this one from the start.
        within_s: seconds after which no child is started, except a second one if other ranks rely on this one.

    Raises:
        OSError: no child can be started.
        ValueError: the last child has given no readable answer.
        subprocess.SubprocessError: the last child has given no answer.
    """
    end, failed = time.monotonic() + within_s, 0
    while True:
        try:
            return ask(counted_on)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired, ValueError, OSError) as error:
            counted_on = counted_on or _output(error).startswith(JOINED)
            failed += 1
            limit = _MAX_ATTEMPTS_RELIED_ON if counted_on else _MAX_ATTEMPTS
            if failed >= limit or (_has_hung(error) and not counted_on):
                raise
            if time.monotonic() > end and not (counted_on and failed == 1):
                raise


def run_child(command: Sequence[str], question: str, *, within_s: float) -> str:
    """Run a child process and return its output without the leading ``JOINED``.

    Raises:
        OSError: the child cannot be started.
        subprocess.SubprocessError: the child has failed or timed out; the error holds its output up to then.
    """
    with subprocess.Popen(
        command,
        env=child_process_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as child:
        try:
            output, _ = child.communicate(question, timeout=within_s)
        except subprocess.TimeoutExpired as error:
            child.kill()
            output, _ = child.communicate()  # it may have printed JOINED in the meantime
            raise subprocess.TimeoutExpired(command, within_s, output=output) from error
    if child.returncode:
        raise subprocess.CalledProcessError(child.returncode, command, output=output)
    return output.removeprefix(JOINED)


def answer_as_child(agree: Callable[[Callable[[], None]], str], alone: Callable[[str], str]) -> NoReturn:
    """Write the answer of this child process to standard output, and end the process, even while a thread hangs.

    Where other ranks may rely on this one and it fails, the exit status is 1: the parent then starts another child.

    Args:
        agree: returns the answer; it is given what to call before other ranks can rely on this one.
        alone: returns the answer for the reason why ``agree`` failed, if no rank relies on this one.
    """
    written: list[str] = []

    def write(text: str) -> None:
        written.append(text)
        sys.stdout.write(text)
        sys.stdout.flush()

    try:
        answer = agree(lambda: write(JOINED))
    except Exception as error:  # noqa: BLE001 - a job whose TCPStore is lost must go on
        reason = f"{type(error).__name__}: {error}"
        if written or RELIED_ON in sys.argv[1:]:
            write(f"{FAILED}the ranks cannot agree: {reason}")
            os._exit(1)
        answer = alone(reason)
    write(answer)
    os._exit(0)


def failure_reason(error: Exception) -> str:
    """Return the reason for a missing answer, in words."""
    reason = _output(error).partition(FAILED)[2].strip()
    if isinstance(error, subprocess.TimeoutExpired):
        return f"the helper process did not answer within {error.timeout:g} s"
    if isinstance(error, subprocess.CalledProcessError):
        how = f"was killed by signal {-error.returncode}" if error.returncode < 0 else "failed"
        return reason or f"the helper process {how}"
    return str(error) or type(error).__name__


def _has_hung(error: Exception) -> bool:
    return isinstance(error, subprocess.TimeoutExpired)


def _output(error: Exception) -> str:
    output = getattr(error, "stdout", None) or ""
    return output.decode(errors="replace") if isinstance(output, bytes) else str(output)
