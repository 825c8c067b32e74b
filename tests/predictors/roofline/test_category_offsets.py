from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from torchx_cubicml.predictors.features.history import TrainingTable
from torchx_cubicml.predictors.roofline.category_offsets import CategoryOffsets
from torchx_cubicml.predictors.roofline.predictor import Roofline
from torchx_cubicml.records.trial import Trial

FACTS = {"n_layers": 32, "d_model": 4096, "seq_len": 2048, "vocab_size": 32000}
SPEEDS = {"chip-one": 1.0, "chip-two": 3.0, "chip-three": 0.4}  # of no known device


def history(speeds: dict[str, float], *, count: int = 60, noise: float = 0.02) -> TrainingTable:
    rng = np.random.default_rng(0)
    trials = []
    for number in range(count):
        device = list(speeds)[number % len(speeds)]
        row = {"world_size": 2 ** int(rng.integers(2, 6)), "device": device, **FACTS}
        config = {"micro_batch_size": 2 ** int(rng.integers(5)), "tp_degree": 2 ** int(rng.integers(3))}
        seconds = sum(Roofline().explain({**row, **config}).values()) / speeds[device]
        tokens = row["world_size"] / config["tp_degree"] * config["micro_batch_size"] * FACTS["seq_len"]
        speed = tokens / seconds * float(np.exp(rng.normal(0.0, noise)))
        trials.append(Trial.completed(workload=row, config=config, tokens_per_second=speed))
    return TrainingTable.from_trials(trials, objective="tokens_per_second")


def test_unlisted_devices_have_their_own_levels() -> None:
    known = history(SPEEDS)
    fitted = Roofline().fit(known, rng=np.random.default_rng(0))
    assert fitted.category_offsets_ is not None
    predicted = fitted.predict(known.features).throughput
    assert np.median(np.abs(np.log(predicted / known.throughput))) < 0.05


def test_without_a_difference_there_are_no_levels() -> None:
    assert Roofline().fit(history(dict.fromkeys(SPEEDS, 1.0)), rng=np.random.default_rng(0)).category_offsets_ is None


@pytest.mark.parametrize("device", ["chip-four", "GB300"])
def test_an_unseen_device_has_a_wider_interval(device: str) -> None:
    known = history(SPEEDS)
    fitted = Roofline().fit(known, rng=np.random.default_rng(0))
    row = {**FACTS, "world_size": 8, "micro_batch_size": 4, "tp_degree": 1}
    asked = known.columns.encode([{**row, "device": name} for name in ("chip-one", device)])
    seen, new = fitted.predict(asked).spread
    assert new > seen + 0.1


def test_the_data_sheet_of_an_unseen_device_is_used() -> None:
    known = history({"A100-SXM4-80GB": 1.0, "H100": 1.0})
    fitted = Roofline().fit(known, rng=np.random.default_rng(0))
    row = {**FACTS, "world_size": 8, "micro_batch_size": 16, "tp_degree": 1}
    old, new = fitted.predict(known.columns.encode([{**row, "device": name} for name in ("H100", "GB300")])).throughput
    assert 1.5 < new / old < 2.6


@pytest.mark.parametrize(("without", "kept"), [(0.0, False), (0.3, False), (0.6, True), (5.0, True)])
def test_offsets_are_kept_for_a_much_smaller_error(without: float, kept: bool) -> None:
    """Errors of 0.2 and 0.4, the first with three times the weight: 0.25."""
    trend = SimpleNamespace(leave_one_out=np.array([0.2, -0.4]))
    offsets = CategoryOffsets(inputs=None, trend=trend, without=1.0, weights=np.array([3.0, 1.0]))
    assert offsets.error == pytest.approx(0.25)
    assert offsets.worth_keeping(without) is kept


def test_no_error_is_no_reason_to_keep_offsets() -> None:
    trend = SimpleNamespace(leave_one_out=np.zeros(2))
    assert not CategoryOffsets(inputs=None, trend=trend, without=0.0, weights=np.ones(2)).worth_keeping(0.0)
