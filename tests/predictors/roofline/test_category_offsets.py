from __future__ import annotations

import numpy as np
import pytest

from torchx_cubicml.predictors.features.history import History
from torchx_cubicml.predictors.roofline.predictor import Roofline
from torchx_cubicml.records.trial import Trial

FACTS = {"n_layers": 32, "d_model": 4096, "seq_len": 2048, "vocab_size": 32000}
SPEEDS = {"chip-one": 1.0, "chip-two": 3.0, "chip-three": 0.4}  # of no known device


def history(speeds: dict[str, float], *, count: int = 60, noise: float = 0.02) -> History:
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
    return History.from_trials(trials, objective="tokens_per_second")


def test_devices_that_no_data_sheet_names_have_levels_of_their_own() -> None:
    known = history(SPEEDS)
    fitted = Roofline().fit(known, rng=np.random.default_rng(0))
    assert fitted.category_offsets_ is not None
    predicted = fitted.predict(known.features).throughput
    assert np.median(np.abs(np.log(predicted / known.throughput))) < 0.05


def test_without_a_difference_there_are_no_levels() -> None:
    assert Roofline().fit(history(dict.fromkeys(SPEEDS, 1.0)), rng=np.random.default_rng(0)).category_offsets_ is None


@pytest.mark.parametrize("device", ["chip-four", "GB300"])
def test_a_device_that_no_trial_had_is_predicted_with_more_doubt(device: str) -> None:
    known = history(SPEEDS)
    fitted = Roofline().fit(known, rng=np.random.default_rng(0))
    row = {**FACTS, "world_size": 8, "micro_batch_size": 4, "tp_degree": 1}
    asked = known.columns.encode([{**row, "device": name} for name in ("chip-one", device)])
    seen, new = fitted.predict(asked).spread
    assert new > seen + 0.1


def test_what_is_known_of_a_device_that_no_trial_had_is_used() -> None:
    known = history({"A100-SXM4-80GB": 1.0, "H100": 1.0})
    fitted = Roofline().fit(known, rng=np.random.default_rng(0))
    row = {**FACTS, "world_size": 8, "micro_batch_size": 16, "tp_degree": 1}
    old, new = fitted.predict(known.columns.encode([{**row, "device": name} for name in ("H100", "GB300")])).throughput
    assert 1.5 < new / old < 2.6
