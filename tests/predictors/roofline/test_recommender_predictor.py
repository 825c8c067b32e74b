"""Predictions of recommenders by the calibrated formulas, and their use by ``roofline`` and ``greybox``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from torchx_cubicml.predictors import PREDICTORS
from torchx_cubicml.predictors.features.history import TrainingTable
from torchx_cubicml.predictors.roofline import Roofline
from torchx_cubicml.predictors.roofline.recommender_constants import RECOMMENDER_DEFAULTS
from torchx_cubicml.predictors.roofline.recommender_layout import RecommenderLayout
from torchx_cubicml.predictors.roofline.recommender_memory import RECOMMENDER_MEMORY_PARTS
from torchx_cubicml.predictors.roofline.recommender_time import RECOMMENDER_PARTS, recommender_step_time
from torchx_cubicml.records.trial import Trial

if TYPE_CHECKING:
    from torchx_cubicml.records.values import Value

DENSE: dict[str, Value] = {
    "layer_n_params": (100_000_000, 300_000_000),
    "sharding_strategy": ("FULL_SHARD", "NO_SHARD"),
    "micro_batch_size": 300,
    "world_size": 64,
    "device": "NVIDIA H100 80GB HBM3",
}
TABLES: dict[str, Value] = {
    "embedding_rows": (100_000, 400_000, 20_000, 200, 50_000, 24),
    "embedding_dims": (64, 16, 32, 8, 128, 4),
    "embedding_pooling": (2.0, 1.0, 30.0, 1.0, 4.0, 1.0),
    "micro_batch_size": 512,
    "world_size": 4,
    "device": "cpu",
}
TRANSFORMER: dict[str, Value] = {
    "n_layers": 4,
    "d_model": 64,
    "seq_len": 64,
    "micro_batch_size": 2,
    "world_size": 4,
    "device": "cpu",
}
WORDS = ["data_parallel", "table_wise", "row_wise"]
PLANTED = {"row_bytes": 300.0, "table_s": 1e-4, "exchange_s": 1e-3, "memory_bandwidth": 0.2, "step_s": 2e-3}


def true_seconds(row: dict[str, Value], planted: dict[str, float]) -> float:
    parts = recommender_step_time(RecommenderLayout.from_rows([row]), {**RECOMMENDER_DEFAULTS, **planted})
    return float(np.sum(list(parts.values())))


def plans(count: int, *, seed: int) -> list[Trial]:
    """Launches of one workload under random plans, by formulas with planted constants."""
    rng, trials = np.random.default_rng(seed), []
    for _ in range(count):
        config: dict[str, Value] = {"embedding_sharding": tuple(rng.choice(WORDS, 6).tolist())}
        seconds = true_seconds({**TABLES, **config}, PLANTED) * float(np.exp(rng.normal(0.0, 0.02)))
        trials.append(Trial.completed(workload=TABLES, config=config, samples_per_second=4 * 512 / seconds))
    return trials


def history_of(trials: list[Trial]) -> TrainingTable:
    return TrainingTable.from_trials(trials, objective="samples_per_second")


@pytest.mark.parametrize("name", ["roofline", "greybox"])
def test_few_launches_predict_other_plans_where_trees_cannot(name: str) -> None:
    errors: dict[str, list[float]] = {name: [], "boosting": []}
    asked = history_of(plans(40, seed=9))
    for seed in range(3):
        known = history_of(plans(8, seed=seed))
        for method, found in errors.items():
            predictor = PREDICTORS[method]().fit(known, rng=np.random.default_rng(0))
            predicted = predictor.predict(known.columns.encode(asked.rows)).logarithm
            found.append(float(np.median(np.abs(predicted - np.log(asked.throughput)))))
    assert np.median(errors[name]) < 0.1
    assert np.median(errors[name]) < 0.5 * np.median(errors["boosting"])


def test_a_new_word_is_predicted_from_launches_without_it() -> None:
    trials = [trial for trial in plans(60, seed=0) if "row_wise" not in trial.config["embedding_sharding"]]
    known = history_of(trials)
    predictor = PREDICTORS["roofline"]().fit(known, rng=np.random.default_rng(0))
    rows = [{**TABLES, "embedding_sharding": (word,) * 6} for word in ("row_wise", "table_wise")]
    by_rows, by_table = predictor.predict(known.columns.encode(rows)).logarithm.tolist()
    truth = [np.log(4 * 512 / true_seconds(row, PLANTED)) for row in rows]
    assert by_rows != pytest.approx(by_table, abs=1e-3)
    assert by_rows == pytest.approx(truth[0], abs=0.4)


def test_transformers_and_recommenders_share_a_history() -> None:
    others = [
        Trial.completed(workload={**TRANSFORMER, "n_layers": layers}, config={}, samples_per_second=100.0 / layers)
        for layers in (2, 3, 4, 6)
    ]
    known = history_of([*plans(8, seed=0), *others])
    apart = [history_of(plans(8, seed=0)), history_of(others)]
    for name in ("roofline", "greybox"):
        together = PREDICTORS[name]().fit(known, rng=np.random.default_rng(0)).predict(known.features).logarithm
        assert np.isfinite(together).all()
        assert np.abs(together - np.log(known.throughput)).max() < 0.7
    rows = [dict(row) for row in known.rows if "embedding_rows" in row]
    roofline, alone = (Roofline().fit(each, rng=np.random.default_rng(0)) for each in (known, apart[0]))
    assert roofline.explain(rows[0]) == pytest.approx(alone.explain(rows[0]))


def test_without_recommenders_nothing_is_known_of_them() -> None:
    history = history_of([Trial.completed(workload=TRANSFORMER, config={}, samples_per_second=1.0)])
    roofline = Roofline().fit(history, rng=np.random.default_rng(0))
    assert roofline.recommenders_.n_measured_ == 0
    assert roofline.recommenders_.constants_ == RECOMMENDER_DEFAULTS
    assert np.isnan(roofline.recommenders_.predict(history.features).logarithm).all()
    with pytest.raises(ValueError, match="fit the formulas"):
        roofline.recommenders_.estimate(history.features)


def test_the_roofline_explains_seconds_and_bytes() -> None:
    row = {**TABLES, "embedding_sharding": ("row_wise",) * 6}
    assert tuple(Roofline().explain(row)) == RECOMMENDER_PARTS
    assert sum(Roofline().explain(row).values()) == pytest.approx(true_seconds(row, {}))
    memory = Roofline().memory([row, TRANSFORMER, {"world_size": 8}])
    assert {*RECOMMENDER_MEMORY_PARTS} < {*memory}
    assert [bool(np.isfinite(part).all()) for part in np.array(list(memory.values())).T] == [True, True, False]
    assert memory["embeddings"][0] > 0.0 == memory["embeddings"][1]
    assert memory["activations"][0] == 0.0 < memory["activations"][1]
    assert Roofline().explain({"world_size": 8}) == {}


def test_a_row_of_dense_layers_is_explained_and_not_predicted() -> None:
    """Any program has dense layers; only embedding tables say that it is a recommender."""
    assert sum(Roofline().explain(DENSE).values()) > 0.0
    assert np.isnan(Roofline().recommenders_.samples_per_second([DENSE])).all()
    history = history_of([Trial.completed(workload=DENSE, config={}, samples_per_second=0.5)])
    roofline = Roofline().fit(history, rng=np.random.default_rng(0))
    assert np.isnan(roofline.predict(history.features).logarithm).all()
    row = {**DENSE, "micro_batch_size": 1, "world_size": 1, "sharding_strategy": "NO_SHARD"}
    slow = history_of([Trial.completed(workload=row, config={}, samples_per_second=0.5)])
    assert 0.5 < sum(Roofline().fit(slow, rng=np.random.default_rng(0)).explain(row).values()) < 2.1


def test_calibration_recovers_planted_constants_from_noisy_runs() -> None:
    planted = {"gemm_efficiency": 0.45, "network_dp": 0.2, "memory_bandwidth": 0.7, "step_s": 0.03}
    rng, trials = np.random.default_rng(0), []
    for _ in range(300):
        row = {
            "layer_n_params": tuple(rng.integers(10**5, 2 * 10**8, 8).tolist()),
            "sharding_strategy": tuple(rng.choice(["FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"], 8).tolist()),
            "micro_batch_size": 2 ** int(rng.integers(4, 14)),
            "world_size": int(rng.choice([1, 1, 8, 64])),
            "n_embedding_tables": int(rng.integers(1, 200)),
            "embedding_dim": 128,
            "embedding_pooling": 400,
            "n_embedding_rows": 10**9,
            "device": "NVIDIA H100 80GB HBM3",
        }
        seconds = true_seconds(row, planted) * float(np.exp(rng.normal(0.0, 0.05)))
        seconds *= 3.0 if rng.random() < 0.03 else 1.0  # a straggler now and then
        speed = row["micro_batch_size"] * row["world_size"] / seconds
        trials.append(Trial.completed(workload={}, config=row, samples_per_second=speed))
    history = history_of(trials)
    roofline = Roofline().fit(history, rng=np.random.default_rng(0))
    learned = dict(roofline.recommenders_.constants_)
    slowdown = learned.pop("slowdown")  # the scale that all of them share
    effective = {name: learned[name] * (slowdown if name == "step_s" else 1 / slowdown) for name in planted}
    assert effective == pytest.approx(planted, rel=0.25)
    explained = [sum(roofline.explain(row).values()) for row in history.rows]
    measured = [row["micro_batch_size"] * row["world_size"] for row in history.rows] / history.throughput
    assert np.median(np.abs(np.log(explained / measured))) < 0.06
