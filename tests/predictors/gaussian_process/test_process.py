from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from torchx_cubicml.predictors.features.history import TrainingTable
from torchx_cubicml.predictors.gaussian_process.process import GaussianProcess
from torchx_cubicml.records.trial import Trial

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

LAYERS = 12


def trial(word: str, batch: int = 4, *, backend: str = "a", noise: float = 0.0, **workload: object) -> Trial:
    speed = 100.0 * batch**0.5 * (1.0 + 0.5 * word.count("N") / len(word)) * (1.1 if backend == "b" else 1.0)
    return Trial.completed(
        workload={"program": "a.py", "world_size": 2, **workload},
        config={"kernel": tuple(word), "batch": batch, "backend": backend},
        tokens_per_second=float(speed * np.exp(noise)),
    )


def some(count: int, *, noise: float = 0.01, **workload: object) -> list[Trial]:
    rng = np.random.default_rng(0)
    return [
        trial(
            "".join(rng.choice(list("FSN"), LAYERS, p=rng.dirichlet(np.ones(3)))),
            int(rng.integers(1, 9)),
            backend=str(rng.choice(["a", "b"])),
            noise=float(rng.normal(0, noise)),
            **workload,
        )
        for _ in range(count)
    ]


def history_of(trials: list[Trial]) -> TrainingTable:
    return TrainingTable.from_trials(trials, objective="tokens_per_second")


def fitted(trials: list[Trial], **given: object) -> tuple[GaussianProcess, TrainingTable]:
    history = history_of(trials)
    return GaussianProcess(**given).fit(history, rng=np.random.default_rng(0)), history


@pytest.mark.parametrize("workload", [{}, {"layer_n_params": tuple(range(1, LAYERS + 1))}], ids=["plain", "sizes"])
def test_the_variance_of_a_point_is_its_covariance_with_itself(workload: dict[str, object]) -> None:
    process, history = fitted(some(30, **workload))
    unseen = history.columns.encode([{"kernel": ("F", "other") * (LAYERS // 2), "batch": 99}, {}])
    points = process.places_.points(np.vstack([history.features, unseen]))
    diagonal = np.diag(process.kernel_.between(points, points))
    assert process.kernel_.alone(points) == pytest.approx(diagonal, rel=1e-6)


def tiled(batch: int) -> Trial:
    speed = 100.0 * batch / (4 + batch) * (1.0 if batch % 8 == 0 else 0.9)
    return Trial.completed(
        workload={"program": "a.py", "world_size": 2}, config={"batch": batch}, tokens_per_second=speed
    )


def test_multiples_of_a_tile_stand_out() -> None:
    process, history = fitted([tiled(batch) for batch in (5, 16, 20, 27, 33, 40, 47)])
    points = process.places_.points(history.features)
    assert process.kernel_.alone(points) == pytest.approx(np.diag(process.kernel_.between(points, points)))
    unseen = history.columns.encode([{"batch": batch} for batch in (23, 24, 25)])
    before, tile, after = process.latent(unseen).logarithm
    assert tile > max(before, after) + 0.5 * np.log(1 / 0.9)


def fullness(row: Mapping[str, object]) -> float:
    return row["batch"] / 8 + row["kernel"].count("N") / LAYERS


def crowding_of(history: TrainingTable) -> Callable[[np.ndarray], np.ndarray]:
    def memory_pressure(features: np.ndarray) -> np.ndarray:
        found = [np.flatnonzero((history.features == row).all(axis=1))[0] for row in features]
        return np.clip([[10.0 * (fullness_of[index] - 0.9)] for index in found], 0.0, 1.0)

    fullness_of = [fullness(row) for row in history.rows]
    return memory_pressure


def test_the_variance_of_a_point_holds_its_crowding() -> None:
    history = history_of(some(30))
    process = GaussianProcess(memory_pressure=crowding_of(history)).fit(history, rng=np.random.default_rng(0))
    points = process.points_
    assert points.memory_pressure.any()
    assert process.kernel_.alone(points) == pytest.approx(np.diag(process.kernel_.between(points, points)), rel=1e-6)


def test_it_learns_what_configs_lose_near_the_memory_wall() -> None:
    history = history_of(some(120))
    memory_pressure = crowding_of(history)
    slowed = history.throughput * (1.0 - 0.15 * memory_pressure(history.features)[:, 0])
    known = np.arange(120) % 2 == 0
    training = replace(history, throughput=np.where(known, slowed, np.nan))
    missed = [
        np.std(process.latent(history.features).logarithm[~known] - np.log(slowed[~known]))
        for process in (
            GaussianProcess(memory_pressure=each).fit(training, rng=np.random.default_rng(0))
            for each in (memory_pressure, None)
        )
    ]
    assert missed[0] < 0.8 * missed[1]


def test_the_posterior_is_that_of_a_gaussian_process() -> None:
    process, history = fitted(some(25))
    asked = history.columns.encode([dict(one.config) for one in some(40)[30:]])
    points, known = process.places_.points(asked), process.points_
    gram = process.kernel_.between(known, known) + process.kernel_.noise**2 * np.eye(25)
    across = process.kernel_.between(points, known)
    mean = across @ np.linalg.solve(gram, process.rest_)
    variance = process.kernel_.alone(points) - np.diag(across @ np.linalg.solve(gram, across.T))
    latent = process.latent(asked)
    assert latent.logarithm == pytest.approx(process.centre_ + process.scale_ * mean)
    assert latent.spread == pytest.approx(process.scale_ * np.sqrt(variance), rel=1e-3)


def test_it_is_surer_where_it_measured() -> None:
    process, history = fitted(some(30))
    far = history.columns.encode([{"kernel": ("F",) * LAYERS, "batch": 8, "backend": "c"}])
    assert process.latent(history.features).spread.max() < process.latent(far).spread[0]


def test_supposed_outcomes_keep_the_means_and_narrow_the_error() -> None:
    process, history = fitted(some(10))
    asked = history.columns.encode([dict(one.config) for one in some(20)[12:]])
    before, after = process.latent(asked), process.fantasize(asked[:1]).latent(asked)
    assert after.logarithm == pytest.approx(before.logarithm, abs=1e-4)
    assert after.spread[0] < 0.5 * before.spread[0]
    assert (after.spread <= before.spread + 1e-9).all()


def test_counts_carry_over_to_unseen_layers() -> None:
    words = ["F" * LAYERS, "N" * LAYERS, "F" * 6 + "N" * 6, "N" * 3 + "F" * 9]
    process, history = fitted([trial(word) for word in words])
    turned = history.columns.encode([{"kernel": tuple("N" * 6 + "F" * 6), "batch": 4, "backend": "a"}])
    assert np.exp(process.latent(turned).logarithm) == pytest.approx([250.0], rel=0.05)


def test_a_constant_tuned_parameter_stays_uncertain() -> None:
    trials = [trial("F" * LAYERS, 4, noise=noise) for noise in (0.01, -0.01, 0.0)]
    asked = [{"kernel": tuple("F" * LAYERS), "batch": batch, "backend": "a"} for batch in (4, 8)]
    informed, history = fitted(trials, tuned={"batch": (1, 2, 4, 8)})
    here, there = informed.latent(history.columns.encode(asked)).spread
    assert there > 3 * here
    ignorant, history = fitted(trials)
    here, there = ignorant.latent(history.columns.encode(asked)).spread
    assert there == here


def test_noise_is_learned() -> None:
    assert fitted(some(60, noise=0.08))[0].noise_ > 2 * fitted(some(60, noise=0.005))[0].noise_


def test_intervals_hold_what_they_promise() -> None:
    trials = some(300, noise=0.02)
    process, history = fitted(trials[:60])
    rows = history_of(trials[60:])
    predicted = process.predict(history.columns.encode(rows.rows))
    inside = (predicted.quantile(0.1) <= rows.throughput) & (rows.throughput <= predicted.quantile(0.9))
    assert 0.65 < inside.mean() < 0.97


def test_large_layers_weigh_more_where_sizes_are_known() -> None:
    sizes = (100, *(1,) * (LAYERS - 1))
    trials = [trial(word, layer_n_params=sizes) for word in ("F" * LAYERS, "N" * LAYERS)]
    process, history = fitted(trials)
    rows = [{"kernel": tuple(word), "batch": 4, "backend": "a"} for word in ("N" + "F" * 11, "F" + "N" * 5 + "F" * 6)]
    large, others = process.latent(history.columns.encode(rows)).logarithm
    assert large > others


def test_more_rows_than_it_takes_are_thinned() -> None:
    process, _ = fitted(some(450))
    assert len(process.points_) == 400
    assert process.n_measured_ == 450


def test_a_large_layer_may_change_more_where_sizes_are_known() -> None:
    sizes = (100, *(1,) * (LAYERS - 1))
    process, history = fitted(
        [trial("F" * LAYERS, layer_n_params=sizes, noise=noise) for noise in (0.0, 0.01, 0.02)],
        tuned={"kernel": ("F", "N")},
    )
    large, small = ("N" + "F" * (LAYERS - 1)), ("F" * (LAYERS - 1) + "N")
    rows = [dict(trial(word, layer_n_params=sizes).config) for word in (large, small)]
    of_large, of_small = process.latent(history.columns.encode(rows)).spread
    assert of_large > 2.0 * of_small


def test_single_effects_add_up_in_an_unseen_config() -> None:
    """Eight parameters of which two matter: they were never on together."""
    rng = np.random.default_rng(0)
    names = [f"p{number}" for number in range(8)]
    trials = []
    for _ in range(24):
        config = {name: bool(rng.integers(2)) for name in names}
        config["p0"] = config["p0"] and not config["p1"]
        speed = 100.0 * (1.3 if config["p0"] else 1.0) * (1.3 if config["p1"] else 1.0)
        trials.append(Trial.completed(workload={"program": "a.py"}, config=config, tokens_per_second=speed))
    process, history = fitted(trials, tuned=dict.fromkeys(names, (False, True)))
    asked = [dict.fromkeys(names, False) | {"p0": one, "p1": other} for one, other in ((1, 0), (0, 1), (1, 1))]
    asked = [{name: bool(value) for name, value in each.items()} for each in asked]
    first, second, both = process.predict(history.columns.encode(asked)).throughput
    assert first == pytest.approx(130.0, rel=0.05)
    assert second == pytest.approx(130.0, rel=0.05)
    assert both > 145.0
