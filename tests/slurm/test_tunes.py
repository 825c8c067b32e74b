"""Whole tunes on a real Slurm."""

from __future__ import annotations

import json
import subprocess
import time
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spaces import BATCH_SIZES, N_LAYERS
from torchx_cubicml import State, TrialStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from torchx_cubicml.records.trial import Trial

ROOT = Path(__file__).resolve().parent.parent.parent
COMPONENTS = ROOT / "tests" / "tune" / "components.py"
FSDP_SPACE = (
    N_LAYERS
    + BATCH_SIZES
    + """
[parameters.sharding_strategy]
choices = ["FULL_SHARD", "NO_SHARD"]
per_layer = "n_layers"
flag = "--sharding"

[tune]
args = { "--out_dir" = "{scratch}/{launch_id}" }
"""
)
QUICK_SPACE = """
objective = "samples_per_second"

[parameters.micro_batch_size]
choices = [1, 2, 4]
flag = "--batch_size"
changes_training = true
"""


def tune_words(space: Path, *options: str, component: str, args: list[str]) -> list[str]:
    fixed = [
        "--space",
        str(space),
        "--store",
        "store",
        "--scratch",
        str(Path.cwd() / "scratch"),
        "-s",
        "slurm",
        "--yes",
    ]
    return ["torchx", "cubicml", "tune", *fixed, *options, "--", f"{COMPONENTS}:{component}", *args]


def quick_tune(workspace: Path, *options: str, args: list[str], job: tuple[str, ...] = ()) -> list[str]:
    space = workspace / "space.toml"
    space.write_text(QUICK_SPACE)
    script = str(ROOT / "tests" / "tune" / "quick.py")
    words = ["--script", script, *job, "--", "--batch_size", "1", *args]
    return tune_words(space, "--repeats", "1", *options, component="quick", args=words)


def run(words: list[str], *, timeout: float = 300) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=timeout)


def trials(workspace: Path) -> list[Trial]:
    return sorted(TrialStore(str(workspace / "store")), key=lambda trial: trial.launch_id)


def jobs_of(recorded: list[Trial]) -> list[list[str]]:
    """Return id, state, begin and end of each component of the jobs of launches, in the order of their ids."""
    fields = "JobID,State,Start,End,Comment,SubmitLine"
    rows = [line.split("|") for line in run(["sacct", "-X", "-n", "-P", "-o", fields], timeout=30).stdout.splitlines()]
    return [row[:4] for row in rows if any(trial.launch_id in " ".join(row[4:]) for trial in recorded)]


def test_a_whole_tune_of_two_node_fsdp_trainings(workspace: Path) -> None:
    space = workspace / "space.toml"
    space.write_text(FSDP_SPACE)
    script = str(ROOT / "examples" / "train_gpt.py")
    sizes = "--n_layer 2 --n_embd 32 --block_size 32 --steps 8 --batch_size 1 --accumulate 8 --sharding FULL_SHARD"
    args = ["--script", script, "--", *sizes.split(), "--out_dir", "out"]
    options = ["--budget", "6 launches", "--parallel", "2", "--repeats", "2", "--json"]
    done = run(tune_words(space, *options, component="two_nodes", args=args), timeout=500)
    assert done.returncode == 0, done.stderr[-4000:]
    result = json.loads(done.stdout)
    assert result["launches"] == 6
    # Where the machine is so busy that repeats differ as much as configs do, no gain is sure, and that is what is told.
    assert result["comparison"]["gain"] > 1 or "no known config is reliably" in result["best"]["reason"], result
    recorded = trials(workspace)
    assert [trial.state for trial in recorded] == [State.COMPLETED] * 6, [trial.reason for trial in recorded]
    assert {trial.observed["nnodes"] for trial in recorded} == {2}
    assert {trial.observed["world_size"] for trial in recorded} == {2}
    assert {trial.observed["global_batch_size"] for trial in recorded} == {16}
    assert all(trial.trial_id.startswith("slurm-cubicml-") for trial in recorded)
    fresh = jobs_of(recorded)
    assert len({job[0].partition("+")[0] for job in fresh}) == 6
    spans = sorted({(job[2], job[3]) for job in fresh})
    assert any(later[0] < earlier[1] for earlier, later in pairwise(spans)), "never two in flight"
    assert not (workspace / "out").exists()


def test_a_job_that_runs_too_long_is_cancelled(workspace: Path) -> None:
    words = quick_tune(workspace, "--budget", "3 launches", "--trial-timeout", "3", args=["--seconds", "60"])
    done = run(words)
    assert done.returncode == 2
    assert "3 launches in a row ended as timeout" in done.stderr
    assert {trial.state for trial in trials(workspace)} == {State.TIMEOUT}
    end = time.monotonic() + 60
    while len(jobs_of(trials(workspace))) < 3 and time.monotonic() < end:  # the accounts lag behind
        time.sleep(0.5)
    assert [job[1].partition(" ")[0] for job in jobs_of(trials(workspace))] == ["CANCELLED"] * 3


def test_a_job_that_waits_too_long_is_cancelled(workspace: Path) -> None:
    job = ("--replicas", "3", "--memMB", "15000")
    words = quick_tune(workspace, "--budget", "1 launch", "--queue-timeout", "3", args=[], job=job)
    done = run(words)
    (trial,) = trials(workspace)
    assert trial.state is State.INFRASTRUCTURE
    assert "cancelled after 3 s in the queue" in trial.reason
    assert done.returncode in {1, 2}


@pytest.mark.parametrize(
    ("args", "job"),
    [(["--eat_mib", "2500"], ("--memMB", "1000")), (["--eat_mib", "16000", "--limit_mib", "8000"], ())],
    ids=["killed", "address-space"],
)
def test_host_memory_exhausted_is_out_of_memory(workspace: Path, args: list[str], job: tuple[str, ...]) -> None:
    done = run(quick_tune(workspace, "--budget", "3 launches", args=args, job=job))
    assert done.returncode in {0, 1}, done.stderr
    states = {trial.config["micro_batch_size"]: trial.state for trial in trials(workspace)}
    assert states[1] is State.COMPLETED
    assert {state for size, state in states.items() if size != 1} == {State.OUT_OF_MEMORY}


def test_a_drained_node_only_delays_a_tune(workspace: Path) -> None:
    args = ["--seconds", "3"]
    words = quick_tune(workspace, "--budget", "3 launches", args=args, job=("--replicas", "2", "--memMB", "9000"))
    tune = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for_job("RUNNING")
    subprocess.run(["scontrol", "update", "nodename=n2", "state=drain", "reason=test"], check=True, timeout=30)
    wait_for_job("PENDING")
    subprocess.run(["scontrol", "update", "nodename=n2", "state=resume"], check=True, timeout=30)
    _, stderr = tune.communicate(timeout=200)
    assert tune.returncode in {0, 1}, stderr
    assert [trial.state for trial in trials(workspace)] == [State.COMPLETED] * 3, stderr


def test_a_requeued_launch_is_one_launch(workspace: Path, start_again: Callable[[str], None]) -> None:
    words = quick_tune(workspace, "--budget", "1 launch", args=["--seconds", "5"])
    tune = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    number = wait_for_job("RUNNING")
    for _ in range(600):
        if any(trial.state is State.RUNNING for trial in trials(workspace)):
            break
        time.sleep(0.1)
    subprocess.run(["scontrol", "requeue", number], check=True, timeout=30)
    wait_for_job("PENDING")
    start_again(number)
    _, stderr = tune.communicate(timeout=200)
    (trial,) = trials(workspace)
    assert trial.state is State.COMPLETED, stderr
    assert trial.attempts == 2


def wait_for_job(state: str) -> str:
    for _ in range(600):
        names = run(["squeue", "-h", "-t", state, "-o", "%A"], timeout=30).stdout.split()
        if names:
            return names[0]
        time.sleep(0.1)
    raise AssertionError(f"no job came to {state}")
