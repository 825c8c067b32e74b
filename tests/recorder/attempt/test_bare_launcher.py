"""A launcher with a second attempt runs beside a torch that lacks torch's agent."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def test_a_launcher_runs_without_the_agent_of_torch(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("")
    (tmp_path / "launch.py").write_text("import sys\nprint(sys.argv)\nsys.exit(5)\n")
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    words = [sys.executable, "-m", "torchx_cubicml.recorder.launcher", "1", "typed.py", "launch.py", "--lr"]
    done = subprocess.run(
        words, cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (5, "['launch.py', '--lr']\n", "")
