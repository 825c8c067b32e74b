from __future__ import annotations

import numpy as np
import pytest

from torchx_cubicml.advisor.acquisition import Acquisition, log_expected_improvement
from torchx_cubicml.advisor.batch import diverse_subset
from torchx_cubicml.advisor.posterior import Posterior
from torchx_cubicml.records.trial import Trial
from torchx_cubicml.space import Parameter, SearchSpace
from torchx_cubicml.space.encoding import vectors_of

WORKLOAD = {"program": "a.py", "world_size": 2}
SPACE = SearchSpace(
    parameters=(
        Parameter(name="micro_batch_size", choices=(1, 2, 4, 8, 16, 32)),
        Parameter(name="sharding_strategy", choices=("FULL_SHARD", "NO_SHARD"), per_layer=4),
    )
).bind(workload=WORKLOAD, current={})


def config(batch: int, layers: str = "FFFF") -> dict[str, object]:
    names = {"F": "FULL_SHARD", "N": "NO_SHARD"}
    return {"micro_batch_size": batch, "sharding_strategy": tuple(names[layer] for layer in layers)}


def outlook_of(*trials: Trial) -> Posterior:
    return Posterior.of(SPACE, workload=WORKLOAD, current=config(1), trials=trials, rng=np.random.default_rng(0))


def ran(batch: int, speed: float) -> Trial:
    return Trial.completed(workload=WORKLOAD, config=config(batch), tokens_per_second=speed)


def lost(batch: int) -> Trial:
    return Trial.infeasible(workload=WORKLOAD, config=config(batch))


@pytest.mark.parametrize("gain", [-40.0, -8.0, -1.01, -0.99, 0.0, 1.0, 5.0])
def test_expected_improvement_is_that_of_a_normal(gain: float) -> None:
    # Against the integral of the survival function, for any spread.
    points = np.linspace(0.0, 12.0 if gain > -3 else 2.0, 400_001)
    density = -0.5 * (points - gain) ** 2 - 0.5 * np.log(2 * np.pi)
    top = density.max()
    expected = top + np.log(np.sum(points * np.exp(density - top)) * (points[1] - points[0]))
    for spread in (1.0, 0.05):
        found = log_expected_improvement(np.array([gain * spread]), np.array([spread]))[0]
        assert found == pytest.approx(expected + np.log(spread), abs=0.01)


def test_expected_improvement_never_falls_as_the_gain_grows() -> None:
    gains = np.linspace(-60.0, 60.0, 20_001)
    scores = log_expected_improvement(gains, np.ones_like(gains))
    assert np.isfinite(scores).all()
    assert (np.diff(scores) > 0).all()


def test_launched_configs_are_never_scored() -> None:
    scores = Acquisition(outlook_of(ran(1, 100.0), ran(2, 150.0), lost(32)))([config(1), config(32), config(4)])
    assert scores[:2].tolist() == [-np.inf, -np.inf]
    assert np.isfinite(scores[2])


def test_faster_scores_higher_and_known_not_to_fit_scores_lowest() -> None:
    score = Acquisition(outlook_of(ran(1, 100.0), ran(2, 200.0), ran(4, 400.0), lost(16)))
    slower, faster, lost_for_certain = score([config(1, "FFFN"), config(4, "FFFN"), config(32)])
    assert lost_for_certain == -np.inf or lost_for_certain < -100
    assert faster > slower


def test_without_any_measurement_the_surest_scores_highest() -> None:
    score = Acquisition(outlook_of(lost(8)))
    small, large = score([config(1), config(4)])
    assert small > large


class TestPickApart:
    def test_a_twin_gives_way_to_another(self) -> None:
        pool = [config(4), config(4, "FFFN"), config(32, "NNNN")]
        picked = diverse_subset(SPACE, pool, np.array([1.0, 0.99, 0.95]), count=2, taken=[])
        assert picked == [config(4), config(32, "NNNN")]

    def test_a_clear_winner_stays_though_a_twin_is_under_way(self) -> None:
        pool = [config(4, "FFFN"), config(32, "NNNN")]
        assert diverse_subset(SPACE, pool, np.array([5.0, 1.0]), count=1, taken=[config(4)]) == [config(4, "FFFN")]

    def test_no_more_than_the_pool(self) -> None:
        assert diverse_subset(SPACE, [config(4)], np.array([1.0]), count=3, taken=[]) == [config(4)]
        assert diverse_subset(SPACE, [], np.array([]), count=3, taken=[]) == []

    def test_several_opinions_take_turns(self) -> None:
        pool = [config(4), config(1, "NNNN"), config(16, "FFNN")]
        ensemble = np.array([[9.0, 8.0, 1.0], [9.0, 1.0, 8.0]])
        assert diverse_subset(SPACE, pool, ensemble, count=3, taken=[]) == [pool[0], pool[2], pool[1]]


def test_rows_of_choice_indices_are_scored_like_their_configs() -> None:
    posterior = outlook_of(ran(1, 100.0), ran(2, 150.0), ran(4, 180.0), lost(16))
    configs = [config(batch, layers) for batch in (1, 8, 16, 32) for layers in ("FFFF", "FFNN")]
    expected, found = posterior.forecast(configs), posterior.forecast_at(vectors_of(posterior.space, configs))
    np.testing.assert_allclose(found.logarithm, expected.logarithm)
    np.testing.assert_allclose(found.spread, expected.spread)
    np.testing.assert_allclose(found.fits, expected.fits)
    assert expected.fits[4] == expected.fits[6] == 0.0  # at least as large a batch as one that ran out of memory
