"""Ranks of mpirun, of ``python -m torch.distributed.run`` and of the program itself are recorded as under torchrun."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.launch.launched_command import (
    SCRIPT,
    assert_fails_as_typed,
    assert_recorded_as_under_torchrun,
    assert_rewritten,
    cubicrun,
    only_trial,
    ran,
)
from tests.launch.test_second_attempt import assert_recorded, folder, shown, typed  # noqa: F401 - a fixture
from torchx_cubicml.records.trial import State

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.launch

MPIRUN = ("mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2", sys.executable)
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2")
PYTHON = (sys.executable,)
has_mpirun = pytest.mark.skipif(shutil.which("mpirun") is None, reason="apt-get install openmpi-bin")
LAUNCHERS = [pytest.param(MPIRUN, marks=has_mpirun, id="mpirun"), pytest.param(TORCHRUN, id="torch.distributed.run")]
STARTS = ("spawn", "fork-processes", "forkserver", "programs", "all-programs")


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_two_ranks_are_one_trial(launcher: tuple[str, ...], tmp_path: Path, free_port: int) -> None:
    assert_recorded_as_under_torchrun(tmp_path, launcher, free_port)


@pytest.mark.parametrize("starts", STARTS)
def test_two_ranks_of_its_own_are_one_trial(starts: str, tmp_path: Path, free_port: int) -> None:
    assert_recorded_as_under_torchrun(tmp_path, PYTHON, free_port, "--starts", starts, in_workload=1)


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_rank_that_fails_is_told(launcher: tuple[str, ...], tmp_path: Path, free_port: int) -> None:
    _, trial = assert_fails_as_typed(tmp_path, launcher, free_port)
    assert (trial.state, trial.reason) == (State.USER_ERROR, "exit status 7")


@pytest.mark.parametrize("starts", ["spawn", "fork-processes", "programs"])
def test_a_rank_of_its_own_that_fails_is_told(starts: str, tmp_path: Path, free_port: int) -> None:
    recorded, trial = assert_fails_as_typed(tmp_path, PYTHON, free_port, "--starts", starts, fail="error")
    assert (trial.state, trial.reason) == (State.USER_ERROR, "ValueError: the last rank fails"), recorded.stderr[-3000:]
    assert "torchx_cubicml" not in recorded.stderr, "no frame of ours is in a traceback"


def test_a_signal_that_ends_a_rank_of_its_own_is_no_error_of_the_program(tmp_path: Path, free_port: int) -> None:
    recorded, trial = assert_fails_as_typed(tmp_path, PYTHON, free_port, "--starts", "spawn", fail="SIGKILL")
    assert trial.state in {State.UNKNOWN, State.INFRASTRUCTURE}, trial.reason
    assert "terminated with signal SIGKILL" in recorded.stderr


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_the_arguments_of_the_script_are_rewritten(launcher: tuple[str, ...], tmp_path: Path, free_port: int) -> None:
    assert_rewritten(tmp_path, launcher, free_port)


def test_the_arguments_of_ranks_of_its_own_are_rewritten(tmp_path: Path, free_port: int) -> None:
    assert_rewritten(tmp_path, PYTHON, free_port, "--starts", "spawn", world_size=1)


def test_a_signal_reaches_a_plain_program(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGTERM)\n")
    done, _ = ran(tmp_path, [*cubicrun(), sys.executable, "train.py"], 0)
    assert done.returncode == -15
    assert SCRIPT not in done.stderr


CHILDREN = """
import multiprocessing, os, subprocess, sys
from torch.utils.data import DataLoader

HOOKS = ("torchx_cubicml.recorder.session", "torchx_cubicml.recorder.events.sender")
SHOW = "import os, sys; print(sorted(os.environ), sys.argv, [n for n in sys.modules if n.startswith('torchx_cubicml')])"

class Data:
    def __len__(self):
        return 2
    def __getitem__(self, index):
        return sum(name in sys.modules for name in HOOKS), len(os.environ), sys.argv[1:]

def square(number):
    return number * number, sum(name in sys.modules for name in HOOKS)

if __name__ == "__main__":
    print([*DataLoader(Data(), num_workers=1, multiprocessing_context="spawn", batch_size=None)])
    with multiprocessing.get_context("forkserver").Pool(1) as pool:
        print(pool.map(square, [1, 2]))
    environment = {**os.environ, "RANK": "1"}
    for command in ([sys.executable, "-c", SHOW], ["sh", "-c", "echo $0 $#"], [sys.executable, "--version"]):
        print(subprocess.run(command, env=environment, capture_output=True, text=True).stdout)
"""


def test_children_that_are_no_ranks_run_as_without_us(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(CHILDREN)
    plain = [sys.executable, "train.py"]
    recorded = [sys.executable, "-m", "torchx_cubicml.recorder", "--", "train.py"]
    environment = {**os.environ, "TORCHX_CUBICML_STORE": str(tmp_path / "store")}
    printed = [
        subprocess.run(
            words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600, check=True
        ).stdout
        for words in (plain, recorded)
    ]
    assert printed[0] == printed[1]
    assert only_trial(tmp_path).state is State.COMPLETED


def test_an_early_failure_under_torch_distributed_run_goes_on_as_typed(
    folder: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("PET_MASTER_PORT")
    words = [*cubicrun("--cubicml-space", "space.toml"), *TORCHRUN, *typed("error")]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stderr.count("starting again as you typed it") == 1
    assert shown(folder, "batch") == [[8], [2]]
    assert_recorded(folder, state=State.USER_ERROR, reason="the rewritten command failed")
