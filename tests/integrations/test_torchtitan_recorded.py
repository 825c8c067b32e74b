"""torchtitan's Trainer on the CPU, launched for real: what is recorded is what its meshes and its config say."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integrations.recorded_launch import facts, launched, needs
from torchx_cubicml.records.trial import State

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.launch, needs("torchtitan", target="test-releases")]

# The SPMD types, torchtitan's default, need a newer torch than 2.13.
WORDS = "--training.steps 12 --training.local_batch_size 2 --training.seq_len 64 "
WORDS += "--parallelism.spmd_backend partial_dtensor"
LAYOUTS = {"fsdp": (), "tensor": ("--parallelism.tensor_parallel_degree", "2")}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_trainer_is_recorded_as_it_trained(tmp_path: Path, layout: str) -> None:
    model = ("--module", "llama3", "--config", "llama3_debugmodel")
    trial, report = launched(tmp_path, "train_torchtitan.py", *model, *WORDS.split(), *LAYOUTS[layout])
    measured, degrees = trial.measurement, report["degrees"]
    assert (trial.state, report["steps"]) == (State.COMPLETED, 12)
    assert measured is not None
    assert facts(trial, "tp_degree", "cp_degree", "pp_degree") == (degrees["tp"], degrees["cp"], degrees["pp"])
    data = degrees["dp_replicate"] * degrees["dp_shard"]
    assert facts(trial, "dp_degree", "dp_shard_degree") == (data, degrees["dp_shard"])
    batch = ("micro_batch_size", "seq_len", "gradient_accumulation_steps", "global_batch_size")
    local = report["local_batch_size"]
    assert facts(trial, *batch) == (local, report["seq_len"], report["accumulation"], local * data)
    assert facts(trial, "n_params", "n_layers") == (report["n_params"], report["n_layers"])
    assert facts(trial, "param_dtype", "reduce_dtype", "max_grad_norm") == ("bf16", "fp32", 1.0)
    assert report["checkpointing"] == "SelectiveAC.Config"
    assert facts(trial, "activation_checkpointing", "selective_recompute") == ("selective", "op")
    strategy = "FULL_SHARD" if degrees["dp_shard"] > 1 else "NO_SHARD"
    assert trial.observed["sharding_strategy"] == (strategy,) * report["n_layers"]
