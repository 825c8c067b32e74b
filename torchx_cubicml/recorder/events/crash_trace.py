"""What is left of a process that a signal has ended: a few lines that Python's C run time has written on the way.

They go to memory that the writer holds, too. No handler of Python's own is set: the program finds the signals as they
are without us, ends by them as it does without us, and whatever it sets itself takes the place of this.
"""

from __future__ import annotations

import faulthandler
import os
import re
import signal
from contextlib import suppress
from pathlib import Path

from torchx_cubicml.recorder.events.failures import state_in_words
from torchx_cubicml.records.trial import State

ENDED_BY_SIGTERM = "ended by SIGTERM: a preemption, or torchrun after another process was lost"
_MAX_READ = 1 << 14
_FATAL = re.compile(r"^Fatal Python error: (.+)$", re.MULTILINE)
_TOLD_AS = {"Aborted": "SIGABRT", "Segmentation fault": "SIGSEGV"}
_TELLING = re.compile(r"watchdog|NCCL|out of memory|terminate called|what\(\):|timed? ?out|error", re.IGNORECASE)
_MAX_LINES = 4
_OF_PYTHON = "Stack ("  # begins the frames of a thread that runs Python


class CrashTrace:
    """Where the C run time writes when a signal ends this process; without Linux's memory files nowhere."""

    def __init__(self) -> None:
        self.file: int | None = None
        self._listens_to_faults = False

    def listen(self) -> None:
        """Have SIGTERM and faults leave a word, and then do what they do without us."""
        with suppress(AttributeError, OSError):
            self.file = os.memfd_create("torchx-cubicml")
        if self.file is None:
            return
        faulthandler.register(signal.SIGTERM, file=self.file, all_threads=False, chain=True)
        if not faulthandler.is_enabled():
            faulthandler.enable(file=self.file, all_threads=False)
            self._listens_to_faults = True

    def forget(self) -> None:
        """Leave no word any more, as in a forked child."""
        if self.file is None:
            return
        faulthandler.unregister(signal.SIGTERM)
        if self._listens_to_faults:
            faulthandler.disable()
        os.close(self.file)
        self.file = None


def read_words(file: int) -> str:
    """Return what was written to a memory file."""
    try:
        return os.pread(file, _MAX_READ, 0).decode(errors="replace")
    except OSError:
        return ""


def read_tail(path: str) -> str:
    """Return the end of a file, where it can be read; empty otherwise."""
    try:
        with Path(path).open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(file.tell() - _MAX_READ, 0))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def end_told_by(words: str, stderr: str, *, backend: object = None) -> tuple[State, str] | None:
    """Return how a process ended, as far as its last words tell; ``None`` without any.

    Args:
        words: of the C run time.
        stderr: the end of what the process has written there; empty where nobody keeps it.
        backend: of its collectives.

    >>> end_told_by("Fatal Python error: Segmentation fault", "")
    (<State.UNKNOWN: 'unknown'>, 'ended by SIGSEGV')
    """
    fatal = _FATAL.search(words)
    if fatal is None:
        return (State.INFRASTRUCTURE, ENDED_BY_SIGTERM) if words else None
    reason = f"ended by {_TOLD_AS.get(fatal[1], fatal[1])}"
    telling = [line.strip() for line in stderr.splitlines() if _TELLING.search(line)][-_MAX_LINES:]
    told = state_in_words("\n".join(telling))
    if told is not None:
        return told, "\n".join([reason, *telling])
    # A thread that runs no Python, while NCCL is in use: its watchdog ends the process so.
    if fatal[1] == "Aborted" and _OF_PYTHON not in words and "nccl" in str(backend):
        return State.INFRASTRUCTURE, f"{reason} from outside of Python, as NCCL's watchdog does"
    return State.UNKNOWN, reason
