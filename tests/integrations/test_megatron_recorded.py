"""Megatron-Core on the CPU, launched for real: what is recorded is what its process groups and the script say."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integrations.recorded_launch import facts, launched, needs
from torchx_cubicml.records.trial import State

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.launch, needs("megatron", target="test-releases")]

DEGREES = ("tp_degree", "pp_degree", "cp_degree", "ep_degree", "dp_degree")
LAYOUTS = {
    "data": (2, ("--recompute-granularity", "full")),
    "tensor": (2, ("--tensor-model-parallel-size", "2", "--recompute-granularity", "selective")),
    "pipeline": (2, ("--pipeline-model-parallel-size", "2")),
    "experts": (2, ("--expert-model-parallel-size", "2", "--num-experts", "4")),
    "tensor_and_pipeline": (4, ("--tensor-model-parallel-size", "2", "--pipeline-model-parallel-size", "2")),
}


@pytest.fixture(scope="module")
def n_params(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, object]:
    """Parameters of the whole model, without and with experts, as one process alone holds them."""
    words = {False: (), True: ("--num-experts", "4")}
    return {
        has_experts: launched(
            tmp_path_factory.mktemp("alone"), "train_megatron_core.py", "--train-iters", "8", *more, processes=1
        )[1]["n_params"]
        for has_experts, more in words.items()
    }


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layout_batch_and_throughput_are_those_of_the_run(
    tmp_path: Path, n_params: dict[bool, object], layout: str
) -> None:
    processes, words = LAYOUTS[layout]
    trial, report = launched(tmp_path, "train_megatron_core.py", *words, processes=processes)
    measured = trial.measurement
    assert (trial.state, measured is not None) == (State.COMPLETED, True)
    assert measured is not None
    assert measured.steps_counted + measured.warmup_steps == report["steps"]
    assert facts(trial, *DEGREES) == tuple(report[name] for name in DEGREES)
    batch = ("micro_batch_size", "gradient_accumulation_steps", "global_batch_size", "seq_len")
    assert facts(trial, *batch) == (2, report["accumulation"], 8, 32)
    has_stages = report["pp_degree"] > 1
    assert trial.observed.get("n_params") == (None if has_stages else n_params[layout == "experts"])
    assert trial.observed.get("n_layers") == (None if has_stages else 4)
    recomputed = {"data": ("full", None), "tensor": ("selective", "core_attn")}.get(layout, ("none", None))
    assert facts(trial, "activation_checkpointing", "selective_recompute") == recomputed
    experts = facts(trial, "n_experts", "n_active_experts", "expert_tp_degree")
    assert experts == ((4, 2, 1) if layout == "experts" else (None, None, None))
    assert facts(trial, "sharding_strategy", "zero_stage") == ("DDP", 0)
    assert trial.observed.get("tp_overlap") == (False if report["tp_degree"] > 1 else None)
    times, counted = report["times"], measured.steps_counted  # by the script's own clock
    expected = counted * 8 / (times[-1] - times[-1 - counted])
    assert measured.samples_per_second == pytest.approx(expected, rel=0.05)
