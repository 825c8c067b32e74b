"""torchrun in processes forked from one that has loaded it: a launch does not load torch once more for its agent.

The ranks are new processes, as ever. A launch whose agent is ours, as of ``cubicrun``, is none of these.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_AGENTS = multiprocessing.get_context("forkserver")
_AGENTS.set_forkserver_preload(["torch.distributed.run"])


class ForkedTorchrun:
    """A torchrun under way.

    Args:
        words: its options, the program, and the arguments of that.
        env: all environment variables.
        cwd: working directory.
    """

    def __init__(self, *words: str, env: Mapping[str, str], cwd: Path | None = None) -> None:
        self._outputs = tempfile.TemporaryDirectory(prefix="torchrun-")
        self._process = _AGENTS.Process(target=_become, args=(words, dict(env), cwd or Path.cwd(), self._outputs.name))
        self._process.start()
        self.returncode: int | None = None

    def communicate(self, timeout: float) -> tuple[str, str]:
        """Wait for its end; return what it and the ranks wrote to stdout and stderr.

        Raises:
            TimeoutError: after ``timeout`` seconds; it is killed.
        """
        self._process.join(timeout)
        in_time = not self._process.is_alive()
        self._process.kill()
        self._process.join()
        self.returncode = self._process.exitcode
        stdout, stderr = (Path(self._outputs.name, name).read_text() for name in ("stdout", "stderr"))
        self._outputs.cleanup()
        if not in_time:
            raise TimeoutError(f"torchrun did not end within {timeout} s: {stderr}")
        return stdout, stderr


def _become(words: tuple[str, ...], env: dict[str, str], cwd: Path, outputs: str) -> None:
    """Run torchrun in this process, with the streams, variables and exit status of a program."""
    for number, name in ((1, "stdout"), (2, "stderr")):
        file = os.open(f"{outputs}/{name}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(file, number)
        os.close(file)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    from torch.distributed.run import main

    main(words)
