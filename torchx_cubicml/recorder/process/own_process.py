"""How a process of ours is started beside the user's: no file of theirs stands in for a module of the library."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from torchx_cubicml.settings import child_environment

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
