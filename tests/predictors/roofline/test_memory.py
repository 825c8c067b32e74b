from __future__ import annotations

import numpy as np
import pytest

from torchx_cubicml.predictors.roofline import Roofline
from torchx_cubicml.predictors.roofline.memory import MEMORY_PARTS

GIB = 2.0**30
ROW = {
    "n_layers": 24,
    "d_model": 2048,
    "d_ff": 8192,
    "seq_len": 1024,
    "micro_batch_size": 4,
    "world_size": 8,
    "vocab_size": 0,
    "zero_stage": 0,
    "attention_kernel": "flash",
    "device": "NVIDIA A100-SXM4-80GB",
}
PARAMS = 24 * 12 * 2048**2
TOKENS = 4 * 1024


def memory_of(**changes: object) -> dict[str, float]:
    parts = Roofline().memory([{**ROW, **changes}])
    return {name: float(value[0]) for name, value in parts.items()}


@pytest.mark.parametrize(
    ("strategy", "weights", "gradients", "optimizer"),
    [("NO_SHARD", 1, 1, 1), ("SHARD_GRAD_OP", 1, 8, 8), ("FULL_SHARD", 8, 8, 8)],
)
def test_each_fsdp_stage_divides_one_state_more(strategy: str, weights: int, gradients: int, optimizer: int) -> None:
    memory = memory_of(sharding_strategy=strategy)
    assert memory["weights"] == pytest.approx(2 * PARAMS / weights)
    assert memory["gradients"] == pytest.approx(4 * PARAMS / gradients)
    assert memory["optimizer"] == pytest.approx(12 * PARAMS / optimizer)
    assert (memory["gathered"] > 0) == (strategy == "FULL_SHARD")


def test_zero_stage_one_divides_the_optimizer_alone() -> None:
    memory = memory_of(zero_stage=1)
    assert (memory["weights"], memory["gradients"]) == pytest.approx((2 * PARAMS, 4 * PARAMS))
    assert memory["optimizer"] == pytest.approx(12 * PARAMS / 8)


def test_hybrid_sharding_divides_within_a_node() -> None:
    memory = memory_of(sharding_strategy="HYBRID_SHARD", world_size=32)
    assert memory["optimizer"] == pytest.approx(12 * PARAMS / 8)


def test_layers_under_different_strategies_add_up() -> None:
    whole, sharded = (memory_of(sharding_strategy=word)["optimizer"] for word in ("NO_SHARD", "FULL_SHARD"))
    mixed = memory_of(sharding_strategy=("FULL_SHARD",) * 12 + ("NO_SHARD",) * 12)["optimizer"]
    assert mixed == pytest.approx((whole + sharded) / 2)


def test_activations_are_those_of_korthikanti() -> None:
    assert memory_of()["activations"] == pytest.approx(24 * 34 * TOKENS * 2048)
    scores = 5 * 16 * 1024 * TOKENS  # heads x sequence, per token
    assert memory_of(attention_kernel="eager")["activations"] == pytest.approx(24 * (34 * TOKENS * 2048 + scores))
    split = 24 * TOKENS * 2048 * (24 / 8 + 10)
    assert memory_of(tp_degree=8, sequence_parallel=False)["activations"] == pytest.approx(split)
    assert memory_of(tp_degree=8)["activations"] == pytest.approx(24 * 34 * TOKENS * 2048 / 8)


def test_recomputation_keeps_layer_inputs_and_one_layer() -> None:
    kept = memory_of(activation_checkpointing="full")["activations"]
    assert kept == pytest.approx((24 * 2 + 34) * TOKENS * 2048)


def test_the_first_stage_holds_one_micro_batch_per_stage() -> None:
    few, many = (memory_of(pp_degree=4, gradient_accumulation_steps=rounds)["activations"] for rounds in (2, 16))
    assert few == pytest.approx(6 * 2 * 34 * TOKENS * 2048)
    assert many == pytest.approx(6 * 4 * 34 * TOKENS * 2048)


def test_the_vocabulary_takes_its_logits() -> None:
    assert memory_of(vocab_size=50000)["logits"] == pytest.approx(12 * TOKENS * 50000)


def test_rows_that_are_not_covered_have_no_memory() -> None:
    parts = Roofline().memory([ROW, {"n_layers": 4}])
    assert [np.isnan(value).tolist() for value in parts.values()] == [[False, True]] * len(parts)


def test_experts_are_divided_over_their_degree() -> None:
    facts = {"n_experts": 8, "ep_degree": 4, "tp_degree": 2, "sharding_strategy": "FULL_SHARD", "world_size": 32}
    memory = memory_of(**facts)
    # Among 16 ranks with the same slices, only 4 have the same experts. In the end, each of 32 ranks holds its share.
    assert memory["optimizer"] == pytest.approx(12 * 24 * (4 + 8 * 8) * 2048**2 / 32)
    assert memory["gathered"] == pytest.approx(2 * 2 * (4 / 2 * 15 / 16 + 64 / 8 * 3 / 4) * 2048**2)


def test_words_of_four_bytes_take_twice_the_room() -> None:
    two, four = memory_of(sharding_strategy="FULL_SHARD"), memory_of(sharding_strategy="FULL_SHARD", precision="fp32")
    ratios = {name: four[name] / two[name] for name in two if two[name]}
    # Weights of four bytes need no master copy beside the two moments of Adam: 8 bytes instead of 12.
    expected = {"weights": 2.0, "gathered": 2.0, "activations": 2.0, "optimizer": 8 / 12}
    assert ratios == pytest.approx({name: expected.get(name, 1.0) for name in ratios})


def test_half_of_the_layers_recomputed_keep_half_the_activations() -> None:
    words = ("full",) * 12 + ("none",) * 12
    kept = memory_of(activation_checkpointing=words)["activations"]
    assert kept == pytest.approx((24 * (34 + 2) / 2 + 34) * TOKENS * 2048)


def test_selective_recomputation_drops_the_scores() -> None:
    scores = 5 * 16 * 1024 * TOKENS
    for share, words in ((1.0, "none"), (0.0, "selective"), (0.25, ("selective",) * 18 + ("none",) * 6)):
        found = memory_of(attention_kernel="eager", activation_checkpointing=words)["activations"]
        assert found == pytest.approx(24 * (34 * TOKENS * 2048 + share * scores))


def test_a_sharded_layer_input_is_split_with_its_sequence() -> None:
    split, whole = (
        memory_of(activation_checkpointing="full", tp_degree=8, sequence_parallel=on)["activations"]
        for on in (True, False)
    )
    assert split == pytest.approx((24 * 2 + 34) * TOKENS * 2048 / 8)
    assert whole == pytest.approx((24 * 2 + 24 / 8 + 10) * TOKENS * 2048)


@pytest.mark.parametrize(("vocabulary", "last"), [(30_000, False), (40_000, True)])
def test_the_fuller_of_the_first_and_the_last_stage_counts(vocabulary: int, last: bool) -> None:
    """Of two stages with twelve layers each, the first holds two micro batches, the last one and the logits."""
    held = 12 * 34 * TOKENS * 2048
    assert held * 1.0 * 2 > 12 * TOKENS * 30_000 / 1  # the activations of one micro batch are the border
    found = memory_of(pp_degree=2, gradient_accumulation_steps=8, vocab_size=vocabulary * 2)
    logits = 12 * TOKENS * vocabulary * 2
    assert (logits > held) is last
    assert found["activations"] == pytest.approx(held if last else 2 * held)
    assert found["logits"] == pytest.approx(logits if last else 0.0)
    assert found["reserved"] == 1e9


def test_the_parts_have_their_names() -> None:
    assert tuple(memory_of()) == MEMORY_PARTS
