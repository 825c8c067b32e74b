"""Only own processes are ended: another may have taken the number of a rank that is gone."""

from __future__ import annotations

import os
import subprocess
import sys

from torchx_cubicml.recorder.attempt.failure_watch import _is_own_child


def test_a_child_is_told_from_other_processes() -> None:
    with subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert _is_own_child(child.pid)
        assert not _is_own_child(os.getppid())
    assert child.returncode == 1  # the end of the input; it was not collected by the look
    assert not _is_own_child(child.pid)


def test_the_end_of_a_child_stays_to_be_collected() -> None:
    child = subprocess.Popen([sys.executable, "-S", "-c", "raise SystemExit(7)"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert _is_own_child(child.pid)
    assert child.wait() == 7
