"""Child processes of the recorder: their command, environment and main."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from torchx_cubicml.settings import child_environment

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


# -P leaves the working directory out; what lies on PYTHONPATH still comes, after the standard library.
_START = """import os, sys
library = os.path.dirname(os.__file__)
sys.path.sort(key=lambda entry: entry not in {library, library + "/lib-dynload"})
from importlib import import_module
import_module(sys.argv.pop(1)).main()
"""


def own_command(module: str, *arguments: str) -> list[str]:
    """Return the command that calls ``main`` of a module of ours, in quiet.

    >>> own_command("torchx_cubicml.recorder.events.writer")[-1]
    'torchx_cubicml.recorder.events.writer'
    """
    return [sys.executable, "-P", "-W", "ignore", "-c", _START, module, *arguments]


def own_environment() -> dict[str, str]:
    """Return the environment in which such a process finds this package, installed or not."""
    environment = child_environment({})
    folder = str(Path(__file__).absolute().parents[3])
    path = [entry for entry in (environment.get("PYTHONPATH"), folder) if entry]
    return {**environment, "PYTHONPATH": os.pathsep.join(path)}


COMES = "comes\n"  # what a child says before its answer, when the other ranks may begin to count on its rank
COUNTED_ON = "counted-on"  # what a child is started with, when they do already
FAILS = "fails: "  # what a child says in place of an answer; the reason follows
_ASKED, _ASKED_FOR_ALL = 2, 6  # children at most, and where others may count on this rank

T = TypeVar("T")


def answer_of_a_child(ask: Callable[[bool], T], *, counted_on: bool, within_s: float) -> T:
    """Return the answer of a child, of another where one has died.

    As soon as one has said that this rank comes, the others may count on it: then it is asked for more often, and after
    one that hangs too.

    Args:
        ask: starts a child, which is told whether others count on this rank; raises as ``said_by_child`` does.
        counted_on: whether they do from the start.
        within_s: seconds after which no other child is started, but for a second one where others count on this rank.

    Raises:
        OSError: no child can be started.
        ValueError: the last one has given no answer that can be read.
        subprocess.SubprocessError: it has given none at all.
    """
    end, failed = time.monotonic() + within_s, 0
    while True:
        try:
            return ask(counted_on)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired, ValueError, OSError) as error:
            counted_on = counted_on or _said(error).startswith(COMES)
            failed += 1
            if failed >= (_ASKED_FOR_ALL if counted_on else _ASKED) or (_hung(error) and not counted_on):
                raise
            if time.monotonic() > end and not (counted_on and failed == 1):
                raise


def said_by_child(command: Sequence[str], question: str, *, within_s: float) -> str:
    """Return what a child has said, except that its rank comes.

    Raises:
        OSError: it cannot be started.
        subprocess.SubprocessError: it has died, or said nothing in time; with all that it has said until then.
    """
    with subprocess.Popen(
        command,
        env=own_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as child:
        try:
            said, _ = child.communicate(question, timeout=within_s)
        except subprocess.TimeoutExpired as error:
            child.kill()
            said, _ = child.communicate()  # it may have come in the meantime
            raise subprocess.TimeoutExpired(command, within_s, output=said) from error
    if child.returncode:
        raise subprocess.CalledProcessError(child.returncode, command, output=said)
    return said.removeprefix(COMES)


def why_no_answer(error: Exception) -> str:
    """Return in words why there is none."""
    reason = _said(error).partition(FAILS)[2].strip()
    if isinstance(error, subprocess.TimeoutExpired):
        return f"the process of ours that works it out did not answer within {error.timeout:g} s"
    if isinstance(error, subprocess.CalledProcessError):
        how = f"was ended by signal {-error.returncode}" if error.returncode < 0 else "failed"
        return reason or f"the process of ours that works it out {how}"
    return str(error) or type(error).__name__


def _hung(error: Exception) -> bool:
    return isinstance(error, subprocess.TimeoutExpired)


def _said(error: Exception) -> str:
    said = getattr(error, "stdout", None) or ""
    return said.decode(errors="replace") if isinstance(said, bytes) else str(said)
