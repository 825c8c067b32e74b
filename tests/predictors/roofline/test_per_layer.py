"""A value per layer: the formulas take shares of layers, and one value for all layers is that value repeated."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchx_cubicml.predictors.features.columns import Columns
from torchx_cubicml.predictors.roofline.constants import DEFAULTS
from torchx_cubicml.predictors.roofline.facts import Decoder, Facts
from torchx_cubicml.predictors.roofline.memory import memory_parts
from torchx_cubicml.predictors.roofline.step_time import step_time
from torchx_cubicml.predictors.roofline.training_layout import TrainingLayout

if TYPE_CHECKING:
    from torchx_cubicml.records.values import Value

N_LAYERS = 8
ROW: dict[str, Value] = {
    "n_layers": N_LAYERS,
    "d_model": 2048,
    "d_ff": 8192,
    "seq_len": 2048,
    "micro_batch_size": 2,
    "world_size": 32,
    "nproc_per_node": 8,
    "vocab_size": 32_000,
    "attention_kernel": "eager",
    "precision": "bf16",
    "device": "NVIDIA A100-SXM4-80GB",
}
STRATEGIES = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "_HYBRID_SHARD_ZERO2")
PLAIN = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD")  # the least memory first
RECOMPUTED = ("full", "selective", "none")  # the least memory first
COMPARED = ("weights", "gradients", "optimizer", "gathered", "activations")


def layout_of(**changes: Value) -> TrainingLayout:
    return TrainingLayout.of(Facts.from_rows([{**ROW, **changes}]))


def seconds(**changes: Value) -> dict[str, float]:
    return {name: float(part[0]) for name, part in step_time(layout_of(**changes), DEFAULTS).parts().items()}


def sizes(**changes: Value) -> dict[str, float]:
    return {name: float(part[0]) for name, part in memory_parts(layout_of(**changes)).items()}


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("recomputed", RECOMPUTED)
def test_one_value_is_that_value_in_every_layer(strategy: str, recomputed: str) -> None:
    one: dict[str, Value] = {"sharding_strategy": strategy, "activation_checkpointing": recomputed}
    each: dict[str, Value] = {name: (value,) * N_LAYERS for name, value in one.items()}
    assert seconds(**each) == pytest.approx(seconds(**one))
    assert sizes(**each) == pytest.approx(sizes(**one))


@given(
    strategies=st.lists(st.sampled_from(STRATEGIES), min_size=N_LAYERS, max_size=N_LAYERS).map(tuple),
    recomputed=st.lists(st.sampled_from(RECOMPUTED), min_size=N_LAYERS, max_size=N_LAYERS).map(tuple),
    rounds=st.sampled_from((1, 4)),
    pp=st.sampled_from((1, 2)),
)
def test_parts_are_never_negative_and_add_up(
    strategies: tuple[str, ...], recomputed: tuple[str, ...], rounds: int, pp: int
) -> None:
    layout = layout_of(
        sharding_strategy=strategies,
        activation_checkpointing=recomputed,
        gradient_accumulation_steps=rounds,
        pp_degree=pp,
    )
    times = step_time(layout, DEFAULTS)
    parts = times.parts()
    assert all(part[0] >= 0.0 for part in (*parts.values(), *memory_parts(layout).values()))
    assert sum(part[0] for part in parts.values()) == pytest.approx(times.total()[0])


@given(
    strategies=st.lists(st.sampled_from(PLAIN), min_size=N_LAYERS, max_size=N_LAYERS),
    recomputed=st.lists(st.sampled_from(RECOMPUTED), min_size=N_LAYERS, max_size=N_LAYERS),
    layer=st.integers(0, N_LAYERS - 1),
)
def test_a_layer_that_keeps_more_needs_no_less_memory_and_recomputing_no_less_time(
    strategies: list[str], recomputed: list[str], layer: int
) -> None:
    def next_of(words: tuple[str, ...], values: list[str]) -> tuple[str, ...]:
        word = words[min(words.index(values[layer]) + 1, len(words) - 1)]
        return (*values[:layer], word, *values[layer + 1 :])

    before = sizes(sharding_strategy=tuple(strategies), activation_checkpointing=tuple(recomputed))
    unsharded = sizes(sharding_strategy=next_of(PLAIN, strategies), activation_checkpointing=tuple(recomputed))
    for name in ("weights", "gradients", "optimizer"):
        assert unsharded[name] >= before[name] * (1 - 1e-9)
    # A gathered layer more than two costs nothing; of the first two, each is as large as an unsharded one is.
    together = ("weights", "gathered")
    assert sum(unsharded[name] for name in together) >= sum(before[name] for name in together) * (1 - 1e-9)
    kept = next_of(RECOMPUTED, recomputed)
    faster = seconds(sharding_strategy="FULL_SHARD", activation_checkpointing=kept)
    slower = seconds(sharding_strategy="FULL_SHARD", activation_checkpointing=tuple(recomputed))
    assert faster["compute"] <= slower["compute"] * (1 + 1e-9)


def test_two_layers_are_gathered_at_a_time_whatever_the_others_are() -> None:
    every = sizes(sharding_strategy="FULL_SHARD")["gathered"]
    for n_sharded, share in ((4, 1.0), (2, 1.0), (1, 0.5), (0, 0.0)):
        strategies = ("FULL_SHARD",) * n_sharded + ("NO_SHARD",) * (N_LAYERS - n_sharded)
        assert sizes(sharding_strategy=strategies)["gathered"] == pytest.approx(share * every)


def test_activations_are_those_of_each_layer() -> None:
    uniform = {word: sizes(activation_checkpointing=word, vocab_size=0)["activations"] for word in RECOMPUTED}
    # One layer at a time has everything while it is computed again.
    working = uniform["none"] / N_LAYERS
    mixed = sizes(activation_checkpointing=("full",) * 4 + ("selective",) * 2 + ("none",) * 2, vocab_size=0)
    expected = (4 * (uniform["full"] - working) + 2 * uniform["selective"] + 2 * uniform["none"]) / N_LAYERS + working
    assert mixed["activations"] == pytest.approx(expected)


def test_a_hybrid_layer_beside_a_sharded_one_holds_its_own_part() -> None:
    full, hybrid = (sizes(sharding_strategy=word)["optimizer"] for word in ("FULL_SHARD", "HYBRID_SHARD"))
    assert hybrid == pytest.approx(4 * full)  # over the 8 ranks of a node instead of 32
    for n_hybrid in (2, 4, 6):
        strategies = ("HYBRID_SHARD",) * n_hybrid + ("FULL_SHARD",) * (N_LAYERS - n_hybrid)
        share = n_hybrid / N_LAYERS
        expected = share * hybrid + (1 - share) * full
        assert sizes(sharding_strategy=strategies)["optimizer"] == pytest.approx(expected)


def test_one_backward_pass_hides_the_collectives_of_all_layers_together() -> None:
    """Half of the layers sharded: what hides their collectives is not free to hide the other layers' reduction."""
    slow = {**DEFAULTS, "dp_latency_s": 1e-12, "overlap": 1.0, "step_s": 1e-12}
    strategies = ("FULL_SHARD",) * 4 + ("NO_SHARD",) * 4

    def exposed(value: Value) -> float:
        parts = step_time(layout_of(sharding_strategy=value, nproc_per_node=4, micro_batch_size=1), slow).parts()
        return float(parts["data_parallel"][0])

    assert exposed(strategies) > 0.5 * exposed("NO_SHARD")


def test_encoded_rows_have_the_same_shares() -> None:
    rows: list[dict[str, Value]] = [
        {**ROW, "sharding_strategy": ("FULL_SHARD",) * 4 + (word,) * 4, "activation_checkpointing": (kept,) * 8}
        for word, kept in (("NO_SHARD", "full"), ("HYBRID_SHARD", "none"), ("SHARD_GRAD_OP", "full"))
    ]
    columns = Columns.from_rows(rows)
    decoded = TrainingLayout.of(Decoder(columns, rows).facts(columns.encode(rows)))
    direct = TrainingLayout.of(Facts.from_rows(rows))
    for layout in (decoded, direct):
        assert np.allclose(layout.shard, [32.0, 1.0 / (0.5 / 8 + 0.5 / 32), 32.0])
    assert np.allclose(step_time(decoded, DEFAULTS).total(), step_time(direct, DEFAULTS).total())
