from __future__ import annotations

import numpy as np
import pytest

from torchx_cubicml.predictors.roofline.calibration import Calibration, calibrate
from torchx_cubicml.predictors.roofline.constants import DEFAULTS
from torchx_cubicml.predictors.roofline.facts import Facts
from torchx_cubicml.predictors.roofline.step_time import step_time
from torchx_cubicml.predictors.roofline.training_layout import TrainingLayout


def trainings(count: int, seed: int = 0, *, piped: bool = True) -> TrainingLayout:
    rng = np.random.default_rng(seed)
    rows = []
    while len(rows) < count:
        tp, pp = 2 ** int(rng.integers(5)), 2 ** int(rng.integers(4 if piped else 1))
        row = {
            "n_layers": int(rng.choice([16, 24, 48])),
            "d_model": int(rng.choice([1024, 2048, 4096])),
            "seq_len": 2048,
            "vocab_size": 32000,
            "zero_stage": 0,
            "attention_kernel": "flash",
            "micro_batch_size": 2 ** int(rng.integers(5)),
            "gradient_accumulation_steps": 2 ** int(rng.integers(2, 6)),
            "world_size": 2 ** int(rng.integers(4, 8)),
            "tp_degree": tp,
            "pp_degree": pp,
            "device": "NVIDIA A100-SXM4-80GB",
        }
        if tp * pp <= row["world_size"]:
            rows.append(row)
    return TrainingLayout.of(Facts.from_rows(rows))


def fitted(layout: TrainingLayout, seconds: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> Calibration:
    return calibrate(layout, seconds, np.zeros(len(seconds)), rng=np.random.default_rng(0))


def test_without_rows_the_constants_stay_at_their_defaults() -> None:
    nothing = trainings(1).rows(np.array([], dtype=np.int64))
    assert fitted(nothing, np.empty(0)) == Calibration()
    assert Calibration().constants == DEFAULTS


def test_planted_constants_are_recovered_through_noise() -> None:
    planted = {**DEFAULTS, "gemm_efficiency": 0.35, "launch_s": 6e-3, "network_tp": 0.25, "link_tp_latency_s": 2e-4}
    layout = trainings(200)
    noise = np.exp(np.random.default_rng(1).normal(0.0, 0.05, 200))
    found = fitted(layout, step_time(layout, planted).total() * noise)
    expected = found.expect(layout, inside=np.ones(200)).logarithm
    assert np.abs(expected - np.log(step_time(layout, planted).total())).mean() < 0.03
    for name in ("gemm_efficiency", "launch_s", "network_tp", "link_tp_latency_s"):
        assert found.constants[name] == pytest.approx(planted[name], rel=0.25), name
    assert found.slow is None


def test_a_few_wild_rows_do_not_matter() -> None:
    planted = {**DEFAULTS, "gemm_efficiency": 0.4}
    layout = trainings(100, piped=False)
    seconds = step_time(layout, planted).total()
    seconds[::20] *= 30.0
    assert fitted(layout, seconds).constants["gemm_efficiency"] == pytest.approx(0.4, rel=0.1)


def test_constants_without_evidence_keep_their_default() -> None:
    layout = trainings(50, piped=False)
    constants = fitted(layout, 3.0 * step_time(layout, DEFAULTS).total()).constants
    for name in ("pp_latency_s", "low_bit", "plain_attention", "compiled"):
        assert constants[name] == pytest.approx(DEFAULTS[name])


def test_one_row_moves_the_constants_towards_it() -> None:
    layout = trainings(1, piped=False)
    default = step_time(layout, DEFAULTS).total()
    moved = step_time(layout, fitted(layout, 2.0 * default).constants).total()
    assert 1.3 * default < moved < 2.1 * default


def test_a_second_mode_is_found_with_its_stall() -> None:
    layout = trainings(400, seed=3)
    times = step_time(layout, DEFAULTS)
    rng = np.random.default_rng(4)
    slow = (layout.pp > 1) & (rng.random(400) < np.where(layout.world >= 64, 0.8, 0.05))
    seconds = np.where(slow, times.total(2.0), times.total()) * np.exp(rng.normal(0.0, 0.05, 400))
    found = fitted(layout, seconds)
    assert found.slow is not None
    assert found.slow.stall_s == pytest.approx(2.0, rel=0.15)
    expected = found.expect(layout, inside=np.ones(400))
    piped = layout.pp > 1
    assert expected.chance[piped & (layout.world >= 64)].mean() > 0.6
    assert expected.chance[piped & (layout.world < 64)].mean() < 0.25
    assert not expected.chance[~piped].any()
    assert (expected.slow >= expected.fast).all()
    outside = found.expect(layout, inside=np.zeros(400))
    slower = outside.slow - outside.fast
    assert outside.logarithm == pytest.approx(outside.fast + outside.chance * slower)
    likely, apart = expected.chance > 0.5, slower > 0.0
    assert (expected.logarithm[likely & apart] > outside.logarithm[likely & apart]).all()  # nearer to the likelier mode
    assert (expected.logarithm[~likely] <= outside.logarithm[~likely]).all()


# Of a fit to planted constants and a planted stall of half a second: a changed prior shows here.
ACCEPTED = {
    "gemm_efficiency": 0.391422,
    "launch_s": 0.00394259,
    "network_tp": 0.833646,
    "link_tp_latency_s": 2.54726e-05,
    "stall_s": 0.490538,
    "intercept": -1.44323,
    "slope": 0.236214,
    **{f"chance {at}": chance for at, chance in enumerate((0.4858, 0.447374, 0.485943, 0.638599, 0.518508, 0.511297))},
    "logarithm 0": 1.17018,
    "logarithm 25": -0.435912,
    "logarithm 50": 1.04927,
    "logarithm 75": 0.4842,
    "logarithm 100": 1.43079,
    "logarithm 125": 0.782971,
}


def test_a_calibration_of_two_modes_has_the_accepted_numbers() -> None:
    layout = trainings(150, seed=6)
    times = step_time(layout, {**DEFAULTS, "gemm_efficiency": 0.4, "launch_s": 4e-3})
    rng = np.random.default_rng(7)
    slow = (layout.pp > 1) & (rng.random(150) < np.where(layout.layers >= 24, 0.7, 0.1))
    seconds = np.where(slow, times.total(0.5), times.total()) * np.exp(rng.normal(0.0, 0.05, 150))
    found = calibrate(layout, seconds, np.full(150, 0.02), rng=np.random.default_rng(0))
    assert found.slow is not None
    expected = found.expect(layout, inside=np.linspace(0.0, 1.0, 150))
    numbers = {
        name: found.constants[name] for name in ("gemm_efficiency", "launch_s", "network_tp", "link_tp_latency_s")
    }
    numbers |= {"stall_s": found.slow.stall_s, "intercept": found.slow.trend[0], "slope": found.slow.trend[1]}
    numbers |= {f"chance {at}": expected.chance[at] for at in np.flatnonzero(layout.pp > 1)[:6].tolist()}
    numbers |= {f"logarithm {at}": expected.logarithm[at] for at in range(0, 150, 25)}
    assert numbers == pytest.approx(ACCEPTED, rel=5e-3)


def test_one_slow_row_is_an_accident_and_no_mode() -> None:
    layout = trainings(60, seed=5)
    seconds = step_time(layout, DEFAULTS).total()
    seconds[int(np.flatnonzero(layout.pp > 1)[0])] *= 20.0
    assert fitted(layout, seconds).slow is None


def test_thousands_of_rows_are_sampled() -> None:
    layout = trainings(300)
    many = layout.rows(np.tile(np.arange(300), 10))
    seconds = step_time(many, {**DEFAULTS, "gemm_efficiency": 0.4}).total()
    assert fitted(many, seconds).constants["gemm_efficiency"] == pytest.approx(0.4, rel=0.1)
