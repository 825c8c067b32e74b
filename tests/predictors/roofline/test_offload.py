from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from torchx_cubicml.predictors.roofline.constants import DEFAULTS
from torchx_cubicml.predictors.roofline.facts import Facts
from torchx_cubicml.predictors.roofline.memory import memory_parts
from torchx_cubicml.predictors.roofline.offload import exposed_transfers, host_bandwidth, host_optimizer
from torchx_cubicml.predictors.roofline.step_time import step_time
from torchx_cubicml.predictors.roofline.training_layout import TrainingLayout

if TYPE_CHECKING:
    from torchx_cubicml.records.values import Value

ROW: dict[str, Value] = {
    "n_layers": 24,
    "d_model": 2048,
    "d_ff": 8192,
    "seq_len": 2048,
    "micro_batch_size": 4,
    "world_size": 8,
    "vocab_size": 0,
    "sharding_strategy": "FULL_SHARD",
    "attention_kernel": "flash",
    "device": "NVIDIA H100 80GB HBM3",
}


def layout_of(**changes: Value) -> TrainingLayout:
    return TrainingLayout.of(Facts.from_rows([{**ROW, **changes}]))


def bytes_of(**changes: Value) -> dict[str, float]:
    return {name: float(part[0]) for name, part in memory_parts(layout_of(**changes)).items()}


def seconds_of(**changes: Value) -> dict[str, float]:
    return {name: float(part[0]) for name, part in step_time(layout_of(**changes), DEFAULTS).parts().items()}


def test_nothing_offloaded_costs_nothing() -> None:
    assert seconds_of()["offload"] == 0.0
    assert seconds_of(cpu_offload=False, optimizer_cpu_offload=False)["offload"] == 0.0


@pytest.mark.parametrize(
    ("facts", "gone", "less"),
    [
        ({"cpu_offload": True}, {"weights", "gradients", "optimizer"}, set()),
        ({"optimizer_cpu_offload": True}, {"optimizer"}, set()),
        ({"optimizer_cpu_offload": True, "optimizer_offload_fraction": 0.5}, set(), {"optimizer"}),
        ({"activation_cpu_offload": True}, set(), {"activations"}),
    ],
)
def test_offloaded_states_leave_the_device(facts: dict[str, Value], gone: set[str], less: set[str]) -> None:
    before, after = bytes_of(), bytes_of(**facts)
    assert {name for name in before if before[name] > 0.0 and after[name] == 0.0} == gone
    assert {name for name in before if 0.0 < after[name] < before[name]} == less
    assert seconds_of(**facts)["offload"] > 0.0


def test_the_activations_of_two_blocks_stay() -> None:
    whole, kept = bytes_of()["activations"], bytes_of(activation_cpu_offload=True)["activations"]
    assert kept == pytest.approx(whole * 2 / 24)


def test_the_host_updates_what_a_rank_holds() -> None:
    """Two bytes to the host and two back for each parameter, over PCIe 5, and its update."""
    held = np.array([1e9])
    layout = layout_of(optimizer_cpu_offload=True)
    bandwidth = 64e9 * DEFAULTS["host_link"]
    assert host_bandwidth(layout, DEFAULTS)[0] == pytest.approx(bandwidth)
    assert host_optimizer(layout, DEFAULTS, held)[0] == pytest.approx(4e9 / bandwidth + 1e9 * DEFAULTS["host_adam_s"])
    assert seconds_of(optimizer_cpu_offload=True)["optimizer"] == 0.0


def test_computation_hides_transfers() -> None:
    layout = layout_of(activation_cpu_offload=True)
    of_activations, none = np.array([1e9]), np.zeros(1)
    exposed = [
        float(exposed_transfers(layout, DEFAULTS, activations=of_activations, params=none, stage=np.array([stage]))[0])
        for stage in (0.0, 0.01, 10.0)
    ]
    assert exposed == sorted(exposed, reverse=True)
    assert exposed[0] == pytest.approx(2e9 / (64e9 * DEFAULTS["host_link"]), rel=0.02)
    assert exposed[-1] < 0.001
