"""Launchers and ranks in forks of a process that has loaded torch: a launch of a test does not load it in each of them.

For a program the difference is that torch is loaded before it begins. A test of how something starts, or replaces
itself, starts it as a user does.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_FORKS = Path(__file__).parent / "jobs" / "forks.py"
_POLL_S = 0.02


class ForkedProgram:
    """A program under way.

    Args:
        words: ``torchrun``, ``cubicrun``, ``python -m MODULE`` or ``python SCRIPT``, and the arguments.
        env: all environment variables.
        cwd: working directory.
    """

    def __init__(self, *words: str, env: Mapping[str, str], cwd: Path | None = None) -> None:
        self._outputs = tempfile.TemporaryDirectory(prefix="forked-program-")
        self._folder = Path(self._outputs.name)
        asked = {"words": words, "env": dict(env), "cwd": str(cwd or Path.cwd()), "folder": str(self._folder)}
        requests = _requests()
        requests.write(f"{json.dumps(asked)}\n")
        requests.flush()
        self.returncode: int | None = None

    def communicate(self, timeout: float) -> tuple[str, str]:
        """Wait for its end; return what it and its children wrote to stdout and stderr.

        Raises:
            TimeoutError: after ``timeout`` seconds; it is killed.
        """
        end = time.monotonic() + timeout
        while not (code := self._folder / "code").exists():
            if time.monotonic() > end:
                with suppress(OSError, ValueError):  # it has ended meanwhile, or was never made
                    os.kill(int((self._folder / "pid").read_text()), signal.SIGKILL)
                raise TimeoutError(f"no end within {timeout} s: {self._said('stderr')}")
            time.sleep(_POLL_S)
        self.returncode = int(code.read_text())
        said = self._said("stdout"), self._said("stderr")
        self._outputs.cleanup()
        return said

    def _said(self, stream: str) -> str:
        with suppress(FileNotFoundError):
            return (self._folder / stream).read_text()
        return ""


@cache
def _requests() -> IO[str]:
    """Start the process that forks, and return where it is asked; it ends with this one."""
    process = subprocess.Popen([sys.executable, "-P", _FORKS], stdin=subprocess.PIPE, text=True)
    requests = process.stdin
    assert requests is not None

    def end() -> None:
        requests.close()
        process.wait()

    atexit.register(end)
    return requests
