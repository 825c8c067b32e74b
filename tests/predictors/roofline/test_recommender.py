from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from torchx_cubicml.predictors.features.device_specs import REFERENCE
from torchx_cubicml.predictors.features.history import History
from torchx_cubicml.predictors.roofline import Roofline
from torchx_cubicml.predictors.roofline.constants import DEFAULTS
from torchx_cubicml.predictors.roofline.recommender import Recommender, step_seconds
from torchx_cubicml.records.trial import Trial

# 64 devices on 8 nodes: 63/64 of the bytes pass the network.
ROW = {
    "layer_n_params": (100_000_000, 300_000_000),
    "sharding_strategy": ("FULL_SHARD", "NO_SHARD"),
    "micro_batch_size": 300,
    "world_size": 64,
    "device": "NVIDIA H100 80GB HBM3",
}
FLOPS = 989.4e12 * 0.6 * 0.5  # half of the efficiency at 300 samples
BYTE = 63 / 64 / (50e9 * 0.5)


def seconds(**changes: object) -> dict[str, float]:
    found = Recommender.of({**ROW, **changes})
    assert found is not None
    return found.seconds()


def memory(**changes: object) -> dict[str, float]:
    found = Recommender.of({**ROW, **changes})
    assert found is not None
    return found.memory()


def test_computation_is_six_flops_per_parameter_and_sample() -> None:
    assert seconds()["compute"] == pytest.approx(6 * 400e6 * 300 / FLOPS)


def test_exposed_time_is_as_counted_by_hand() -> None:
    gather, forward = 2 * 100e6 * BYTE, [2 * size * 300 / FLOPS for size in (100e6, 300e6)]
    # Gather one, compute both, back through two, reduce two (twice the bytes) while one is to be gathered again.
    clock = gather + sum(forward) + 2 * forward[1]
    wire = clock + 2 * 3 * gather
    clock = wire + gather + 2 * forward[0]
    assert seconds()["data_parallel"] == pytest.approx(clock + gather - 3 * sum(forward))


def test_one_device_has_no_exposed_time() -> None:
    alone = seconds(world_size=1)
    assert alone["data_parallel"] == pytest.approx(0.0)
    assert alone["embedding_exchange"] == 0.0


def test_strategies_trade_memory_for_communication() -> None:
    kinds = [{"sharding_strategy": name} for name in ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD")]
    full, once, none = (sum(memory(**kind).values()) for kind in kinds)
    assert full == pytest.approx(once)  # of two layers, both are whole at a time
    assert once < none
    assert none == pytest.approx(18 * 400e6)
    assert once == pytest.approx((2 + 16 / 64) * 400e6)
    assert full == pytest.approx(18 / 64 * 400e6 + 2 * 400e6 * 63 / 64)
    assert seconds(**kinds[0])["data_parallel"] > seconds(**kinds[1])["data_parallel"]


def test_embeddings_are_looked_up_and_exchanged() -> None:
    sparse = {"n_embedding_tables": 100, "embedding_dim": 128, "embedding_pooling": 20, "n_embedding_rows": 10**9}
    found = seconds(**sparse)
    numbers = 300 * 100 * 128 * 4
    assert found["embedding_exchange"] == pytest.approx(2 * numbers * BYTE)
    assert found["embedding_lookup"] == pytest.approx(3 * numbers * 20 / (3352e9 * DEFAULTS["memory_bandwidth"]))
    assert memory(**sparse)["embeddings"] == pytest.approx(10**9 * 128 * 4 / 64)


@pytest.mark.parametrize(("share", "fits"), [(0.05, False), (0.9, True)], ids=["too little", "enough"])
def test_the_dense_part_keeps_to_its_share(share: float, fits: bool) -> None:
    found = Recommender.of({**ROW, "reserved_share": share})
    assert found is not None
    assert found.fits(found.memory()) is fits


@pytest.mark.parametrize(
    "changes",
    [{"layer_n_params": 5}, {"world_size": "64"}, {"micro_batch_size": 0}, {"sharding_strategy": ("NO_SHARD",) * 3}],
    ids=["sizes", "devices", "batch", "strategies"],
)
def test_an_incomplete_row_is_no_recommender(changes: dict[str, object]) -> None:
    assert Recommender.of({**ROW, **changes}) is None


def test_the_roofline_explains_it() -> None:
    assert Roofline().explain(ROW) == pytest.approx(seconds())
    assert Roofline().explain({"world_size": 8}) == {}


PLANTED = {"gemm_efficiency": 0.45, "network_dp": 0.2, "memory_bandwidth": 0.7, "step_s": 0.03}


def test_calibration_recovers_planted_constants_from_noisy_runs() -> None:
    rng = np.random.default_rng(0)
    trials = []
    for _ in range(300):
        row = {
            "layer_n_params": tuple(rng.integers(10**5, 2 * 10**8, 8).tolist()),
            "sharding_strategy": tuple(rng.choice(["FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"], 8).tolist()),
            "micro_batch_size": 2 ** int(rng.integers(4, 14)),
            "world_size": int(rng.choice([1, 1, 8, 64])),
            "n_embedding_tables": int(rng.integers(200)),
            "embedding_dim": 128,
            "embedding_pooling": 400,
            "device": "NVIDIA H100 80GB HBM3",
        }
        found = Recommender.of(row)
        assert found is not None
        seconds = sum(found.seconds({**DEFAULTS, **PLANTED}).values()) * float(np.exp(rng.normal(0.0, 0.05)))
        seconds *= 3.0 if rng.random() < 0.03 else 1.0  # a straggler now and then
        speed = row["micro_batch_size"] * row["world_size"] / seconds
        trials.append(Trial.completed(workload={}, config=row, samples_per_second=speed))
    history = History.from_trials(trials, objective="samples_per_second")
    roofline = Roofline().fit(history, rng=np.random.default_rng(0))
    learned = {name: roofline.recommenders_[name] for name in PLANTED}
    assert learned == pytest.approx(PLANTED, rel=0.2)
    explained = [sum(roofline.explain(row).values()) for row in history.rows]
    measured = [row["micro_batch_size"] * row["world_size"] for row in history.rows] / history.throughput
    assert np.median(np.abs(np.log(explained / measured))) < 0.06


def test_without_a_history_the_defaults_serve() -> None:
    assert Roofline().recommenders_ == DEFAULTS


@pytest.mark.parametrize("sizes", [("a", "b"), (1e300, 1.0), (-1, 2), (True, 5)], ids=str)
def test_illegal_sizes_are_no_recommender(sizes: tuple[object, ...]) -> None:
    assert Recommender.of({**ROW, "layer_n_params": sizes}) is None
    trial = Trial.completed(workload={**ROW, "layer_n_params": sizes}, config={}, samples_per_second=1.0)
    history = History.from_trials([trial], objective="samples_per_second")
    predicted = Roofline().fit(history, rng=np.random.default_rng(0)).predict(history.features)
    assert np.isnan(predicted.throughput).all()


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


WORDS = ["FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "_HYBRID_SHARD_ZERO2"]


def test_exposed_times_are_those_of_a_plain_simulation() -> None:
    rng = np.random.default_rng(0)
    trainings, expected = [], []
    for _ in range(60):
        n_layers = int(rng.integers(1, 7))
        sizes = rng.integers(10**5, 4 * 10**8, n_layers).tolist()
        strategies = rng.choice(WORDS, n_layers).tolist()
        samples, ranks = 2 ** int(rng.integers(4, 12)), int(rng.choice([1, 2, 8, 9, 64]))
        row = {**ROW, "layer_n_params": tuple(sizes), "sharding_strategy": tuple(strategies)}
        found = Recommender.of({**row, "micro_batch_size": samples, "world_size": ranks})
        assert found is not None
        trainings.append(found)
        bandwidth = 450e9 * DEFAULTS["link_dp"] if ranks <= 8 else 50e9 * DEFAULTS["network_dp"]
        flops = 989.4e12 * DEFAULTS["gemm_efficiency"] * samples / (samples + DEFAULTS["half_tokens"])
        byte = (ranks - 1) / ranks / bandwidth
        expected.append(plain_exposed(sizes, strategies, second_per_size=2 * samples / flops, byte=byte))
    together = step_seconds(trainings, DEFAULTS)
    assert together["data_parallel"] == pytest.approx(expected, abs=1e-9)
    for place, training in enumerate(trainings):  # padding changes nothing
        alone = training.seconds()
        assert {name: part[place] for name, part in together.items()} == pytest.approx(alone, abs=1e-12)


def test_a_fast_network_is_no_faster_than_the_node() -> None:
    constants = {**DEFAULTS, "link_dp": 0.5, "network_dp": 100.0}
    found = Recommender.of({**ROW, "n_embedding_tables": 10, "embedding_dim": 16})
    assert found is not None
    assert found.seconds(constants)["embedding_exchange"] == pytest.approx(2 * 300 * 160 * 4 * 63 / 64 / 225e9)


def test_the_optimizer_updates_what_is_held() -> None:
    held = 100e6 / 64 + 300e6
    assert seconds()["optimizer"] == pytest.approx(16 * held / (3352e9 * DEFAULTS["memory_bandwidth"]))
    assert seconds()["overhead"] == DEFAULTS["step_s"]


def test_facts_left_out_have_defaults() -> None:
    row = {name: value for name, value in ROW.items() if name != "device"}
    bare = Recommender.of(row)
    assert bare is not None
    assert (bare.tables, bare.table_width, bare.pooling, bare.table_rows, bare.reserved_share) == (0, 0, 1, 0, 1)
    assert bare.hardware == REFERENCE
    given = Recommender.of({**row, "n_embedding_rows": 7, "embedding_pooling": 3, "reserved_share": 0.5})
    assert given is not None
    assert (given.table_rows, given.pooling, given.reserved_share) == (7, 3, 0.5)
    one = Recommender.of({**ROW, "sharding_strategy": "NO_SHARD", "world_size": 1, "micro_batch_size": 1})
    assert one is not None
    assert one.strategies == ("NO_SHARD", "NO_SHARD")
    assert Recommender.of({**ROW, "world_size": 0.5}) is None
    assert Recommender.of({**ROW, "layer_n_params": ()}) is None
    assert Recommender.of({**ROW, "sharding_strategy": None}) is None


@pytest.mark.parametrize(
    ("strategy", "weights", "states", "gathered"),
    [
        ("FULL_SHARD", 1 / 64, 1 / 64, 63 / 64),
        ("HYBRID_SHARD", 1 / 64, 1 / 64, 63 / 64),
        ("SHARD_GRAD_OP", 1, 1 / 64, 0),
        ("_HYBRID_SHARD_ZERO2", 1, 1 / 64, 0),
        ("NO_SHARD", 1, 1, 0),
    ],
)
def test_each_strategy_divides_its_states(strategy: str, weights: float, states: float, gathered: float) -> None:
    """Of three layers, the two largest are whole at a time."""
    sizes = (100e6, 300e6, 200e6)
    found = memory(layer_n_params=sizes, sharding_strategy=strategy)
    expected = {"weights": 2 * 600e6 * weights, "gradients": 4 * 600e6 * states, "optimizer": 12 * 600e6 * states}
    assert found == pytest.approx({**expected, "gathered": 2 * 500e6 * gathered, "embeddings": 0.0})


@pytest.mark.parametrize(
    ("dense", "tables", "share", "fits"),
    [
        (40e9, 0.0, 0.5, True),
        (40.1e9, 0.0, 0.5, False),
        (10e9, 70e9, 0.5, True),  # what the dense part leaves of its share serves the tables
        (10e9, 70.1e9, 0.5, False),
        (40e9, 40e9, 0.5, True),
        (40e9, 40.1e9, 0.9, False),
    ],
)
def test_tables_have_the_rest_of_the_memory(dense: float, tables: float, share: float, fits: bool) -> None:
    found = Recommender.of({**ROW, "reserved_share": share})
    assert found is not None
    found = replace(found, hardware=replace(found.hardware, memory=80e9))
    assert found.fits({"weights": dense / 4, "optimizer": 3 * dense / 4, "embeddings": tables}) is fits


def test_slow_trainings_calibrate_as_well() -> None:
    row = {**ROW, "micro_batch_size": 1, "world_size": 1, "sharding_strategy": "NO_SHARD"}
    trial = Trial.completed(workload={}, config=row, samples_per_second=0.5)
    history = History.from_trials([trial], objective="samples_per_second")
    found = Roofline().fit(history, rng=np.random.default_rng(0)).explain(row)
    assert sum(seconds(**row).values()) < 0.5 < sum(found.values()) < 2.1
