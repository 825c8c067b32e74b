from __future__ import annotations

import numpy as np
import pytest

from torchx_cubicml.predictors.roofline.facts import Facts
from torchx_cubicml.predictors.roofline.memory import MemoryCalibration, calibrate_memory, memory_parts
from torchx_cubicml.predictors.roofline.training_layout import TrainingLayout

ROW = {
    "n_layers": 24,
    "d_model": 2048,
    "d_ff": 8192,
    "seq_len": 1024,
    "vocab_size": 50_000,
    "micro_batch_size": 4,
    "world_size": 8,
    "device": "NVIDIA A100-SXM4-80GB",
}


def layouts(count: int, seed: int = 0, **facts: float) -> TrainingLayout:
    rng = np.random.default_rng(seed)
    rows = [
        {
            **ROW,
            "n_layers": int(rng.integers(8, 48)),
            "d_model": int(rng.choice([1024, 2048, 4096])),
            "micro_batch_size": 2 ** int(rng.integers(6)),
            "zero_stage": int(rng.integers(3)),
            **facts,
        }
        for _ in range(count)
    ]
    return TrainingLayout.of(Facts.from_rows(rows))


def fitted(
    layout: TrainingLayout, *, activations: float, peaks: bool, labelled: bool, noise: float = 0.0
) -> MemoryCalibration:
    parts = memory_parts(layout)
    peak = sum(parts.values()) + (activations - 1.0) * parts["activations"]
    peak = peak * np.exp(np.random.default_rng(1).normal(0.0, noise, len(peak)))
    ran = (peak < 0.92 * layout.memory).astype(np.float64)
    return calibrate_memory(
        layout,
        ran=ran,
        certain=(1.0 - ran) * labelled,
        peak_bytes=np.where(ran * peaks > 0.0, peak, np.nan),
    )


def activation_factor(memory: MemoryCalibration) -> float:
    return float(np.exp(memory.theta[2]))


def test_no_trials_leave_the_defaults() -> None:
    layout = layouts(5)
    none = calibrate_memory(
        layout.rows(np.zeros(5, dtype=np.bool_)), **dict.fromkeys(("ran", "certain", "peak_bytes"), np.empty(0))
    )
    assert none.theta == pytest.approx(MemoryCalibration.default().theta)


def test_measured_peaks_recover_a_planted_factor() -> None:
    layout = layouts(60)
    memory = fitted(layout, activations=1.7, peaks=True, labelled=True, noise=0.03)
    assert activation_factor(memory) == pytest.approx(1.7, rel=0.1)


@pytest.mark.parametrize("labelled", [True, False], ids=["labelled", "of unknown cause"])
def test_outcomes_alone_move_the_wall_to_where_it_stands(labelled: bool) -> None:
    memory = fitted(layouts(200), activations=1.7, peaks=False, labelled=labelled)
    asked = layouts(200, seed=1)
    parts = memory_parts(asked)
    fits = sum(parts.values()) + 0.7 * parts["activations"] < 0.92 * asked.memory
    right, before = (
        float(((found.pressure(asked)[:, 0] < 0.0) == fits).mean()) for found in (memory, MemoryCalibration.default())
    )
    assert before < right
    assert right > 0.95


def test_failures_far_from_the_wall_are_another_reasons() -> None:
    layout = layouts(100)
    small = sum(memory_parts(layout).values()) < 0.3 * layout.memory
    ran = np.where(small, np.arange(100) % 3 > 0, 0.0).astype(np.float64)
    nan = np.full(100, np.nan)
    unknown, labelled = (
        calibrate_memory(layout, ran=ran, certain=(1.0 - ran) * certain, peak_bytes=nan) for certain in (0.0, 1.0)
    )
    chance = 1.0 / (1.0 + np.exp(-unknown.log_odds(layout)[small]))
    assert chance.mean() == pytest.approx(2.0 / 3.0, abs=0.1)
    assert activation_factor(unknown) < activation_factor(labelled)


def test_pressure_follows_batch_and_device_size() -> None:
    rows = [ROW, {**ROW, "micro_batch_size": 8}, {**ROW, "device": "NVIDIA H200"}]
    layout = TrainingLayout.of(Facts.from_rows(rows))
    pressure = MemoryCalibration.default().pressure(layout)[:, 0]
    assert pressure[2] < pressure[0] < pressure[1]
    assert pressure[0] == pytest.approx(np.log2(sum(memory_parts(layout).values())[0] / (0.92 * 80e9)))


def test_odds_follow_doublings_over_the_usable_memory() -> None:
    """By default 92 % of a device is usable, a doubling takes six off the log odds, and one in 21 fails anyway."""
    layout = layouts(30)
    memory = MemoryCalibration.default()
    total = sum(memory_parts(layout).values())
    doublings = np.log2(total / (0.92 * layout.memory))
    fits = 1.0 / (1.0 + np.exp(np.clip(6.0 * doublings, -30.0, 30.0)))
    runs = fits / (1.0 + np.exp(-3.0))
    assert memory.log_odds(layout) == pytest.approx(np.log(runs / (1.0 - runs)), rel=1e-6)
    found = memory.pressure(layout)
    assert found.shape == (30, 6)
    assert found[:, 0] == pytest.approx(doublings)
    assert found[:, 2] == pytest.approx(np.log2(memory_parts(layout)["optimizer"] / (0.92 * layout.memory)))
    assert found.min() >= -20.0


def test_factors_scale_their_group_alone() -> None:
    layout = layouts(5)
    theta = MemoryCalibration.default().theta
    for group, names in enumerate((("weights", "gradients", "gathered"), ("optimizer",), ("activations",))):
        changed = theta.copy()
        changed[group] = np.log(3.0)
        parts = memory_parts(layout)
        total = sum(parts.values()) + 2.0 * sum(parts[name] for name in names)
        found = MemoryCalibration(theta=changed).pressure(layout)[:, 0]
        assert found == pytest.approx(np.log2(total / (0.92 * layout.memory)))


@pytest.mark.parametrize("size", [1e6, 1e20, 1e60, 1e150])
def test_sizes_of_any_magnitude_raise_no_warning(size: float) -> None:
    layout = layouts(20, d_model=size)
    ran = np.arange(20) % 2.0
    memory = calibrate_memory(layout, ran=ran, certain=1.0 - ran, peak_bytes=np.where(ran > 0.0, 4e10, np.nan))
    assert np.isfinite(memory.theta).all()
    assert memory.log_odds(layout).shape == (20,)
    assert len(memory.pressure(layout)) == 20


def test_a_size_that_no_training_has_leaves_the_others_their_calibration() -> None:
    rows = [{**ROW, "micro_batch_size": 2**number, "d_model": 1024} for number in range(6)]
    odd = {**ROW, "d_model": 1e150}
    ran, peaks = np.array([*np.ones(6), 1.0]), np.array([*(4e9 * 2.0 ** np.arange(6)), 1e9])
    alone, beside = (
        calibrate_memory(
            TrainingLayout.of(Facts.from_rows([*rows, odd][:count])),
            ran=ran[:count],
            certain=1.0 - ran[:count],
            peak_bytes=peaks[:count],
        )
        for count in (6, 7)
    )
    assert beside.theta == pytest.approx(alone.theta)
    assert alone.theta != pytest.approx(MemoryCalibration.default().theta)
