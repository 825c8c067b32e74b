from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchx_cubicml.predictors.roofline.computation import balanced_stage
from torchx_cubicml.predictors.roofline.constants import DEFAULTS
from torchx_cubicml.predictors.roofline.facts import Facts
from torchx_cubicml.predictors.roofline.model_parallel import context_parallel, tensor_parallel
from torchx_cubicml.predictors.roofline.step_time import EXPLAINED_PARTS, PARTS, explained_parts, step_time
from torchx_cubicml.predictors.roofline.training_layout import TrainingLayout

if TYPE_CHECKING:
    from torchx_cubicml.records.values import Value

# No host time, so that what remains is arithmetic and links.
FREE = {**DEFAULTS, "launch_s": 1e-12, "micro_batch_s": 1e-12, "step_s": 1e-12, "tp_contention_s": 1e-12}
GPT: dict[str, Value] = {
    "n_layers": 32,
    "d_model": 4096,
    "d_ff": 16384,
    "seq_len": 2048,
    "vocab_size": 0,
    "zero_stage": 0,
    "attention_kernel": "flash",
    "micro_batch_size": 2,
    "gradient_accumulation_steps": 8,
    "world_size": 32,
    "device": "NVIDIA H100 80GB HBM3",
}


def layout_of(**changes: Value) -> TrainingLayout:
    return TrainingLayout.of(Facts.from_rows([{**GPT, **changes}]))


def parts_of(**changes: Value) -> dict[str, float]:
    return {name: float(value[0]) for name, value in step_time(layout_of(**changes), FREE).parts().items()}


def test_the_parts_add_up_to_the_step() -> None:
    times = step_time(layout_of(tp_degree=4, pp_degree=4, sharding_strategy="FULL_SHARD"), DEFAULTS)
    for stall_s in (0.0, 0.7):
        parts = times.parts(stall_s)
        assert tuple(parts) == PARTS
        assert sum(parts.values()) == pytest.approx(times.total(stall_s))
        assert all((value >= 0).all() for value in parts.values())


@given(
    checkpointing=st.sampled_from(["none", "selective", "full", ("full", "none") * 16, ("full",) * 31 + ("none",)]),
    selective=st.sampled_from(["core_attn", "op", "2"]),
    pp=st.sampled_from([1, 4, 8]),
    schedule=st.sampled_from(["1F1B", "ZBV"]),
    vocabulary=st.sampled_from([0, 50_304]),
    kernel=st.sampled_from(["flash", "math"]),
)
@settings(max_examples=60, deadline=None)
def test_explained_parts_add_up_to_the_step(
    checkpointing: Value, selective: str, pp: int, schedule: str, vocabulary: int, kernel: str
) -> None:
    facts: dict[str, Value] = {"pp_degree": pp, "pp_schedule": schedule, "vocab_size": vocabulary}
    facts |= {"activation_checkpointing": checkpointing, "selective_recompute": selective, "attention_kernel": kernel}
    layout = layout_of(**facts)
    parts = explained_parts(layout, DEFAULTS)
    assert tuple(parts) == EXPLAINED_PARTS
    assert sum(parts.values())[0] == pytest.approx(step_time(layout, DEFAULTS).total()[0])
    assert all(part[0] >= -1e-12 for part in parts.values())


def test_recomputation_is_what_keeping_activations_would_save() -> None:
    kept, again = (explained_parts(layout_of(activation_checkpointing=word), FREE) for word in ("none", "full"))
    assert kept["recomputation"][0] == 0.0
    assert again["recomputation"] == pytest.approx((kept["compute"] + kept["memory_traffic"]) / 3)
    for name in ("compute", "memory_traffic"):
        assert again[name] == pytest.approx(kept[name])


def test_memory_traffic_is_bytes_over_the_memorys_bandwidth() -> None:
    parts = explained_parts(layout_of(world_size=1), FREE)
    moved = 8 * 2 * 2048 * 32 * 34 * 4096 * DEFAULTS["elementwise"]
    assert parts["memory_traffic"] == pytest.approx(moved / 3352e9)


def test_compute_counts_flops_over_efficiency() -> None:
    seconds = parts_of(world_size=1)["compute"]
    tokens = 8 * 2 * 2048
    lag = (989.4 / 312) ** DEFAULTS["attention_lag"]
    flops = tokens * 32 * (6 * 12 * 4096**2 + 7 * 4096 * 2048 * lag / DEFAULTS["attention_efficiency"])
    reached = 989.4e12 * 0.6 * 4096 / (4096 + 300) * 4096 / (4096 + 150)
    moved = tokens * 32 * 34 * 4096 * DEFAULTS["elementwise"]
    assert seconds == pytest.approx(flops / reached + moved / 3352e9)


def test_doubling_the_peak_halves_the_compute_term_only() -> None:
    layout, products = layout_of(tp_degree=4), {**FREE, "elementwise": 1e-12}
    once, twice = (step_time(each, products).parts() for each in (layout, replace(layout, peak=2 * layout.peak)))
    assert twice["compute"] == pytest.approx(once["compute"] / 2)
    assert twice["tensor_parallel"] == pytest.approx(once["tensor_parallel"])


def test_full_recomputation_costs_one_more_forward_pass() -> None:
    plain, recomputed = (parts_of(activation_checkpointing=word)["compute"] for word in ("none", "full"))
    assert recomputed == pytest.approx(plain * 4 / 3)


def test_tensor_parallelism_is_slower_across_nodes_than_within() -> None:
    inside, across = parts_of(tp_degree=8), parts_of(tp_degree=16)
    assert across["tensor_parallel"] > 5 * inside["tensor_parallel"]
    assert parts_of()["tensor_parallel"] == 0.0


def test_tensor_parallel_volume_is_four_all_reduces_per_layer() -> None:
    constants = {**FREE, "link_tp_latency_s": 1e-15}
    seconds = float(step_time(layout_of(tp_degree=8), constants).parts()["tensor_parallel"][0])
    volume = 8 * 32 * 4 * 2 * (2 * 2048 * 4096) * 2 * 7 / 8
    assert seconds == pytest.approx(volume / (0.8 * 450e9))


@pytest.mark.parametrize(("stages", "rounds"), [(2, 8), (4, 8), (8, 64)])
def test_the_bubble_is_stages_less_one_over_micro_batches(stages: int, rounds: int) -> None:
    constants = {**FREE, "pp_latency_s": 1e-15, "pp_bandwidth": 1e9}
    layout = layout_of(pp_degree=stages, gradient_accumulation_steps=rounds)
    parts = step_time(layout, constants).parts()
    assert parts["bubble"] / parts["compute"] == pytest.approx((stages - 1) / rounds, rel=1e-6)


def test_schedules_shrink_the_bubble() -> None:
    plain = parts_of(pp_degree=4)["bubble"]
    assert parts_of(pp_degree=4, virtual_pp_degree=2)["bubble"] == pytest.approx(plain / 2, rel=0.1)
    assert parts_of(pp_degree=4, pp_schedule="zero_bubble")["bubble"] == pytest.approx(plain / 3)


def test_the_head_slows_the_last_stage() -> None:
    layout = layout_of(pp_degree=4)
    block, head = np.array([1.0]), np.array([8.0])
    assert balanced_stage(layout, block, head) == pytest.approx(10.0)  # 2 layers beside the head, 10 in each other
    assert balanced_stage(layout, block, np.zeros(1)) == pytest.approx(8.0)
    even = {**FREE, "unbalance": 1.0}
    vocabulary = layout_of(pp_degree=4, vocab_size=131072)
    assert step_time(vocabulary, even).parts()["compute"] > step_time(vocabulary, FREE).parts()["compute"]


def test_gathering_more_often_costs_more() -> None:
    words = ("NO_SHARD", "SHARD_GRAD_OP", "FULL_SHARD")
    seconds = [parts_of(sharding_strategy=word, micro_batch_size=1)["data_parallel"] for word in words]
    assert seconds == sorted(seconds)
    per_layer = ("FULL_SHARD", "NO_SHARD") * 16
    between = parts_of(sharding_strategy=per_layer, micro_batch_size=1)["data_parallel"]
    assert seconds[0] < between < seconds[2]


def test_one_rank_reduces_nothing() -> None:
    assert parts_of(world_size=8, tp_degree=8)["data_parallel"] == 0.0


def test_a_small_micro_batch_waits_for_the_host() -> None:
    slow_host = {**FREE, "launch_s": 1.0}
    times = step_time(layout_of(world_size=1), slow_host)
    assert times.total()[0] == pytest.approx(8 * 32 * 1.0, rel=0.01)


def test_a_stall_slows_deep_pipelines_most() -> None:
    lost = []
    for stages in (1, 2, 8):
        times = step_time(layout_of(pp_degree=stages), FREE)
        lost.append(float(((times.total(1.0) - times.total()) / times.rounds)[0]))
    assert lost[0] == 0.0
    assert 0.0 < lost[1] < lost[2]


def test_unused_context_and_expert_parallelism_cost_nothing() -> None:
    assert parts_of()["context_parallel"] == parts_of()["expert_parallel"] == 0.0
    assert parts_of(cp_degree=4, seq_len=32768)["context_parallel"] > 0.0
    assert parts_of(ep_degree=8, n_experts=64)["expert_parallel"] > 0.0
    assert parts_of(ep_degree=8)["expert_parallel"] == 0.0


@pytest.mark.parametrize("active", [1, 2, 8])
def test_each_token_travels_to_each_of_its_experts(active: int) -> None:
    sent = active * 2 * 4096 * 4096  # bf16, tokens of a micro batch, width
    sent *= 1 + DEFAULTS["expert_imbalance"] * 7 / 8
    each = 4 * sent * (7 / 8) / (450e9 * DEFAULTS["link_ep"]) + 4 * DEFAULTS["link_tp_latency_s"]
    found = parts_of(ep_degree=8, n_experts=64, n_active_experts=active)["expert_parallel"]
    assert found == pytest.approx(8 * 32 * each)


SLOW_TO_START = {**DEFAULTS, "link_tp_latency_s": 1e6, "network_tp_latency_s": 2e6}  # nothing else counts beside it


def test_ring_attention_hops_three_times_per_rank() -> None:
    for degree, latency_s in ((1, 0.0), (2, 1e6), (4, 1e6), (8, 1e6), (16, 2e6)):
        _, (found,) = context_parallel(layout_of(cp_degree=degree), SLOW_TO_START)
        assert found == pytest.approx(3 * (degree - 1) * latency_s, rel=1e-3)


def test_collectives_hop_within_and_across_nodes() -> None:
    across = 6 * 2e6 * 2 ** DEFAULTS["network_tp_hops"]
    for degree, expected in ((1, 0.0), (2, 6e6), (4, 12e6), (8, 18e6), (16, across)):
        _, (found,) = tensor_parallel(layout_of(tp_degree=degree), SLOW_TO_START, np.zeros(1))
        assert found == pytest.approx(expected, rel=1e-3)
