from __future__ import annotations

import pytest

from torchx_cubicml.predictors.memory.memory_rank import memory_rank_of, memory_rank_of_row


@pytest.mark.parametrize(
    ("less", "more"),
    [
        ({"micro_batch_size": 4}, {"micro_batch_size": 8}),
        ({"seq_len": 1024}, {"seq_len": 2048}),
        ({"sharding_strategy": ("FULL_SHARD",) * 2}, {"sharding_strategy": ("FULL_SHARD", "SHARD_GRAD_OP")}),
        ({"sharding_strategy": "SHARD_GRAD_OP"}, {"sharding_strategy": "DDP"}),
        ({"activation_checkpointing": "full"}, {"activation_checkpointing": "none"}),
        ({"precision": "bf16"}, {"precision": "fp32"}),
    ],
    ids=["batch", "sequence", "layer", "strategy", "checkpointing", "precision"],
)
def test_hunger_knows_what_takes_memory(less: dict[str, object], more: dict[str, object]) -> None:
    assert memory_rank_of_row(less) < memory_rank_of_row(more)


def test_unknown_words_have_no_hunger() -> None:
    assert memory_rank_of_row({"precision": "int3", "micro_batch_size": "many", "compile": True}) == 0.0


@pytest.mark.parametrize(
    ("row", "rank"),
    [
        ({}, 0.0),
        ({"micro_batch_size": 8, "seq_len": 1024}, 13.0),
        ({"micro_batch_size": 0, "seq_len": -4}, 0.0),
        ({"micro_batch_size": 0.5}, -1.0),
        ({"micro_batch_size": True}, 0.0),
        ({"sharding_strategy": "FULL_SHARD"}, 0.0),
        ({"sharding_strategy": "HYBRID_SHARD"}, 0.5),
        ({"sharding_strategy": "SHARD_GRAD_OP"}, 1.0),
        ({"sharding_strategy": "_HYBRID_SHARD_ZERO2"}, 1.5),
        *(({"sharding_strategy": word}, 2.0) for word in ("NO_SHARD", "DDP", "NONE")),
        ({"sharding_strategy": ("NO_SHARD", "SHARD_GRAD_OP", "other", None)}, 1.5),  # the mean of what is known
        ({"activation_checkpointing": "full"}, 0.0),
        ({"activation_checkpointing": "selective"}, 1.0),
        ({"activation_checkpointing": "none"}, 2.0),
        ({"precision": "bf16"}, 0.0),
        ({"precision": "fp16"}, 0.0),
        ({"precision": "fp32", "micro_batch_size": 2, "sharding_strategy": "DDP"}, 4.0),
    ],
    ids=str,
)
def test_a_rank_counts_doublings_of_memory(row: dict[str, object], rank: float) -> None:
    assert memory_rank_of_row(row) == rank


def test_only_some_parameters_have_ranks() -> None:
    assert memory_rank_of("precision") == {"bf16": 0.0, "fp16": 0.0, "fp32": 1.0}
    assert memory_rank_of("micro_batch_size") == {}
