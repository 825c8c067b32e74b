"""DeepSpeed's engine on the CPU, launched for real: what is recorded is what the engine says that it did."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.integrations.recorded_launch import facts, launched, needs
from torchx_cubicml.records.trial import State

pytestmark = [pytest.mark.launch, needs("deepspeed", target="test-releases")]

BUILD = "from deepspeed.comm.torch import build_shm_op; build_shm_op()"
BUILD_TIMEOUT_S = 3600  # a hang; a busy machine compiles for many minutes


@pytest.fixture(scope="module")
def variables() -> dict[str, str]:
    """Environment of a DeepSpeed on the CPU, whose communication operator is compiled before the ranks ask for it."""
    folder = Path(sys.prefix)
    for lock in (folder / "torch_extensions").rglob("lock"):  # of a build that was stopped: torch waits for it for ever
        lock.unlink()
    chosen = {"DS_ACCELERATOR": "cpu", "TORCH_EXTENSIONS_DIR": str(folder / "torch_extensions")}
    environment = {**chosen, "PATH": f"{folder / 'bin'}:/usr/local/bin:/usr/bin:/bin"}  # ninja is in the environment
    subprocess.run([sys.executable, "-c", BUILD], env=environment, check=True, timeout=BUILD_TIMEOUT_S)
    return chosen


@pytest.mark.parametrize(
    ("stage", "words"), [(0, ()), (1, ("--accumulate", "1")), (2, ("--bf16",)), (3, ("--checkpointing",))]
)
def test_engine_is_recorded_as_it_trained(
    tmp_path: Path, variables: dict[str, str], stage: int, words: tuple[str, ...]
) -> None:
    trial, report = launched(tmp_path, "train_deepspeed.py", "--stage", str(stage), *words, variables=variables)
    assert (trial.state, report["steps"], report["stage"]) == (State.COMPLETED, 24, stage)
    measured = trial.measurement
    assert measured is not None
    assert measured.steps_counted + measured.warmup_steps == 24
    degrees = ("zero_stage", "dp_degree", "tp_degree", "cp_degree", "pp_degree")
    assert facts(trial, *degrees) == (stage, report["dp_degree"], 1, 1, 1)
    batch = ("micro_batch_size", "gradient_accumulation_steps", "global_batch_size")
    assert facts(trial, *batch) == (report["micro_batch_size"], report["accumulation"], report["global_batch_size"])
    assert facts(trial, "n_params", "n_trainable_params", "n_layers") == (report["n_params"], report["n_params"], 2)
    formats = {"torch.float32": "fp32", "torch.bfloat16": "bf16"}
    assert facts(trial, "precision", "optimizer") == (formats[report["dtype"]], "AdamW")
    assert trial.observed["activation_checkpointing"] == ("full" if "--checkpointing" in words else "none")


def test_throughput_is_that_of_the_steps_of_all_ranks(tmp_path: Path, variables: dict[str, str]) -> None:
    trial, report = launched(tmp_path, "train_deepspeed.py", "--stage", "3", "--steps", "48", variables=variables)
    measured = trial.measurement
    assert measured is not None
    times = report["times"]  # of the script's own clock, before the first step and after each
    counted = measured.steps_counted
    expected = counted * report["global_batch_size"] / (times[-1] - times[-1 - counted])
    assert measured.samples_per_second == pytest.approx(expected, rel=0.02)
    assert measured.tokens_per_second == pytest.approx(32 * measured.samples_per_second)
    assert trial.observed["max_grad_norm"] == 1.0
