from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from torchx_cubicml.predictors.boosting import Boosting
from torchx_cubicml.predictors.features.history import TrainingTable
from torchx_cubicml.predictors.greybox import Greybox, _trust
from torchx_cubicml.predictors.roofline.constants import DEFAULTS
from torchx_cubicml.predictors.roofline.facts import Facts
from torchx_cubicml.predictors.roofline.step_time import step_time
from torchx_cubicml.predictors.roofline.training_layout import TrainingLayout
from torchx_cubicml.records.measurement import Measurement
from torchx_cubicml.records.trial import Trial

PLANTED = {**DEFAULTS, "gemm_efficiency": 0.4, "launch_s": 4e-3, "link_tp": 0.4}


def trials_of(count: int, scale: tuple[int, ...], *, seed: int = 0, odd: float = 0.7) -> list[Trial]:
    """Return trials of which the formulas explain all but a law of their own: odd depths run at the speed ``odd``."""
    rng = np.random.default_rng(seed)
    rows = [
        {
            "n_layers": int(rng.choice([23, 24, 31, 32])),
            "d_model": int(rng.choice([1024, 2048, 4096])),
            "seq_len": 1024,
            "micro_batch_size": 2 ** int(rng.integers(5)),
            "gradient_accumulation_steps": 2 ** int(rng.integers(4)),
            "world_size": int(rng.choice(scale)),
            "tp_degree": 2 ** int(rng.integers(4)),
            "device": "NVIDIA A100-SXM4-80GB",
        }
        for _ in range(count)
    ]
    layout = TrainingLayout.of(Facts.from_rows(rows))
    slower = np.where(layout.layers % 2 == 1, odd, 1.0)
    throughput = layout.tokens_per_step / step_time(layout, PLANTED).total() * slower
    throughput *= np.exp(rng.normal(0.0, 0.03, count))
    return [
        Trial.completed(workload={}, config=row, tokens_per_second=float(value))
        for row, value in zip(rows, throughput, strict=True)
    ]


def history_of(trials: list[Trial]) -> TrainingTable:
    return TrainingTable.from_trials(trials, objective="tokens_per_second")


def error(predictor: Boosting | Greybox, known: list[Trial], asked: list[Trial]) -> float:
    history, other = history_of(known), history_of(asked)
    predictor.fit(history, rng=np.random.default_rng(0))
    predicted = predictor.predict(history.columns.encode(other.rows)).throughput
    return float(np.median(np.abs(np.log(predicted / other.throughput))))


def test_it_beats_boosting_where_the_scale_is_new() -> None:
    errors: dict[type[Boosting | Greybox], list[float]] = {Boosting: [], Greybox: []}
    for seed in range(10, 13):
        known = trials_of(120, (8, 16, 32), seed=seed, odd=0.9)
        asked = trials_of(120, (128, 256), seed=seed + 10, odd=0.9)
        for make, found in errors.items():
            found.append(error(make(), known, asked))
    assert np.mean(errors[Greybox]) < 0.3 * np.mean(errors[Boosting])


def test_the_trees_learn_what_the_formulas_miss() -> None:
    known, asked = trials_of(200, (8, 16, 32)), trials_of(100, (8, 16, 32), seed=1)
    assert error(Greybox(), known, asked) < 0.6 * error(Greybox(n_trees=0), known, asked)


def test_far_outside_the_formulas_stand_alone() -> None:
    history = history_of(trials_of(100, (8, 16)))
    far = history.columns.encode([{**row, "world_size": 2**30} for row in history.rows[:5]])
    with_trees, without = (Greybox(n_trees=count).fit(history, rng=np.random.default_rng(0)) for count in (50, 0))
    assert with_trees.predict(far).throughput == pytest.approx(without.predict(far).throughput, rel=0.01)


def test_rows_outside_the_formulas_go_to_boosting() -> None:
    strangers = [
        Trial.completed(workload={"program": "a.py"}, config={"micro_batch_size": size}, tokens_per_second=100.0 * size)
        for size in (1, 2, 4, 8)
    ]
    history = history_of([*trials_of(30, (8, 16)), *strangers])
    greybox = Greybox().fit(history, rng=np.random.default_rng(0))
    uncovered = ~np.isfinite(greybox.roofline_.predict(history.features).throughput)
    assert uncovered.sum() == 4
    boosting = Boosting().fit(history, rng=np.random.default_rng(greybox.seed_))
    predicted, alone = (each.predict(history.features) for each in (greybox, boosting))
    assert predicted.throughput[uncovered] == pytest.approx(alone.throughput[uncovered])
    assert np.isfinite(predicted.throughput).all()
    assert (predicted.throughput[~uncovered] != alone.throughput[~uncovered]).all()


@pytest.mark.parametrize("count", [1, 2, 3, 12])
def test_few_trials_are_enough(count: int) -> None:
    history = history_of(trials_of(count, (8, 16)))
    prediction = Greybox().fit(history, rng=np.random.default_rng(0)).predict(history.features)
    assert np.isfinite(prediction.throughput).all()
    assert (prediction.spread > 0).all()
    if count == 1:
        assert prediction.throughput == pytest.approx(history.throughput)


@pytest.mark.parametrize("scale", [(8, 16, 32), (64, 128)], ids=["same scale", "new scale"])
def test_the_interval_covers_what_it_says(scale: tuple[int, ...]) -> None:
    history, other = history_of(trials_of(150, (8, 16, 32))), history_of(trials_of(200, scale, seed=1))
    prediction = Greybox().fit(history, rng=np.random.default_rng(0)).predict(history.columns.encode(other.rows))
    inside = (prediction.quantile(0.1) <= other.throughput) & (other.throughput <= prediction.quantile(0.9))
    assert 0.65 < inside.mean() <= 1.0


def test_without_its_trees_it_is_the_calibrated_formulas() -> None:
    history = history_of(trials_of(40, (8, 16)))
    whole = Greybox().fit(history, rng=np.random.default_rng(0))
    bare, alone = whole.without_trees(), Greybox(n_trees=0).fit(history, rng=np.random.default_rng(0))
    assert (bare.predict(history.features).throughput == alone.predict(history.features).throughput).all()
    assert (whole.predict(history.features).throughput != bare.predict(history.features).throughput).any()


def test_a_workload_without_a_layout_goes_to_boosting() -> None:
    rng = np.random.default_rng(0)
    trials = [
        Trial.completed(
            workload={"program": "a.py"},
            config={"threads": (threads := 2 ** int(rng.integers(6))), "fused": (fused := bool(rng.integers(2)))},
            tokens_per_second=100.0 * threads**0.6 * (1.5 if fused else 1.0) * float(np.exp(rng.normal(0, 0.05))),
        )
        for _ in range(80)
    ]
    known, asked = history_of(trials[:60]), history_of(trials[60:])
    features = known.columns.encode(asked.rows)
    greybox = Greybox().fit(known, rng=np.random.default_rng(0))
    boosting = Boosting().fit(known, rng=np.random.default_rng(greybox.seed_))
    assert greybox.predict(features).throughput.tolist() == boosting.predict(features).throughput.tolist()
    assert greybox.predict(features).spread.tolist() == boosting.predict(features).spread.tolist()


def test_a_large_batch_is_scored_as_its_rows_are_one_by_one() -> None:
    history = history_of(trials_of(40, (8, 16, 32)))
    predictor = Greybox().fit(history, rng=np.random.default_rng(0))
    many = np.vstack([history.features] * 1000)
    few, all_ = predictor.predict(history.features), predictor.predict(many)
    assert all_.throughput == pytest.approx(np.tile(few.throughput, 1000), rel=1e-9)
    assert all_.spread == pytest.approx(np.tile(few.spread, 1000), rel=1e-9)


@pytest.mark.parametrize(("count", "trees"), [(1, False), (2, True), (3, True)])
def test_trees_need_two_trials(count: int, trees: bool) -> None:
    predictor = Greybox().fit(history_of(trials_of(count, (8,))), rng=np.random.default_rng(0))
    assert (predictor.forest_ is not None) is trees
    alone = Greybox(n_trees=0).fit(history_of(trials_of(count, (8,))), rng=np.random.default_rng(0))
    assert alone.forest_ is None


def test_trees_fade_beyond_the_measured_range() -> None:
    """By a factor of e within four doublings; measured are 8 to 32 devices."""

    class Same:
        def predict(self, inputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            return np.full(len(inputs), 0.5), np.zeros(len(inputs))

    trials = trials_of(60, (8, 16, 32))
    history = history_of(trials)
    predictor = Greybox().fit(history, rng=np.random.default_rng(0))
    predictor.forest_ = Same()
    row = {**trials[0].config, "tp_degree": 1, "micro_batch_size": 2}
    asked = history.columns.encode([{**row, "world_size": size} for size in (32, 64, 128, 512)])
    found = predictor.predict(asked).logarithm - predictor.without_trees().predict(asked).logarithm
    assert found == pytest.approx(predictor.trust_ * 0.5 * np.exp([0.0, -0.25, -0.5, -1.0]))


@pytest.mark.parametrize(
    ("slope", "count", "trust"), [(1.0, 3, 0.5), (1.0, 27, 0.9), (0.5, 27, 0.45), (4.0, 27, 0.9), (-1.0, 27, 0.0)]
)
def test_corrections_count_as_far_as_they_predict_what_the_trees_have_not_seen(
    slope: float, count: int, trust: float
) -> None:
    corrections = np.linspace(-0.3, 0.3, count + 1)[1:] + 0.001
    assert _trust(slope * corrections, corrections, np.ones(count)) == pytest.approx(trust)
    assert _trust(slope * corrections, np.zeros(count), np.ones(count)) == 0.0


def test_trees_on_the_noise_of_four_launches_do_not_spoil_the_formulas() -> None:
    """Their own law apart, launches are noise of a tenth; the order of others is that of the formulas."""
    worse = 0.0
    for seed in range(8):
        rng = np.random.default_rng(seed)
        trials = trials_of(44, (8,), seed=seed, odd=1.0)
        noisy = [
            replace(
                trial,
                measurement=Measurement(
                    tokens_per_second=trial.measurement.tokens_per_second * float(np.exp(rng.normal(0.0, 0.3)))
                ),
            )
            for trial in trials[:4]
            if trial.measurement is not None
        ]
        worse += error(Greybox(), noisy, trials[4:]) - error(Greybox(n_trees=0), noisy, trials[4:])
    assert worse / 8 < 0.01


def test_the_spread_adds_noise_prior_trees_and_modes() -> None:
    predictor = Greybox().fit(history_of(trials_of(30, (8,))), rng=np.random.default_rng(0))
    estimate = SimpleNamespace(slow=np.array([0.5]), slower=np.array([0.4]))
    variance = 0.02**2 + 0.3**2 * 3 / (3 + 30) + 0.1**2 + 0.5 * 0.5 * 0.5 * 0.4**2
    assert predictor._raw_spread(estimate, np.array([0.1])) == pytest.approx(variance**0.5)
