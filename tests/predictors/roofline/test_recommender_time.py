"""Step time of recommenders: counts by hand, a plain simulation of its streams, and laws that must hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchx_cubicml.predictors.roofline.embedding_load import SHARDINGS
from torchx_cubicml.predictors.roofline.recommender_constants import RECOMMENDER_DEFAULTS
from torchx_cubicml.predictors.roofline.recommender_layout import RecommenderLayout
from torchx_cubicml.predictors.roofline.recommender_time import (
    RECOMMENDER_PARTS,
    recommender_hidden,
    recommender_step_time,
)

if TYPE_CHECKING:
    from torchx_cubicml.predictors.roofline.constants import Constants
    from torchx_cubicml.records.values import Value

# 64 devices on 8 nodes: 63/64 of the bytes pass the network.
DENSE: dict[str, Value] = {
    "layer_n_params": (100_000_000, 300_000_000),
    "sharding_strategy": ("FULL_SHARD", "NO_SHARD"),
    "micro_batch_size": 300,
    "world_size": 64,
    "device": "NVIDIA H100 80GB HBM3",
}
TABLES: dict[str, Value] = {
    "embedding_rows": (100_000, 2_000_000, 300),
    "embedding_dims": (64, 32, 16),
    "embedding_pooling": (2.0, 20.0, 1.0),
    "micro_batch_size": 512,
    "world_size": 4,
    "device": "cpu",
}
FLOPS = 989.4e12 * 0.6 * 0.5  # half of the efficiency at 300 samples
BYTE = 63 / 64 / (50e9 * 0.5)
SHARDED = [word for word in SHARDINGS if word != "planner"]


def seconds(row: dict[str, Value], constants: Constants = RECOMMENDER_DEFAULTS) -> dict[str, float]:
    parts = recommender_step_time(RecommenderLayout.from_rows([row]), constants)
    return {name: float(part[0]) for name, part in parts.items()}


def total(**changes: Value) -> float:
    return sum(seconds({**TABLES, **changes}).values())


def sharded(word: str) -> dict[str, Value]:
    return {"embedding_sharding": (word,) * 3}


def test_computation_is_six_flops_per_parameter_and_sample() -> None:
    assert seconds(DENSE)["compute"] == pytest.approx(6 * 400e6 * 300 / FLOPS)
    assert tuple(seconds(DENSE)) == RECOMMENDER_PARTS


def test_exposed_time_is_as_counted_by_hand() -> None:
    gather, forward = 2 * 100e6 * BYTE, [2 * size * 300 / FLOPS for size in (100e6, 300e6)]
    # Gather one, compute both, back through two, reduce two (twice the bytes) while one is to be gathered again.
    clock = gather + sum(forward) + 2 * forward[1]
    wire = clock + 2 * 3 * gather
    clock = wire + gather + 2 * forward[0]
    assert seconds(DENSE)["data_parallel"] == pytest.approx(clock + gather - 3 * sum(forward))


def hidden(row: dict[str, Value], constants: Constants = RECOMMENDER_DEFAULTS) -> dict[str, float]:
    parts = recommender_hidden(RecommenderLayout.from_rows([row]), constants)
    return {name: float(part[0]) for name, part in parts.items()}


def test_hidden_collectives_are_the_rest_of_those_counted_by_hand() -> None:
    gather = 2 * 100e6 * BYTE  # the first layer is gathered twice and scattered once; of the other twice as many bytes
    whole = (2 + 1 + 3 * 2) * gather
    assert hidden(DENSE)["data_parallel"] + seconds(DENSE)["data_parallel"] == pytest.approx(whole)


def test_a_pipeline_hides_the_indices_of_the_next_step() -> None:
    pipelined = {**TABLES, "train_pipeline": "TrainPipelineSparseDist", "layer_n_params": (50_000_000,)}
    plain = {**pipelined, "train_pipeline": "TrainPipelineBase"}
    assert hidden(plain)["embedding_input"] == 0.0
    assert hidden(pipelined)["embedding_input"] > 0.0
    whole = seconds(pipelined)["embedding_input"] + hidden(pipelined)["embedding_input"]
    assert whole == pytest.approx(seconds(plain)["embedding_input"])


def test_one_rank_hides_nothing() -> None:
    assert set(hidden({**TABLES, "world_size": 1}).values()) == {0.0}


def test_tables_that_are_alike_are_looked_up_and_exchanged_evenly() -> None:
    sparse = {"n_embedding_tables": 100, "embedding_dim": 128, "embedding_pooling": 20, "n_embedding_rows": 10**9}
    constants = {**RECOMMENDER_DEFAULTS, "exchange_s": 1e-12, "hidden_exchange": 1e-12, "cache_bytes": 1e-9}
    found = seconds({**DENSE, **sparse}, constants)
    numbers = 300 * 100 * 128 * 4
    assert found["embedding_exchange"] == pytest.approx(2 * numbers * BYTE / 0.7, rel=0.02)
    assert found["embedding_input"] == pytest.approx(300 * 100 * 21 * 8 * BYTE / 0.7)
    memory = 3352e9 * constants["memory_bandwidth"]
    moved = numbers * 20 + 300 * 100 * 20 * constants["row_bytes"] + numbers
    assert found["embedding_lookup"] == pytest.approx(3 * moved / memory + 100 / 64 * constants["table_s"])
    assert found["embedding_imbalance"] == pytest.approx(0.0)


@pytest.mark.parametrize("word", SHARDINGS)
def test_one_process_has_no_communication(word: str) -> None:
    alone = seconds({**TABLES, **DENSE, **sharded(word), "world_size": 1})
    for name in ("data_parallel", "embedding_input", "embedding_exchange", "embedding_imbalance"):
        assert alone[name] == pytest.approx(0.0, abs=1e-12)


def test_replicated_tables_exchange_no_embeddings_and_reduce_every_row() -> None:
    found = seconds({**TABLES, **sharded("data_parallel")})
    assert found["embedding_exchange"] == found["embedding_input"] == found["embedding_imbalance"] == 0.0
    size = 4 * (100_000 * 64 + 2_000_000 * 32 + 300 * 16)
    wire, memory = 4e9 * 0.5, 20e9 * 0.45
    assert found["embedding_replicas"] == pytest.approx(2 * size * 3 / 4 / wire + 5 * size / memory)


def test_row_wise_and_table_wise_differ() -> None:
    """Many lookups of one table are for row-wise, which shares them; few lookups of many tables are for table-wise."""
    heavy: dict[str, Value] = {"embedding_pooling": (1.0, 400.0, 1.0)}
    assert total(**heavy, **sharded("row_wise")) < total(**heavy, **sharded("table_wise"))
    light: dict[str, Value] = {"embedding_pooling": (1.0, 1.0, 1.0), "embedding_dims": (64, 64, 64)}
    assert total(**light, **sharded("table_wise")) < total(**light, **sharded("row_wise"))


def test_the_ranks_wait_for_the_fullest() -> None:
    heavy: dict[str, Value] = {"embedding_pooling": (1.0, 400.0, 1.0)}
    assert seconds({**TABLES, **heavy, **sharded("table_wise")})["embedding_imbalance"] > 0.0
    assert seconds({**TABLES, **heavy, **sharded("row_wise")})["embedding_imbalance"] == pytest.approx(0.0)


def test_each_kind_of_sharding_has_collectives_of_its_own() -> None:
    constants = {**RECOMMENDER_DEFAULTS, "exchange_s": 10.0}
    kinds = [("row_wise", "row_wise", "row_wise"), ("row_wise", "table_wise", "row_wise"), ("data_parallel",) * 3]
    found = [seconds({**TABLES, "embedding_sharding": each}, constants) for each in kinds]
    latency = [each["embedding_input"] + each["embedding_exchange"] for each in found]
    assert latency == pytest.approx([40.0, 80.0, 0.0], abs=0.1)


def test_a_pipeline_hides_the_exchange_of_indices() -> None:
    row = {**DENSE, **TABLES, **sharded("table_wise")}
    names = ("TrainPipelineBase", "TrainPipelineSparseDist", "PrefetchTrainPipelineSparseDist", "TrainPipelineSemiSync")
    plain, *piped = (
        seconds({**row, **more})["embedding_input"] for more in ({}, *({"train_pipeline": name} for name in names))
    )
    assert piped[0] == plain
    assert max(piped[1:]) < 0.5 * plain


def test_tables_in_host_memory_are_slow() -> None:
    kernels = ("fused", "fused_uvm_caching", "fused_uvm", "key_value")
    gpu: dict[str, Value] = {**sharded("row_wise"), "device": "NVIDIA A100-SXM4-80GB"}
    found = [total(**gpu, embedding_kernel=(each,) * 3) for each in kernels]
    assert found == sorted(found)
    assert found[0] < found[-1]


UNIFORM = st.sampled_from(["data_parallel", "row_wise", "planner", "table_row_wise"])


@settings(deadline=None)
@given(
    word=UNIFORM,
    table=st.integers(0, 2),
    name=st.sampled_from(["embedding_rows", "embedding_pooling", "embedding_dims"]),
    factor=st.integers(1, 8),
)
def test_more_rows_pooling_or_width_take_no_less_time(word: str, table: int, name: str, factor: int) -> None:
    more = list(TABLES[name])  # type: ignore[arg-type]
    more[table] *= factor
    assert total(**sharded(word), **{name: tuple(more)}) >= total(**sharded(word)) * (1 - 1e-9)


@settings(deadline=None)
@given(table=st.integers(0, 2), factor=st.integers(1, 8), name=st.sampled_from(["embedding_rows", "embedding_pooling"]))
def test_so_it_is_with_a_rank_for_each_table(table: int, factor: int, name: str) -> None:
    more = list(TABLES[name])  # type: ignore[arg-type]
    more[table] *= factor
    assert total(**sharded("table_wise"), **{name: tuple(more)}) >= total(**sharded("table_wise")) * (1 - 1e-9)


@settings(deadline=None)
@given(words=st.tuples(*[st.sampled_from(SHARDED)] * 3), ranks=st.sampled_from([1, 2, 4, 8, 16]))
def test_more_ranks_with_as_many_samples_each_exchange_no_less(words: tuple[str, ...], ranks: int) -> None:
    row = {**TABLES, "embedding_sharding": words, "nproc_per_node": 16}
    few, many = (seconds({**row, "world_size": count}) for count in (ranks, 2 * ranks))
    for name in ("data_parallel", "embedding_input", "embedding_exchange", "embedding_replicas"):
        assert many[name] >= few[name] * (1 - 1e-9)


@settings(deadline=None)
@given(words=st.tuples(*[st.sampled_from(SHARDINGS)] * 3), ranks=st.sampled_from([1, 2, 3, 8, 24]))
def test_no_part_is_negative(words: tuple[str, ...], ranks: int) -> None:
    row = {**TABLES, "embedding_sharding": words, "world_size": ranks, "nproc_per_node": min(8, ranks)}
    assert all(part >= -1e-12 and np.isfinite(part) for part in seconds(row).values())


def plain_exposed(sizes: list[float], strategies: list[str], *, second_per_size: float, byte: float) -> float:
    """Time that communication adds to computation, one event after the other."""
    wire = clock = 0.0
    forward = [second_per_size * size for size in sizes]
    gather = [2 * size * byte for size in sizes]
    split = [name != "NO_SHARD" for name in strategies]
    again = [name in {"FULL_SHARD", "HYBRID_SHARD"} for name in strategies]
    for layer, is_split in enumerate(split):
        if is_split:
            wire += gather[layer]
            clock = max(clock, wire)
        clock += forward[layer]
    for layer in range(len(sizes) - 1, -1, -1):
        if again[layer]:
            wire += gather[layer]
            clock = max(clock, wire)
        clock += 2 * forward[layer]
        wire = max(wire, clock) + gather[layer] * (1 if split[layer] else 2)
    return max(wire, clock) - 3 * sum(forward)


STRATEGIES = ["FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "_HYBRID_SHARD_ZERO2"]


def test_exposed_times_are_those_of_a_plain_simulation() -> None:
    rng = np.random.default_rng(0)
    rows, expected = [], []
    for _ in range(60):
        n_layers = int(rng.integers(1, 7))
        sizes = rng.integers(10**5, 4 * 10**8, n_layers).tolist()
        strategies = rng.choice(STRATEGIES, n_layers).tolist()
        samples, ranks = 2 ** int(rng.integers(4, 12)), int(rng.choice([1, 2, 8, 9, 64]))
        row = {**DENSE, "layer_n_params": tuple(sizes), "sharding_strategy": tuple(strategies)}
        rows.append({**row, "micro_batch_size": samples, "world_size": ranks})
        bandwidth = 450e9 * 0.5 if ranks <= 8 else 50e9 * 0.5
        flops = 989.4e12 * 0.6 * samples / (samples + 300)
        byte = (ranks - 1) / ranks / bandwidth
        expected.append(plain_exposed(sizes, strategies, second_per_size=2 * samples / flops, byte=byte))
    together = recommender_step_time(RecommenderLayout.from_rows(rows), RECOMMENDER_DEFAULTS)
    assert together["data_parallel"] == pytest.approx(expected, abs=1e-9)
    for place, row in enumerate(rows):  # padding changes nothing
        assert {name: part[place] for name, part in together.items()} == pytest.approx(seconds(row), abs=1e-12)


def test_a_fast_network_is_no_faster_than_the_node() -> None:
    slow = {**RECOMMENDER_DEFAULTS, "link_dp": 0.5, "network_dp": 100.0}
    assert seconds(DENSE, slow)["data_parallel"] == pytest.approx(
        seconds({**DENSE, "nproc_per_node": 64}, slow)["data_parallel"]
    )


def test_the_optimizer_updates_what_is_held() -> None:
    held = 100e6 / 64 + 300e6
    assert seconds(DENSE)["optimizer"] == pytest.approx(16 * held / (3352e9 * 0.45))
    assert seconds(DENSE)["overhead"] == RECOMMENDER_DEFAULTS["step_s"]
