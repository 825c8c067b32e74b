"""The loop, closed: real two-process trainings under TorchX, tuned, then rewritten from what was recorded."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path

import pytest

from torchx_cubicml import Trial, TrialStore
from torchx_cubicml.records.trial import State

ROOT = Path(__file__).resolve().parent.parent
pytestmark = pytest.mark.launch

SPACE = """
[workload]
n_layers = { flag = "--n_layer" }

[parameters.micro_batch_size]
choices = [1, 4, 8]
flag = "--batch_size"

[parameters.gradient_accumulation_steps]
derive = "global_batch_size / (micro_batch_size * dp_degree)"
flag = "--accumulate"

[parameters.sharding_strategy]
choices = ["FULL_SHARD", "NO_SHARD"]
per_layer = "n_layers"
flag = "--sharding"

[tune]
args = { "--out_dir" = "{scratch}/{launch_id}" }
"""


def run(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr[-4000:]
    return done


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("workspace")
    (folder / "train_gpt.py").write_text((ROOT / "examples" / "train_gpt.py").read_text())
    (folder / "gpt.toml").write_text(SPACE)
    return folder


@pytest.fixture(scope="module")
def training() -> list[str]:
    # One sample at a time in eight accumulated steps: slower than one batch of eight on any machine.
    return shlex.split(
        "dist.ddp -j 1x2 --script train_gpt.py -- --n_layer 2 --n_embd 64 --block_size 32 --steps 40 "
        "--batch_size 1 --accumulate 8 --sharding FULL_SHARD --out_dir out"
    )


@pytest.fixture(scope="module")
def tuned(workspace: Path, training: list[str]) -> dict[str, object]:
    options = ["--space", "gpt.toml", "--store", "store", "--budget", "5 launches", "--repeats", "1"]
    done = run(
        "torchx", "cubicml", "tune", *options, "--scratch", str(workspace / "scratch"), "--json", "--", *training,
        cwd=workspace,
    )  # fmt: skip
    found: dict[str, object] = json.loads(done.stdout)
    return found


def history(workspace: Path) -> list[dict[str, dict[str, object]]]:
    done = run("torchx", "cubicml", "history", "list", "--store", "store", "--limit", "0", "--json", cwd=workspace)
    trials: list[dict[str, dict[str, object]]] = json.loads(done.stdout)
    return trials


def test_the_tune_finds_a_faster_config_at_the_same_global_batch(tuned: dict[str, object], workspace: Path) -> None:
    comparison = tuned["comparison"]
    assert isinstance(comparison, dict)
    assert comparison["gain"] > 1.2
    trials = history(workspace)
    assert len(trials) == tuned["launches"] == 5
    assert {str(trial["state"]) for trial in trials} == {"completed"}
    assert {trial["observed"]["global_batch_size"] for trial in trials} == {16}
    assert {trial["observed"]["world_size"] for trial in trials} == {2}
    for trial in trials:
        assert trial["observed"]["micro_batch_size"] == trial["config"]["micro_batch_size"]
        assert trial["observed"]["sharding_strategy"] == trial["config"]["sharding_strategy"]


def test_profiling_launches_leave_the_users_outputs_alone(tuned: dict[str, object], workspace: Path) -> None:
    assert not (workspace / "out").exists()
    assert list((workspace / "scratch").glob("launch-*/ckpt.pt"))


def test_an_ordinary_launch_is_rewritten_and_says_why(
    tuned: dict[str, object], workspace: Path, training: list[str]
) -> None:
    before = len(history(workspace))
    done = run(
        "torchx", "run", "-s", "local_cwd", "cubicml", "--space", "gpt.toml", "--store", "store", *training,
        cwd=workspace,
    )  # fmt: skip
    assert "arguments rewritten" in done.stderr
    assert "predicted gain" in done.stderr
    assert "--mode record" in done.stderr
    assert done.stdout.startswith("local_cwd://")
    trials = history(workspace)
    assert len(trials) == before + 1
    (rewritten,) = [trial for trial in trials if trial.get("origin") == "rewrite"]
    assert rewritten["observed"]["micro_batch_size"] != 1
    assert rewritten["observed"]["global_batch_size"] == 16
    assert rewritten["suggestion"]["reason"]
    assert (workspace / "out" / "ckpt.pt").exists()


SLEEPING = """
import argparse, time
from torchx_cubicml import measure
parser = argparse.ArgumentParser()
parser.add_argument("--batch_size", type=int)
slow = parser.parse_args().batch_size == 2
for _ in range(3000 if slow else 60):
    time.sleep(0.2 if slow else 0.02)
    measure.step(samples=100.0)
"""
SLEEPING_SPACE = """
objective = "samples_per_second"
[parameters.micro_batch_size]
choices = [1, 2]
flag = "--batch_size"
changes_training = true
"""


def test_a_hopeless_launch_of_torchrun_is_ended_early(tmp_path: Path) -> None:
    (tmp_path / "space.toml").write_text(SLEEPING_SPACE)
    (tmp_path / "train.py").write_text(SLEEPING)
    options = "--space space.toml --store store --budget 2 --repeats 1 --json --scratch scratch"
    training = "dist.ddp -j 1x1 --script train.py -- --batch_size 1"
    words = f"torchx cubicml tune {options} -- {training}".split()
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout)["launches"] == 2
    trials: dict[object, Trial] = {trial.config["micro_batch_size"]: trial for trial in TrialStore(f"{tmp_path}/store")}
    assert trials[1].state is State.COMPLETED
    slow = trials[2]
    assert slow.state is State.STOPPED_EARLY
    assert slow.reason.startswith("ended early: ")
    assert "below the fastest seen" in slow.reason
    assert slow.measurement is not None
    assert 10 <= slow.measurement.steps_counted < 3000
    assert 300.0 < slow.measurement.samples_per_second <= 500.0  # 100 samples, and a sleep of at least 0.2 s
