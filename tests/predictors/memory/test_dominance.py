from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchx_cubicml.predictors.memory.dominance import DominanceRules, memory_rank_of, memory_rank_of_row

ROW = {"program": "a.py", "sharding_strategy": ("FULL_SHARD", "NO_SHARD"), "micro_batch_size": 8}
NAMES = ("program", "sharding_strategy", "micro_batch_size")


def verdict(asked: dict[str, object], *outcomes: tuple[int, bool]) -> float:
    limits = DominanceRules.of([({**ROW, "micro_batch_size": batch}, fits) for batch, fits in outcomes], names=NAMES)
    return float(limits.verdicts([{**ROW, **asked}])[0])


@pytest.mark.parametrize(
    ("batch", "expected"), [(2, 1.0), (4, 1.0), (8, math.nan), (16, 0.0), (32, 0.0)], ids=lambda value: f"{value}"
)
def test_known_outcomes_decide_larger_and_smaller_batches(batch: int, expected: float) -> None:
    assert verdict({"micro_batch_size": batch}, (4, True), (16, False)) == pytest.approx(expected, nan_ok=True)


@pytest.mark.parametrize(
    "other", [{"program": "b.py"}, {"sharding_strategy": ("NO_SHARD", "NO_SHARD")}], ids=["workload", "layers"]
)
def test_other_workloads_and_configs_are_unknown(other: dict[str, object]) -> None:
    assert math.isnan(verdict({**other, "micro_batch_size": 64}, (4, True), (16, False)))


def test_a_failure_outweighs_a_success() -> None:
    assert verdict({"micro_batch_size": 8}, (8, False), (8, True), (16, True)) == 0.0


def test_rows_that_lack_a_name_are_compared_with_each_other() -> None:
    bare = {"program": "a.py", "micro_batch_size": 8}
    limits = DominanceRules.of([(bare, False)], names=NAMES)
    assert math.isnan(limits.verdicts([ROW])[0])
    assert limits.verdicts([{**bare, "micro_batch_size": 16}])[0] == 0.0


def test_a_config_without_a_micro_batch_is_compared_with_itself() -> None:
    limits = DominanceRules.of([({"tp_degree": 1}, False), ({"tp_degree": 2}, True)], names=("tp_degree",))
    assert limits.verdicts([{"tp_degree": 1}, {"tp_degree": 2}, {"tp_degree": 4}]) == pytest.approx(
        [0.0, 1.0, math.nan], nan_ok=True
    )


def test_rows_without_names_are_unknown() -> None:
    assert math.isnan(DominanceRules.of([(ROW, False)], names=()).verdicts([ROW])[0])


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


@settings(max_examples=50)
@given(
    outcomes=st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 6), st.booleans()), max_size=8),
    asked=st.tuples(st.sampled_from("ab"), st.integers(0, 7)),
)
def test_verdicts_are_those_of_plain_comparisons(outcomes: list[tuple[str, int, bool]], asked: tuple[str, int]) -> None:
    rows = [({"program": program, "micro_batch_size": batch}, fits) for program, batch, fits in outcomes]
    program, batch = asked
    same = [(size, fits) for name, size, fits in outcomes if name == program]
    if any(not fits and size <= batch for size, fits in same):
        expected = 0.0
    elif any(fits and size >= batch for size, fits in same):
        expected = 1.0
    else:
        expected = math.nan
    rules = DominanceRules.of(rows, names=NAMES)
    (found,) = rules.verdicts([{"program": program, "micro_batch_size": batch}]).tolist()
    assert found == pytest.approx(expected, nan_ok=True)
