"""``cubicrun -- srun python``: the tasks of a real Slurm are the ranks of one trial."""

from __future__ import annotations

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
from torchx_cubicml.records.trial import State

if TYPE_CHECKING:
    from pathlib import Path

SRUN = ("srun", "-N", "1", "-n", "2", "--overcommit", sys.executable)


def test_two_tasks_are_one_trial(workspace: Path, free_port: int) -> None:
    assert_recorded_as_under_torchrun(workspace, SRUN, free_port)


def test_a_task_that_fails_is_told(workspace: Path, free_port: int) -> None:
    _, trial = assert_fails_as_typed(workspace, SRUN, free_port)
    assert (trial.state, trial.reason) == (State.USER_ERROR, "exit status 7")


def test_the_arguments_of_the_script_are_rewritten(workspace: Path, free_port: int) -> None:
    assert_rewritten(workspace, SRUN, free_port)


@pytest.mark.parametrize("nodes", [(), ("-N", "2")], ids=["chosen by Slurm", "typed"])
def test_the_nodes_are_those_of_the_job(workspace: Path, nodes: tuple[str, ...], free_port: int) -> None:
    spread = () if nodes else ("--ntasks-per-node", "1")
    command = ["srun", *nodes, *spread, "-n", "2", sys.executable, SCRIPT]
    done, report = ran(workspace, [*cubicrun(), *command], free_port)
    assert done.returncode == 0, done.stderr[-3000:]
    trial = only_trial(workspace)
    assert (report["world_size"], trial.workload["world_size"]) == (2, 2)
    assert (trial.observed["world_size"], trial.observed["nnodes"]) == (2, 2)
