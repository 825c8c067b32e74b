"""Plain ``cubicrun`` under ``srun``, without TorchX: one launch of all ranks, array jobs, and a lost node."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from tests.slurm import batch_jobs
from torchx_cubicml import State

if TYPE_CHECKING:
    from collections.abc import Callable

TESTS = Path(__file__).resolve().parent.parent
QUICK = f"cubicrun -- python {TESTS / 'tune' / 'quick.py'}"
TWO_NODES = "srun -N2 --ntasks-per-node=1 -K1 cubicrun --nnodes 2 --nproc_per_node 1 --rdzv_backend c10d"
ON_TWO_NODES = ("-N2", "--ntasks-per-node=1", "--mem=4000")


def run_on_two_nodes(script: str, port: int) -> None:
    rendezvous = f"--rdzv_id $SLURM_JOB_ID --rdzv_endpoint localhost:{port}"
    line = f"{TWO_NODES} {rendezvous} {TESTS / 'jobs' / script}"
    batch_jobs.until_over(batch_jobs.submit(line, *ON_TWO_NODES))


def test_cubicrun_on_two_nodes_is_one_trial_of_all_ranks(workspace: Path, free_port: int) -> None:
    del workspace
    run_on_two_nodes("train_small.py", free_port)
    (trial,) = batch_jobs.trials()
    assert trial.state is State.COMPLETED, (trial, batch_jobs.logs())
    assert trial.measurement is not None
    assert trial.measurement.samples_per_second > 0  # type: ignore[operator]
    facts = {
        name: trial.observed[name] for name in ("world_size", "nnodes", "scheduler", "partition", "sharding_strategy")
    }
    assert facts == {
        "world_size": 2,
        "nnodes": 2,
        "scheduler": "slurm",
        "partition": "debug",
        "sharding_strategy": "DDP",
    }
    assert trial.observed["global_batch_size"] == 2 * 128  # of both ranks


def test_a_rank_that_fails_on_the_other_node_is_the_cause(workspace: Path, free_port: int) -> None:
    del workspace
    run_on_two_nodes("train_failing_rank.py", free_port)
    (trial,) = batch_jobs.trials()
    assert trial.state is State.USER_ERROR, (trial, batch_jobs.logs())
    assert "no such sample" in trial.reason


def test_tasks_of_an_array_are_launches_of_their_own(workspace: Path) -> None:
    del workspace
    batch_jobs.until_over(batch_jobs.submit(f"srun {QUICK} --seconds 0.5", "--array=0-2", "--mem=1000"))
    found = batch_jobs.trials()
    assert [trial.state for trial in found] == [State.COMPLETED] * 3, (found, batch_jobs.logs())
    assert len({trial.trial_id for trial in found}) == 3
    assert len({trial.observed["job_id"] for trial in found}) == 3
    assert {trial.attempts for trial in found} == {1}


def test_launches_that_follow_each_other_in_a_job_stay_apart(workspace: Path) -> None:
    del workspace
    again = f"{QUICK} --seconds 0.3"
    batch_jobs.until_over(
        batch_jobs.submit(f"srun {again}; srun {again}; srun sh -c '{again}; {again}; true'", "--mem=1000")
    )
    found = batch_jobs.trials()
    assert [trial.state for trial in found] == [State.COMPLETED] * 4, (found, batch_jobs.logs())
    assert {trial.attempts for trial in found} == {1}


def test_a_job_that_loses_its_node_is_one_launch_of_two_attempts(
    workspace: Path, start_again: Callable[[str], None]
) -> None:
    del workspace
    number = batch_jobs.submit(f"srun {QUICK} --seconds 15 --steps 150", "--mem=1000", "--requeue")
    batch_jobs.until(lambda: bool(batch_jobs.trials()), "nothing is recorded")
    node = batch_jobs.node_of(number)
    words = ["scontrol", "update", f"nodename={node}", "state=down", "reason=test"]
    subprocess.run(words, check=True, timeout=30)
    batch_jobs.until(lambda: batch_jobs.state_of(number) != "RUNNING", "it is not requeued")
    batch_jobs.until(lambda: batch_jobs.state_of_node(node) == "idle", "a node that lives comes back by itself")
    # A node that is still ending the first run refuses the second one, and the job is held.
    batch_jobs.until(lambda: not batch_jobs.is_on_a_node(number), "its first run does not end")
    start_again(number)
    batch_jobs.until_over(number)
    (trial,) = batch_jobs.trials()
    assert trial.state is State.COMPLETED, (trial, batch_jobs.logs())
    assert trial.attempts == 2
    assert trial.observed["restart_cause"] == "node failed"
    assert trial.measurement is not None
