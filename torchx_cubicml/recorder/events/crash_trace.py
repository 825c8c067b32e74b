"""Crash trace of a process ended by a signal: the lines that Python's ``faulthandler`` writes before the end.

They go to a memory file that the writer process also holds. No Python-level signal handler is set. So the program's
signals work as without us, and handlers that the program sets replace ours.
"""

from __future__ import annotations

import faulthandler
import os
import re
import signal
from contextlib import suppress
from pathlib import Path

from torchx_cubicml.recorder.events.failures import state_from_message
from torchx_cubicml.records.memory_failure import OUT_OF_MEMORY
from torchx_cubicml.records.trial import State

ENDED_BY_SIGTERM = "ended by SIGTERM: a preemption, or torchrun after another process was lost"
_MAX_READ = 1 << 14
_FATAL = re.compile(r"^Fatal Python error: (.+)$", re.MULTILINE)
_SIGNAL_NAMES = {"Aborted": "SIGABRT", "Segmentation fault": "SIGSEGV"}
_CAUSE = re.compile(rf"(?i:watchdog|NCCL|terminate called|what\(\):|timed? ?out|error)|{OUT_OF_MEMORY.pattern}")
_MAX_LINES = 4
_PYTHON_FRAMES = "Stack ("  # begins the frames of a thread that runs Python


class CrashTrace:
    """Memory file for ``faulthandler`` output when a signal ends this process; absent without Linux's ``memfd``."""

    def __init__(self) -> None:
        self.file: int | None = None
        self._handles_faults = False

    def listen(self) -> None:
        """Register ``faulthandler`` for SIGTERM and faults, which then act as without us."""
        with suppress(AttributeError, OSError):
            self.file = os.memfd_create("torchx-cubicml")
        if self.file is None:
            return
        faulthandler.register(signal.SIGTERM, file=self.file, all_threads=False, chain=True)
        if not faulthandler.is_enabled():
            faulthandler.enable(file=self.file, all_threads=False)
            self._handles_faults = True

    def forget(self) -> None:
        """Unregister from ``faulthandler`` and close the file, as in a forked child."""
        if self.file is None:
            return
        faulthandler.unregister(signal.SIGTERM)
        if self._handles_faults:
            faulthandler.disable()
        os.close(self.file)
        self.file = None


def read_words(file: int) -> str:
    """Return the text in a memory file."""
    try:
        return os.pread(file, _MAX_READ, 0).decode(errors="replace")
    except OSError:
        return ""


def read_tail(path: str) -> str:
    """Return the end of a file; empty if it cannot be read."""
    try:
        with Path(path).open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(file.tell() - _MAX_READ, 0))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def state_from_crash_trace(words: str, stderr: str, *, backend: object = None) -> tuple[State, str] | None:
    """Return state and reason of a process's end, from its crash trace; ``None`` if the trace is empty.

    Args:
        words: crash trace by ``faulthandler``.
        stderr: end of the process's stderr; empty if it is not kept.
        backend: backend of its collectives.

    >>> state_from_crash_trace("Fatal Python error: Segmentation fault", "")
    (<State.UNKNOWN: 'unknown'>, 'ended by SIGSEGV')
    """
    fatal = _FATAL.search(words)
    if fatal is None:
        return (State.INFRASTRUCTURE, ENDED_BY_SIGTERM) if words else None
    reason = f"ended by {_SIGNAL_NAMES.get(fatal[1], fatal[1])}"
    causes = [line.strip() for line in stderr.splitlines() if _CAUSE.search(line)][-_MAX_LINES:]
    state = state_from_message("\n".join(causes))
    if state is not None:
        return state, "\n".join([reason, *causes])
    # NCCL's watchdog aborts from a thread that runs no Python.
    if fatal[1] == "Aborted" and _PYTHON_FRAMES not in words and "nccl" in str(backend):
        return State.INFRASTRUCTURE, f"{reason} outside of Python code, as by NCCL's watchdog"
    return State.UNKNOWN, reason
