from __future__ import annotations

import numpy as np
import pytest

from torchx_cubicml.predictors.features.history import TrainingTable
from torchx_cubicml.predictors.roofline import Roofline
from torchx_cubicml.predictors.roofline.constants import DEFAULTS
from torchx_cubicml.predictors.roofline.facts import Facts
from torchx_cubicml.predictors.roofline.step_time import step_time
from torchx_cubicml.predictors.roofline.training_layout import TrainingLayout
from torchx_cubicml.records.trial import Trial

PLANTED = {**DEFAULTS, "gemm_efficiency": 0.4, "launch_s": 4e-3}


def rows_of(count: int, seed: int = 0) -> list[dict[str, bool | int | float | str | tuple[str, ...]]]:
    rng = np.random.default_rng(seed)
    return [
        {
            "n_layers": 24,
            "d_model": int(rng.choice([1024, 2048])),
            "seq_len": 1024,
            "micro_batch_size": 2 ** int(rng.integers(6)),
            "gradient_accumulation_steps": 4,
            "world_size": 2 ** int(rng.integers(3, 6)),
            "tp_degree": 2 ** int(rng.integers(4)),
            "sharding_strategy": str(rng.choice(["FULL_SHARD", "NO_SHARD"])),
            "device": "NVIDIA A100-SXM4-80GB",
        }
        for _ in range(count)
    ]


def trials_of(
    rows: list[dict[str, bool | int | float | str | tuple[str, ...]]], *, unit: str = "tokens"
) -> list[Trial]:
    layout = TrainingLayout.of(Facts.from_rows(rows))
    throughput = layout.tokens_per_step / step_time(layout, PLANTED).total()
    tokens = unit == "tokens"
    return [
        Trial.completed(
            workload={},
            config=row,
            tokens_per_second=float(value) if tokens else None,
            samples_per_second=None if tokens else float(value) / 1024,
        )
        for row, value in zip(rows, throughput, strict=True)
    ]


def fitted(trials: list[Trial], objective: str = "tokens_per_second") -> tuple[Roofline, TrainingTable]:
    history = TrainingTable.from_trials(trials, objective=objective)
    return Roofline().fit(history, rng=np.random.default_rng(0)), history


@pytest.mark.parametrize("unit", ["tokens", "samples"])
def test_it_predicts_what_it_was_calibrated_on_in_its_unit(unit: str) -> None:
    roofline, history = fitted(trials_of(rows_of(60), unit=unit), f"{unit}_per_second")
    asked = trials_of(rows_of(40, seed=1), unit=unit)
    other = TrainingTable.from_trials(asked, objective=f"{unit}_per_second")
    predicted = roofline.predict(history.columns.encode(other.rows)).throughput
    assert np.abs(np.log(predicted / other.throughput)).max() < 0.1


def test_without_the_fields_it_steps_aside() -> None:
    partial = {"n_layers": 24, "micro_batch_size": 4, "world_size": 8}
    stranger = Trial.completed(workload={}, config=partial, tokens_per_second=100.0)
    roofline, history = fitted([*trials_of(rows_of(10)), stranger])
    known = np.array(["d_model" in row for row in history.rows])
    prediction = roofline.predict(history.features)
    assert np.isfinite(prediction.throughput).tolist() == known.tolist()
    assert np.isfinite(prediction.spread).tolist() == known.tolist()
    assert roofline.explain(partial) == {}


def test_an_unfitted_roofline_only_explains() -> None:
    row = rows_of(1)[0]
    roofline, history = fitted([Trial.infeasible(workload={}, config=row)])
    assert np.isnan(roofline.predict(history.features).throughput).all()
    assert roofline.explain(row) == Roofline().explain(row)


def test_its_explanation_adds_up_to_the_step_it_predicts() -> None:
    rows = rows_of(40)
    roofline, history = fitted(trials_of(rows))
    asked = rows[0]
    predicted = roofline.predict(history.columns.encode([asked])).throughput[0]
    tokens = TrainingLayout.of(Facts.from_rows([asked])).tokens_per_step[0]
    assert tokens / sum(roofline.explain(asked).values()) == pytest.approx(predicted)


def test_uncertainty_grows_outside_of_the_data() -> None:
    roofline, history = fitted(trials_of(rows_of(60)))
    row = {**rows_of(1)[0], "tp_degree": 1}
    asked = [{**row, "world_size": size} for size in (16, 64, 256, 1024)]
    spread = roofline.predict(history.columns.encode(asked)).spread
    assert (np.diff(spread) > 0).all()


def test_the_order_of_rows_is_free_and_the_seed_decides() -> None:
    trials = trials_of(rows_of(40))
    features = fitted(trials)[1].features
    answers = [fitted(order)[0].predict(features).throughput.tolist() for order in (trials, trials[::-1])]
    assert answers[0] == answers[1]
