from __future__ import annotations

import time

import numpy as np
import pytest

from torchx_cubicml.predictors.base import Prediction
from torchx_cubicml.predictors.boosting import Boosting
from torchx_cubicml.predictors.features.columns import Columns
from torchx_cubicml.predictors.features.history import TrainingTable
from torchx_cubicml.records.measurement import LEAST_THROUGHPUT, MOST_THROUGHPUT


def history_of(rows: list[dict[str, object]], throughput: np.ndarray) -> TrainingTable:
    columns = Columns.from_rows(rows)
    return TrainingTable(
        columns=columns,
        rows=tuple(rows),
        features=columns.encode(rows),
        throughput=throughput,
        feasible=np.isfinite(throughput),
        trial_ids=tuple(map(str, range(len(rows)))),
    )


def made_up(count: int, *, noise: float, seed: int) -> tuple[list[dict[str, object]], np.ndarray]:
    rng = np.random.default_rng(seed)
    rows: list[dict[str, object]] = [
        {"world_size": 2 ** int(rng.integers(6)), "precision": ("bf16", "fp32")[int(rng.integers(2))]}
        for _ in range(count)
    ]
    speed = np.array([float(row["world_size"]) * (2.0 if row["precision"] == "bf16" else 1.0) for row in rows])
    return rows, 100.0 * speed * np.exp(rng.normal(0.0, noise, count))


def fitted(history: TrainingTable) -> Boosting:
    return Boosting().fit(history, rng=np.random.default_rng(0))


def predict(history: TrainingTable, rows: list[dict[str, object]]) -> Prediction:
    return fitted(history).predict(history.columns.encode(rows))


def test_a_category_is_learned_as_a_category() -> None:
    history = history_of(*made_up(40, noise=0.0, seed=0))
    asked = predict(history, [{"world_size": 8, "precision": "bf16"}, {"world_size": 8, "precision": "fp32"}])
    assert asked.throughput == pytest.approx([1600.0, 800.0], rel=0.1)


def test_unseen_and_missing_categories_lie_between_the_seen() -> None:
    history = history_of(*made_up(40, noise=0.0, seed=0))
    unseen, missing = predict(history, [{"world_size": 8, "precision": "fp8"}, {"world_size": 8}]).throughput
    assert 700.0 < unseen < 1700.0
    assert 700.0 < missing < 1700.0


def test_beyond_the_data_the_trend_continues_and_widens() -> None:
    history = history_of(*made_up(40, noise=0.02, seed=0))
    near, far = {"world_size": 32, "precision": "bf16"}, {"world_size": 128, "precision": "bf16"}
    prediction = predict(history, [near, far])
    assert prediction.throughput[1] > 2.0 * prediction.throughput[0]
    assert prediction.spread[1] > prediction.spread[0]


def test_four_fifths_of_new_measurements_lie_inside_the_interval() -> None:
    # 600 measurements of 6 histories; the share has a standard deviation of about .03 around its mean, and is to be
    # .70 to .97: a false alarm less than once in a hundred changes of the seeds.
    inside = []
    for seed in range(6):
        history = history_of(*made_up(60, noise=0.1, seed=seed))
        rows, measured = made_up(100, noise=0.1, seed=100 + seed)
        prediction = predict(history, rows)
        inside += ((prediction.quantile(0.1) <= measured) & (measured <= prediction.quantile(0.9))).tolist()
    assert 0.70 < np.mean(inside) < 0.97


def test_the_spread_of_one_trial_is_wide() -> None:
    rows, speed = made_up(1, noise=0.0, seed=0)
    assert predict(history_of(rows, speed), rows).spread[0] > 0.2


def test_out_of_memory_is_not_taken_for_slow() -> None:
    rows, speed = made_up(40, noise=0.0, seed=0)
    with_failures = history_of([*rows, *rows], np.concatenate([speed, np.full(len(speed), np.nan)]))
    asked = [{"world_size": 8, "precision": "bf16"}]
    assert predict(with_failures, asked).throughput == pytest.approx(
        predict(history_of(rows, speed), asked).throughput, rel=1e-6
    )


def test_ten_thousand_trials_are_learned_in_seconds() -> None:
    rng = np.random.default_rng(0)
    rows: list[dict[str, object]] = [
        {"layers": tuple(rng.integers(0, 3, 24).astype(str).tolist()), "micro_batch_size": int(rng.integers(1, 33))}
        for _ in range(10_000)
    ]
    history = history_of(rows, rng.lognormal(5.0, 1.0, len(rows)))
    started = time.process_time()
    fitted(history)
    assert time.process_time() - started < 60.0  # quadratic cost takes longer; a busy machine does not


def test_quantiles_stand_in_order() -> None:
    prediction = Prediction(logarithm=np.log([100.0]), spread=np.array([0.1]))
    assert prediction.quantile(0.1)[0] < 100.0 < prediction.quantile(0.9)[0]
    assert prediction.quantile(0.5) == pytest.approx([100.0])


def test_an_unseen_program_widens_the_interval() -> None:
    rng = np.random.default_rng(0)
    levels = {f"p{number}": float(rng.normal(0.0, 0.5)) for number in range(10)}
    rows: list[dict[str, object]] = [
        {"program": name, "world_size": 2 ** int(rng.integers(6))} for name in levels for _ in range(8)
    ]
    speed = np.array([100.0 * row["world_size"] * np.exp(levels[row["program"]]) for row in rows])
    asked = [{"program": name, "world_size": 8} for name in ("p0", "new")]
    known, new = predict(history_of(rows, speed), asked).spread
    assert known < 0.2
    assert 0.3 < new < 1.0


def test_a_new_value_of_a_constant_changes_no_prediction() -> None:
    rows, speed = made_up(40, noise=0.02, seed=0)
    known = [{**row, "seq_len": 1000} if place % 3 else row for place, row in enumerate(rows)]
    asked = {"world_size": 8, "precision": "bf16"}
    predicted = predict(history_of(known, speed), [{**asked, "seq_len": length} for length in (1000, 1001, 2000, 1)])
    assert predicted.throughput == pytest.approx(predicted.throughput[:1].repeat(4), rel=0.2)


def test_the_trend_stays_within_physical_limits() -> None:
    history = history_of(*made_up(40, noise=0.02, seed=0))
    far = predict(history, [{"world_size": size} for size in (2**64, 1e308, 1e-300, -5.0)])
    assert (far.throughput >= LEAST_THROUGHPUT).all()
    assert (far.throughput <= MOST_THROUGHPUT).all()
    assert np.isfinite(far.quantile(0.99)).all()
