from __future__ import annotations

import math
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np
import pytest

from torchx_cubicml.advisor.acquisition import Acquisition, log_expected_improvement, weighted_by_fit
from torchx_cubicml.advisor.batch import diverse_subset
from torchx_cubicml.advisor.posterior import Posterior
from torchx_cubicml.errors import SpaceError
from torchx_cubicml.predictors import Prediction
from torchx_cubicml.records.trial import Trial
from torchx_cubicml.space import Parameter, SearchSpace
from torchx_cubicml.space.encoding import vectors_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

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


class TestDiverseSubset:
    def test_a_twin_gives_way_to_another(self) -> None:
        pool = [config(4), config(4, "FFFN"), config(32, "NNNN")]
        picked = diverse_subset(SPACE, pool, np.array([1.0, 0.99, 0.95]), count=2, taken=[])
        assert picked == [config(4), config(32, "NNNN")]

    def test_a_clear_winner_stays_though_a_twin_is_under_way(self) -> None:
        pool = [config(4, "FFFN"), config(32, "NNNN")]
        assert diverse_subset(SPACE, pool, np.array([5.0, 1.0]), count=1, taken=[config(4)]) == [config(4, "FFFN")]

    def test_two_choices_are_as_far_apart_as_any_two_ends(self) -> None:
        numbers = (Parameter(name="few", choices=(1, 2)), Parameter(name="many", choices=tuple(range(9))))
        space = SearchSpace(parameters=numbers).bind(workload=WORKLOAD, current={})
        pool = [{"few": 2, "many": 0}, {"few": 1, "many": 8}]
        for scores in ([1.001, 1.0], [1.0, 1.001]):
            best = pool[int(np.argmax(scores))]
            assert diverse_subset(space, pool, np.array(scores), count=1, taken=[{"few": 1, "many": 0}]) == [best]

    def test_no_more_than_the_pool(self) -> None:
        assert diverse_subset(SPACE, [config(4)], np.array([1.0]), count=3, taken=[]) == [config(4)]
        assert diverse_subset(SPACE, [], np.array([]), count=3, taken=[]) == []

    def test_several_surrogates_take_turns(self) -> None:
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


class FixedPosterior:
    """A posterior of one parameter whose numbers are chosen by hand, one of each per choice."""

    def __init__(self, speeds: list[float], *, fits: float = 1.0, best: float | None = None) -> None:
        self.space = SearchSpace(parameters=SPACE.parameters[:1]).bind(workload=WORKLOAD, current={})
        self.outcomes: dict[object, object] = {}
        self.n_out_of_memory = 0
        self._speeds, self._fits, self._best = np.array(speeds), fits, best

    def after(self, *, lost: int, of: int) -> FixedPosterior:
        self.n_out_of_memory, self.outcomes = lost, dict.fromkeys(range(of))
        return self

    def forecast_at(self, vectors: NDArray[np.intp]) -> Prediction:
        logarithm = np.log(self._speeds[vectors[:, 0]])
        return Prediction(
            logarithm=logarithm, spread=np.full(len(vectors), 0.2), fits=np.full(len(vectors), self._fits)
        )

    def fastest(self, count: int) -> list[dict[str, object]]:
        return [] if self._best is None else [{"micro_batch_size": 1}, {"micro_batch_size": 2}][:count]

    def estimates(self, configs: list[dict[str, object]]) -> Prediction:
        slower = self._best / 2 if self._best else 1.0
        logarithm = np.log([self._best or 1.0, slower][: len(configs)])
        return Prediction(logarithm=logarithm, spread=np.full(len(configs), 0.1))

    def decided_rows(self) -> frozenset[bytes]:
        return frozenset({np.array([1], dtype=np.intp).tobytes()})

    def sample_function(self, rng: np.random.Generator) -> Callable[[NDArray[np.intp]], Prediction]:
        del rng
        return FixedPosterior([8.0] * 6).forecast_at


def scores(posterior: FixedPosterior, name: str, *sizes: int, rng: np.random.Generator | None = None) -> list[float]:
    return Acquisition(posterior, name, rng=rng)([{"micro_batch_size": size} for size in sizes]).tolist()


SPEEDS = [100.0, 110.0, 200.0, 50.0, 100.0, 100.0]


class TestScores:
    def test_the_mean_score_is_log_gain_plus_log_fit(self) -> None:
        expected = [math.log(speed / 100.0 * 0.5) for speed in (100.0, 200.0, 50.0)]
        assert scores(FixedPosterior(SPEEDS, fits=0.5, best=100.0), "mean", 1, 4, 8) == pytest.approx(expected)

    def test_the_upper_bound_adds_one_and_a_half_spreads(self) -> None:
        posterior = FixedPosterior(SPEEDS, best=100.0)
        above = np.subtract(scores(posterior, "upper_bound", 1, 4, 8), scores(posterior, "mean", 1, 4, 8))
        assert above == pytest.approx([0.3] * 3)

    def test_expected_improvement_without_data_is_the_mean(self) -> None:
        posterior = FixedPosterior(SPEEDS)
        assert scores(posterior, "expected_improvement", 1, 4) == pytest.approx(np.log([100.0, 200.0]))
        assert scores(posterior, "upper_bound", 1, 4) == pytest.approx(np.log([100.0, 200.0]) + 0.3)

    def test_with_one_it_is_that_of_the_gain_over_it(self) -> None:
        expected = log_expected_improvement(np.log([1.0, 2.0]), np.array([0.2, 0.2]))
        assert scores(FixedPosterior(SPEEDS, best=100.0), "expected_improvement", 1, 4) == pytest.approx(expected)

    def test_thompson_scores_by_the_function_it_draws(self) -> None:
        posterior = FixedPosterior(SPEEDS, best=4.0)
        assert scores(posterior, "thompson", 1, 4, rng=np.random.default_rng(0)) == pytest.approx([math.log(2.0)] * 2)
        assert scores(posterior, "mean", 1, rng=np.random.default_rng(0)) == pytest.approx([math.log(25.0)])

    def test_a_decided_config_is_never_chosen(self) -> None:
        assert scores(FixedPosterior(SPEEDS, best=100.0), "mean", 2) == [-math.inf]

    def test_the_incumbent_is_among_the_300_fastest(self) -> None:
        class Many(FixedPosterior):
            def fastest(self, count: int) -> list[dict[str, object]]:
                return [{"micro_batch_size": 1}] * min(count, 400)

            def estimates(self, configs: list[dict[str, object]]) -> Prediction:
                n = len(configs)  # each is twice as fast as the one before
                return Prediction(logarithm=math.log(2.0) * np.arange(n), spread=np.full(n, 0.1))

        assert scores(Many(SPEEDS), "mean", 1) == pytest.approx([math.log(100.0) - 299 * math.log(2.0)])

    def test_an_unknown_acquisition_lists_the_known_ones(self) -> None:
        with pytest.raises(SpaceError, match="'best'; choose from expected_improvement, mean, upper_bound, thompson"):
            Acquisition(FixedPosterior(SPEEDS), "best")


@pytest.mark.parametrize(
    ("lost", "of", "floor"),
    [
        (0, 0, 0.3),  # nothing was launched yet
        (1, 4, 0.3),  # a quarter is accepted
        (3, 4, 0.4),  # two beyond it, a twentieth for each
        (0, 2, 0.275),
        (0, 100, 0.1),  # no lower
        (40, 40, 0.6),  # no higher
    ],
)
def test_the_required_fit_follows_out_of_memory_launches(lost: int, of: int, floor: float) -> None:
    """A chance that is short of it by a hundredth costs ten, more than any gain; one that is above costs nothing."""
    for fits, cost in ((floor + 0.01, 0.0), (floor - 0.01, 10.0)):
        posterior = FixedPosterior(SPEEDS, fits=fits, best=100.0).after(lost=lost, of=of)
        assert scores(posterior, "mean", 1) == pytest.approx([math.log(fits) - cost])


def test_each_surrogate_has_a_row_of_weighted_scores() -> None:
    found = weighted_by_fit(np.array([[0.0, 1.0], [2.0, 3.0]]), np.array([1.0, 0.0]))
    assert found.tolist() == [[0.0, -math.inf], [2.0, -math.inf]]


@pytest.mark.parametrize("gain", [-31.0, -30.0, -29.0, -1.0, 0.0, 30.0])
def test_expected_improvement_is_accurate_at_its_seams(gain: float) -> None:
    """Against an asymptotic series far below zero (its next term is under one part in 10,000) and the closed form."""
    if gain < -20:
        expected = -0.5 * gain**2 - 0.5 * math.log(2 * math.pi) + math.log(gain**-2 - 3 * gain**-4 + 15 * gain**-6)
        tolerance = 0.004  # of the leading term alone, 3 / z^2
    else:
        normal = NormalDist()
        expected, tolerance = math.log(gain * normal.cdf(gain) + normal.pdf(gain)), 1e-9
    assert log_expected_improvement(np.array([gain]), np.array([1.0]))[0] == pytest.approx(expected, abs=tolerance)


def test_a_batch_is_that_of_a_plain_rule() -> None:
    """Each pick takes 0.3 exp(-10 d) from the scores at a distance d; each parameter is half of the distance."""
    rng = np.random.default_rng(0)
    batches = (1, 2, 4, 8, 16, 32)

    def apart(one: dict[str, object], other: dict[str, object]) -> float:
        ranks = abs(batches.index(one["micro_batch_size"]) - batches.index(other["micro_batch_size"])) / 5
        layers = zip(one["sharding_strategy"], other["sharding_strategy"], strict=True)
        return 0.5 * ranks + 0.5 * sum(a != b for a, b in layers) / 4

    for _ in range(50):
        every = [config(batch, layers) for batch in batches for layers in ("FFFF", "FFNN", "NNNN", "FNFN")]
        drawn = [every[index] for index in rng.permutation(len(every))[:10]]
        taken, pool, scores = drawn[:2], drawn[2:], rng.normal(0, 0.2, size=(2, 8))
        left = {
            place: scores[:, place] - sum(0.3 * math.exp(-10 * apart(pool[place], each)) for each in taken)
            for place in range(8)
        }
        expected = []
        for number in range(4):
            top = max(left, key=lambda place: left[place][number % 2])
            del left[top]
            expected.append(pool[top])
            left = {place: score - 0.3 * math.exp(-10 * apart(pool[place], pool[top])) for place, score in left.items()}
        assert diverse_subset(SPACE, pool, scores, count=4, taken=taken) == expected
