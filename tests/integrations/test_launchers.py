"""Launchers of other libraries with two processes: the run is as without us, and one trial holds both ranks."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integrations.recorded_launch import JOBS, facts, needs
from tests.launch.launched_command import (
    SCRIPT,
    assert_fails_as_typed,
    assert_recorded_as_under_torchrun,
    assert_rewritten,
    cubicrun,
    only_trial,
    ran,
)
from tests.launch.test_second_attempt import assert_recorded, folder, new_trials, shown, typed  # noqa: F401 - a fixture
from torchx_cubicml.records.trial import Origin, State

pytestmark = pytest.mark.launch

HERE = Path(sys.executable).parent
ACCELERATE = (str(HERE / "accelerate"), "launch", "--multi_gpu", "--num_processes", "2", "--main_process_port", "0")
DEEPSPEED = (str(HERE / "deepspeed"), "--num_gpus", "2", "--master_port", "PORT")
LAUNCHERS = [
    pytest.param(ACCELERATE, marks=needs("accelerate"), id="accelerate"),
    pytest.param(DEEPSPEED, marks=needs("deepspeed", target="test-releases"), id="deepspeed"),
]


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_two_ranks_are_one_trial(launcher: tuple[str, ...], tmp_path: Path, free_port: int) -> None:
    assert_recorded_as_under_torchrun(tmp_path, launcher, free_port)


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_rank_that_fails_is_told_and_the_exit_code_stays(
    launcher: tuple[str, ...], tmp_path: Path, free_port: int
) -> None:
    _, trial = assert_fails_as_typed(tmp_path, launcher, free_port)
    assert (trial.state, trial.reason) == (State.USER_ERROR, "exit status 7")


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_the_arguments_of_the_script_are_rewritten(launcher: tuple[str, ...], tmp_path: Path, free_port: int) -> None:
    assert_rewritten(tmp_path, launcher, free_port)


@needs("accelerate")
def test_one_process_is_one_process_whatever_its_option_says(tmp_path: Path, free_port: int) -> None:
    launcher = [str(HERE / "accelerate"), "launch", "--cpu", "--num_processes", "2"]
    done, report = ran(tmp_path, [*cubicrun(), *launcher, SCRIPT], free_port)
    assert done.returncode == 0, done.stderr[-3000:]
    trial = only_trial(tmp_path)
    assert (report["world_size"], trial.workload["world_size"], trial.observed["world_size"]) == (1, 1, 1)


@needs("lightning")
def test_the_processes_that_lightning_starts_are_ranks(tmp_path: Path) -> None:
    shutil.copy(JOBS / "train_lightning.py", tmp_path)
    report = tmp_path / "report.json"
    done = subprocess.run(
        [*cubicrun(), sys.executable, "train_lightning.py", "--outcome", str(report)],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1", "TORCHX_CUBICML_STORE": str(tmp_path / "store")},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    trial = only_trial(tmp_path)
    assert trial.state is State.COMPLETED
    assert facts(trial, "world_size", "sharding_strategy", "micro_batch_size", "global_batch_size") == (2, "DDP", 4, 16)


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_an_early_failure_goes_on_as_typed(launcher: tuple[str, ...], folder: Path, free_port: int) -> None:  # noqa: F811
    command = [word.replace("PORT", str(free_port)) for word in launcher]
    done = subprocess.run(
        [*cubicrun("--cubicml-space", "space.toml"), *command, *typed("error")],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stderr.count("starting again as you typed it") == 1
    assert sorted(map(str, shown(folder, "batch"))) == ["[2]", "[8]"]
    assert_recorded(folder, state=State.USER_ERROR, reason="the rewritten command failed")
    assert new_trials(folder)[Origin.USER].state is State.COMPLETED
