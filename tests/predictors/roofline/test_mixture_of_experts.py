from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchx_cubicml.predictors.roofline.constants import DEFAULTS
from torchx_cubicml.predictors.roofline.facts import Facts
from torchx_cubicml.predictors.roofline.memory import memory_parts
from torchx_cubicml.predictors.roofline.mixture_of_experts import expert_parallel, fullest_rank, routed_slowdown
from torchx_cubicml.predictors.roofline.step_time import step_time
from torchx_cubicml.predictors.roofline.training_layout import TrainingLayout

if TYPE_CHECKING:
    from torchx_cubicml.records.values import Value

MIXTURE: dict[str, Value] = {
    "n_layers": 32,
    "d_model": 4096,
    "n_heads": 32,
    "n_kv_heads": 8,
    "d_ff": 14336,
    "seq_len": 4096,
    "vocab_size": 32000,
    "zero_stage": 1,
    "attention_kernel": "flash",
    "micro_batch_size": 1,
    "gradient_accumulation_steps": 8,
    "world_size": 64,
    "n_experts": 8,
    "n_active_experts": 2,
    "device": "NVIDIA H100 80GB HBM3",
}
NOTHING = np.zeros(1)


def layout_of(**changes: Value) -> TrainingLayout:
    row = {name: value for name, value in {**MIXTURE, **changes}.items() if value is not None}
    return TrainingLayout.of(Facts.from_rows([row]))


def seconds_of(layout: TrainingLayout, **constants: float) -> dict[str, float]:
    parts = step_time(layout, {**DEFAULTS, **constants}).parts()
    return {name: float(part[0]) for name, part in parts.items()}


def bytes_of(layout: TrainingLayout) -> dict[str, float]:
    return {name: float(part[0]) for name, part in memory_parts(layout).items()}


def test_one_expert_is_a_dense_model() -> None:
    one, dense = layout_of(n_experts=1, n_active_experts=1), layout_of(n_experts=None, n_active_experts=None)
    assert seconds_of(one) == seconds_of(dense)
    assert bytes_of(one) == bytes_of(dense)


def test_one_active_expert_of_many_computes_as_much_as_a_dense_model() -> None:
    """Where efficiency does not depend on the tokens, and no rank is fuller than another.

    The copy of its input that an expert keeps takes memory bandwidth only.
    """
    ideal = {"half_tokens": 1e-9, "half_width": 1e-9, "expert_imbalance": 1e-9, "elementwise": 1e-9}
    sparse, dense = layout_of(n_active_experts=1, ep_degree=8), layout_of(n_experts=None, n_active_experts=None)
    assert seconds_of(sparse, **ideal)["compute"] == pytest.approx(seconds_of(dense, **ideal)["compute"], rel=1e-6)


def test_all_experts_count_in_the_parameters_and_the_active_ones_in_the_work() -> None:
    """The sizes of Mixtral 8x7B: 46.7 billion parameters, of which a token uses 12.9."""
    layout = layout_of(tied_embeddings=False)
    embeddings = 2 * 32000 * 4096
    assert 32 * layout.layer_params[0] + embeddings == pytest.approx(46.7e9, rel=0.01)
    assert 32 * layout.active_params[0] + embeddings == pytest.approx(12.9e9, rel=0.01)


def test_fine_experts_beside_shared_ones_and_dense_layers() -> None:
    """61 layers, 3 of them dense; 256 experts of 2048, 8 active, one shared: the blocks of a model of 671 billion."""
    layout = layout_of(
        n_layers=61,
        d_model=7168,
        n_heads=128,
        n_kv_heads=None,
        d_ff=18432,
        expert_d_ff=2048,
        shared_expert_d_ff=2048,
        n_dense_layers=3,
        n_experts=256,
        n_active_experts=8,
    )
    attention = 4 * 7168**2
    dense, expert = 3 * 18432 * 7168, 3 * 2048 * 7168
    assert layout.layer_params[0] * 61 == pytest.approx(61 * attention + 3 * dense + 58 * 257 * expert)
    assert layout.active_params[0] * 61 == pytest.approx(61 * attention + 3 * dense + 58 * 9 * expert)
    assert layout.expert_layers[0] == pytest.approx(58 / 61)


@pytest.mark.parametrize("facts", [{}, {"ep_degree": 1, "n_experts": 64}, {"ep_degree": 8, "n_experts": None}])
def test_experts_on_one_rank_exchange_nothing(facts: dict[str, Value]) -> None:
    assert seconds_of(layout_of(**facts))["expert_parallel"] == 0.0


@given(
    experts=st.sampled_from([8, 64, 128]),
    active=st.integers(1, 8),
    degree=st.sampled_from([2, 4, 8, 16, 32]),
    tp=st.sampled_from([1, 2, 4]),
)
@settings(max_examples=60, deadline=None)
def test_more_experts_per_token_cost_more(experts: int, active: int, degree: int, tp: int) -> None:
    fewer, more = (
        seconds_of(layout_of(n_experts=experts, n_active_experts=count, ep_degree=degree, tp_degree=tp))
        for count in (active, active + 1)
    )
    if active < experts:
        assert more["expert_parallel"] > fewer["expert_parallel"]
        assert more["compute"] > fewer["compute"]


@given(ep=st.sampled_from([1, 2, 4, 8]), tp=st.sampled_from([1, 2, 4]), etp=st.sampled_from([1, 2, 4]))
@settings(max_examples=30, deadline=None)
def test_sharded_states_are_split_over_all_ranks_however_experts_are(ep: int, tp: int, etp: int) -> None:
    layout = layout_of(ep_degree=ep, tp_degree=tp, expert_tp_degree=etp, vocab_size=0)
    assert bytes_of(layout)["optimizer"] == pytest.approx(12 * 32 * float(layout.layer_params[0]) / 64)


def test_a_higher_degree_holds_fewer_experts() -> None:
    weights = [bytes_of(layout_of(ep_degree=degree))["weights"] for degree in (1, 2, 4, 8)]
    assert weights == sorted(weights, reverse=True)
    assert len({*weights}) == len(weights)


def test_few_tokens_per_expert_are_slow() -> None:
    """Grouped products of eight times as many experts get an eighth of the tokens each."""
    slow = [float(routed_slowdown(layout_of(n_experts=count, ep_degree=1), DEFAULTS)[0]) for count in (2, 8, 64, 512)]
    assert slow == sorted(slow)
    assert slow[0] == pytest.approx(1.0)  # two of two: each gets all tokens
    tokens, half = 4096.0, DEFAULTS["half_tokens"]
    assert slow[1] == pytest.approx((tokens / (tokens + half)) / (tokens / 4 / (tokens / 4 + half)))


def test_ranks_that_share_their_experts_give_them_more_tokens() -> None:
    alone, shared = (
        float(routed_slowdown(layout_of(n_experts=64, ep_degree=degree), {**DEFAULTS, "expert_imbalance": 0.0})[0])
        for degree in (1, 8)
    )
    assert shared < alone


@pytest.mark.parametrize(
    ("degree", "capacity", "fullest"),
    [(1, None, 1.0), (2, None, 1.25), (4, None, 1.375), (4, 1.25, 1.25), (4, 2.0, 1.375), (4, 0.5, 1.0)],
)
def test_a_capacity_factor_bounds_the_fullest_rank(degree: int, capacity: float | None, fullest: float) -> None:
    layout = layout_of(ep_degree=degree, capacity_factor=capacity)
    assert fullest_rank(layout, {**DEFAULTS, "expert_imbalance": 0.5})[0] == pytest.approx(fullest)


def test_the_network_carries_what_leaves_the_node() -> None:
    inside, across = (
        float(expert_parallel(layout_of(ep_degree=degree, n_experts=64), DEFAULTS, NOTHING)[1][0]) for degree in (8, 16)
    )
    assert across > 3 * inside


def test_overlapping_schedules_hide_the_exchange_under_computation() -> None:
    facts: dict[str, Value] = {"ep_degree": 8, "pp_degree": 4, "gradient_accumulation_steps": 16}
    plain, dual = layout_of(**facts), layout_of(**facts, pp_schedule="DualPipeV")
    compute = np.array([1e3])
    every, exposed = expert_parallel(plain, DEFAULTS, compute)
    assert exposed[0] == every[0] > 0.0
    assert expert_parallel(dual, DEFAULTS, compute)[1][0] == 0.0
    assert expert_parallel(dual, DEFAULTS, NOTHING)[1][0] == every[0]
