from __future__ import annotations

import numpy as np
import pytest

from torchx_cubicml.predictors.features.history import TrainingTable
from torchx_cubicml.predictors.gaussian_process.process import GaussianProcess
from torchx_cubicml.records.trial import Trial

LAYERS = 24  # so that no config is drawn twice


def trials(*, slowed: float = 0.0, seed: int = 0) -> tuple[list[Trial], list[Trial]]:
    """Return forty, and of these every tenth, which is ``slowed``; the second is far from all and truly slow."""
    rng = np.random.default_rng(seed)
    made = []
    for number in range(40):
        word = tuple(rng.choice(list("FN"), LAYERS, p=[0.3, 0.7])) if number != 1 else ("F",) * LAYERS
        batch = int(rng.choice([4, 8])) if number != 1 else 1
        speed = 100.0 * batch**0.5 * (1.0 + 0.3 * word.count("N") / LAYERS) * np.exp(rng.normal(0, 0.01))
        made.append(
            Trial.completed(
                workload={"program": "a.py", "world_size": 2},
                config={"kernel": word, "batch": batch},
                tokens_per_second=float(speed * (1.0 - slowed * (number % 10 == 9))),
            )
        )
    return made, made[9::10]


def doubted_of(made: list[Trial]) -> tuple[list[float], GaussianProcess]:
    """Return the throughputs that are doubted, the lowest first."""
    history = TrainingTable.from_trials(made, objective="tokens_per_second")
    process = GaussianProcess().fit(history, rng=np.random.default_rng(0))
    return sorted(history.throughput[process.outliers(history.features)].tolist()), process


def speeds(made: list[Trial]) -> list[float]:
    return sorted(trial.measurement.tokens_per_second for trial in made if trial.measurement)


@pytest.mark.parametrize("seed", range(2))
def test_an_outlier_leaves_the_noise_small(seed: int) -> None:
    made, find_outliers = trials(slowed=0.3, seed=seed)
    doubted, process = doubted_of(made)
    assert doubted == speeds(find_outliers)
    assert process.noise_ < 0.03


@pytest.mark.parametrize("seed", range(2))
def test_a_slow_config_far_from_others_is_believed(seed: int) -> None:
    assert doubted_of(trials(seed=seed)[0])[0] == []


def test_a_repeated_slow_result_is_believed() -> None:
    made, find_outliers = trials(slowed=0.3)
    doubted, _ = doubted_of([*made, *3 * find_outliers[:1]])
    assert doubted == speeds(find_outliers[1:])
