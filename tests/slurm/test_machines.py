"""Tunes that choose the machine: Slurm's partition, and the number of processes."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import pytest

from torchx_cubicml import State, TrialStore
from torchx_cubicml.records.crowding import crowded_share

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent.parent
QUICK = f"{ROOT / 'tests' / 'tune' / 'components.py'}:quick"
PACED = str(ROOT / "tests" / "tune" / "paced.py")
PARTITIONS = """
[parameters.partition]
choices = ["fast", "slow"]
scheduler = "partition"
"""
PROCESSES = """
[parameters.nproc_per_node]
choices = [1, 2]
component = "-j"
changes_training = true
"""
PRICES = """
[prices]
partition = { fast = 8.0, slow = 1.0 }
"""


@pytest.fixture
def partitions(workspace: Path) -> Iterator[Path]:
    """Return the working directory, beside two partitions of one node each."""
    for name, node in (("fast", "n1"), ("slow", "n2")):
        subprocess.run(["scontrol", "create", f"partitionname={name}", f"nodes={node}", "state=up"], check=True)
    yield workspace
    for name in ("fast", "slow"):
        subprocess.run(["scancel", "--partition", name], check=True)
        subprocess.run(["scontrol", "delete", f"partitionname={name}"], check=False)


def tune(space: str, *command: str, partition: str, budget: str) -> dict[str, object]:
    Path("space.toml").write_text(space)
    options = ["--space", "space.toml", "--store", "store", "--scratch", str(Path.cwd() / "scratch"), "--yes", "--json"]
    options += ["--budget", budget, "-s", "slurm", "-cfg", f"partition={partition}"]
    words = ["torchx", "cubicml", "tune", *options, "--", *command]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=400)
    assert done.returncode == 0, done.stderr[-4000:]
    result: dict[str, object] = json.loads(done.stdout)
    return result


@pytest.mark.parametrize(
    ("objective", "typed", "best"),
    [
        ("samples_per_second", "slow", "fast"),
        ("samples_per_device_hour", "slow", "fast"),
        ("samples_per_currency", "fast", "slow"),
    ],
)
def test_the_partition_follows_the_objective(partitions: Path, objective: str, typed: str, best: str) -> None:
    space = f'objective = "{objective}"\n{PRICES}{PARTITIONS}'
    result = tune(space, QUICK, "--script", PACED, partition=typed, budget="5 launches")
    assert result["claims_gain"] is True, result
    assert result["best"]["config"]["partition"] == best  # type: ignore[index]
    assert result["scheduler_args"] == f"partition={best}"
    # Three times as fast, at eight times the price.
    gain = {"samples_per_currency": 8.0 / 3.0}.get(objective, 3.0)
    assert result["comparison"]["gain"] == pytest.approx(gain, rel=0.25)  # type: ignore[index]
    recorded = list(TrialStore(str(partitions / "store")))
    assert [trial.state for trial in recorded] == [State.COMPLETED] * 5, [trial.reason for trial in recorded]
    assert all(trial.observed["partition"] == trial.config["partition"] for trial in recorded)
    assert {trial.config["partition"] for trial in recorded} == {"fast", "slow"}


@pytest.mark.parametrize(
    ("objective", "typed", "best"), [("samples_per_second", 1, 2), ("samples_per_device_hour", 2, 1)]
)
def test_the_number_of_processes_follows_the_objective(partitions: Path, objective: str, typed: int, best: int) -> None:
    space = f'objective = "{objective}"\n{PROCESSES}'
    command = ["dist.ddp", "-j", f"1x{typed}", "--memMB", "4000", "--script", PACED]
    result = tune(space, *command, partition="fast", budget="5 launches")
    assert result["claims_gain"] is True, result
    assert result["best"]["config"]["world_size"] == best  # type: ignore[index]
    assert result["command"][:3] == ["dist.ddp", "-j", f"1x{best}"]  # type: ignore[index]
    recorded = list(TrialStore(str(partitions / "store")))
    assert {trial.observed["world_size"] for trial in recorded} == {1, 2}


def test_an_option_that_the_scheduler_lacks_is_named_before_the_first_launch(partitions: Path) -> None:
    space = PARTITIONS.replace('scheduler = "partition"', 'scheduler = "partitoin"\ndefault = "fast"')
    Path("space.toml").write_text(space)
    words = ["torchx", "cubicml", "tune", "--space", "space.toml", "--store", "store", "-s", "slurm", "--yes"]
    done = subprocess.run([*words, "--", QUICK, "--script", PACED], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "unknown option 'partitoin' of scheduler slurm" in done.stderr
    assert "did you mean 'partition'?" in done.stderr
    assert not (partitions / "store").exists()


TRAINING = str(ROOT / "tests" / "jobs" / "train_small.py")
STEPS = 30


@pytest.fixture
def really_slow(partitions: Path) -> Iterator[Path]:
    """Return the working directory, beside a partition ``slow`` whose processes run for a third of the time."""
    words = [sys.executable, str(Path(__file__).with_name("slow_partition.py")), "slow"]
    with subprocess.Popen(words, stdin=subprocess.PIPE) as slowing:
        yield partitions
        slowing.communicate(timeout=60)


def test_a_real_training_goes_to_the_right_machine_by_each_of_four_objectives(really_slow: Path) -> None:
    command = ["dist.ddp", "-j", "1x1", "--memMB", "4000", "--script", TRAINING, "--", "--steps", str(STEPS)]
    for objective, tables, typed, best, budget in (
        ("samples_per_second", "", "slow", "fast", "5 launches"),
        ("samples_per_device_hour", "", "slow", "fast", "1 launches"),  # the store has the others
        ("samples_per_currency", PRICES, "fast", "slow", "1 launches"),
        ("soonest_done", f"[job]\nsteps = {STEPS}\n", "slow", "fast", "1 launches"),
    ):
        space = f'objective = "{objective}"\n{tables}{PARTITIONS}'
        result = tune(space, *command, partition=typed, budget=budget)
        recorded = list(TrialStore(str(really_slow / "store")))
        if any(map(crowded_share, recorded)):
            pytest.skip("other processes took the processors: nothing measured here is certain enough for a claim")
        assert result["scheduler_args"] == f"partition={best}", result
    parts = result["best"]["time_to_done"]  # type: ignore[index]
    assert sorted(parts) == ["compile_s", "queue_s", "startup_s", "steps_s", "warmup_s"]
    assert [trial.state for trial in recorded] == [State.COMPLETED] * 8, [trial.reason for trial in recorded]
    for part in ("startup_s", "mean_step_time_s"):
        of_slow, of_fast = (
            median(getattr(each.measurement, part) for each in recorded if each.config["partition"] == name)
            for name in ("slow", "fast")
        )
        assert of_slow > 1.5 * of_fast, part
    for trial in recorded:  # the parts make the time from the plan to the end, but for the way out
        took = datetime.fromisoformat(trial.ended_at) - datetime.fromisoformat(trial.started_at)
        measured = trial.measurement
        told_s = trial.observed["queue_s"] + measured.startup_s + measured.compile_s + measured.warmup_s
        told_s += STEPS * measured.mean_step_time_s
        assert 0.7 * took.total_seconds() < told_s <= 1.01 * took.total_seconds(), trial
