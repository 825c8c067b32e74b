"""The Slurm that these tests start ends with them, however they end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CONFTEST = Path(__file__).with_name("conftest.py")
HOLD = f"""
import importlib.util, sys, time
from pathlib import Path
spec = importlib.util.spec_from_file_location("conftest", {str(CONFTEST)!r})
conftest = importlib.util.module_from_spec(spec)
spec.loader.exec_module(conftest)
conftest.keep(Path(sys.argv[1]))
print("up", flush=True)
time.sleep(600)
"""


def test_a_killed_test_run_leaves_no_slurm(slurm: Path) -> None:
    del slurm  # it is skipped where there can be none
    folder = Path(tempfile.mkdtemp(prefix="cubicml-slurm-"))
    run = subprocess.Popen([sys.executable, "-c", HOLD, folder], stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None
    assert run.stdout.readline() == "up\n"
    daemons = [int(file.read_text()) for file in (*folder.glob("*.pid"), folder / "mysql/pid", folder / "munge/pid")]
    assert len(daemons) == 6
    assert all(map(lives, daemons))
    run.send_signal(signal.SIGKILL)
    run.communicate(timeout=30)
    for _ in range(600):
        if not folder.exists() and not any(map(lives, daemons)):
            return
        time.sleep(0.1)
    raise AssertionError(f"left: {[pid for pid in daemons if lives(pid)]}, {folder}: {folder.exists()}")


def lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
