"""The error model of measurements: what repeats, load and time tell of the machine, and of the gain of a config."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from statistics import NormalDist

import numpy as np
import pytest

from torchx_cubicml.predictors import measurement_error
from torchx_cubicml.predictors.measurement_error import ErrorModel, Gain, Launches, prior_draws
from torchx_cubicml.records.trial import State, Trial

repeat_noise = partial(measurement_error.repeat_noise, objective="tokens_per_second")


def runs(speeds: list[float], *, batch: int = 1, program: str = "a.py") -> list[Trial]:
    return [
        Trial.completed(workload={"program": program}, config={"batch": batch}, tokens_per_second=speed)
        for speed in speeds
    ]


def launches(
    values: list[float],
    configs: list[int],
    *,
    error: float = 0.0,
    load: list[float] | None = None,
    times: list[float] | None = None,
) -> Launches:
    n = len(values)
    return Launches(
        logarithm=np.array(values),
        error=np.full(n, error),
        load=np.array(load or [0.0] * n),
        time=np.array(times or [math.nan] * n),
        config=np.array(configs),
    )


def plain_gain(given: Launches, best: int, own: int) -> list[tuple[float, float, float]]:
    """Weight, mean and spread of each draw, by the rule of conditional normal distributions, entry by entry."""
    found = []
    n = len(given)
    values = given.logarithm + 0.4 * given.load
    values = values - values.mean()
    names = [best, own, *sorted({*given.config.tolist()} - {best, own})]
    design = np.array([[float(name == each) for name in names] for each in given.config])
    prior = 0.25 * np.eye(len(names)) + 100.0  # a flat common mean: large variance beside that of the configs
    for run, level, length, load, session in zip(*prior_draws(), strict=True):
        errors = np.zeros((n, n))
        for i in range(n):
            for j in range(n):
                errors[i, j] = 0.25 * given.load[i] * given.load[j]
                apart = abs(given.time[i] - given.time[j])
                if math.isfinite(apart):  # all of one session, a unit of time apart
                    errors[i, j] += level**2 * math.exp(-apart / length) + session**2
                if i == j:
                    errors[i, i] += run**2 + given.error[i] ** 2 + load**2 * given.load[i] ** 2 + 1e-6
        total = design @ prior @ design.T + errors
        mean = prior @ design.T @ np.linalg.solve(total, values)
        covariance = prior - prior @ design.T @ np.linalg.solve(total, design @ prior)
        likelihood = -0.5 * (np.linalg.slogdet(total)[1] + values @ np.linalg.solve(total, values))
        variance = covariance[0, 0] + covariance[1, 1] - 2.0 * covariance[0, 1]
        found.append((likelihood, mean[0] - mean[1], math.sqrt(variance)))
    top = max(each for each, _, _ in found)
    total_weight = sum(math.exp(each - top) for each, _, _ in found)
    return [(math.exp(each - top) / total_weight, mean, spread) for each, mean, spread in found]


@pytest.mark.parametrize(
    "given",
    [
        launches([0.0, 0.3, 0.02, 0.28], [0, 1, 0, 1]),
        launches([0.0, 0.3, 0.02, 0.28, 0.1], [0, 1, 0, 1, 2], error=0.05, times=[1.0, 2.0, 3.0, 4.0, 5.0]),
        launches([0.0, -0.4, 0.02, 0.28], [0, 1, 0, 1], load=[0.0, 0.8, 0.1, 0.0]),
    ],
    ids=["plain", "in time", "crowded"],
)
def test_the_gain_is_that_of_conditional_normal_distributions(given: Launches) -> None:
    gain, plain = ErrorModel.unknown().gain(given, 1, 0), plain_gain(given, 1, 0)
    for q in (0.1, 0.5, 0.9):
        value = math.log(gain.quantile(q))
        below = sum(weight * NormalDist(mean, spread).cdf(value) for weight, mean, spread in plain)
        assert below == pytest.approx(q, abs=2e-3)


def test_draws_cover_their_prior() -> None:
    draws = prior_draws()
    assert np.median(draws.run) == pytest.approx(0.03, rel=0.03)
    assert (draws.level == 0.0).mean() == pytest.approx(0.4, abs=0.02)
    assert np.log(draws.session).std() == pytest.approx(1.0, rel=0.05)


@pytest.mark.parametrize("q", [0.1, 0.5, 0.9])
def test_quantiles_of_one_component_are_normal(q: float) -> None:
    gain = Gain(np.ones(1), np.array([0.3]), np.array([0.1]))
    assert math.log(gain.quantile(q)) == pytest.approx(NormalDist(0.3, 0.1).inv_cdf(q))
    assert gain.probability_above(NormalDist(0.3, 0.1).inv_cdf(q)) == pytest.approx(1.0 - q)


class TestTime:
    @staticmethod
    def width(times: list[float] | None, values: list[float]) -> float:
        low, high = ErrorModel.unknown().gain(launches(values, [0, 1] * 4, times=times), 1, 0).interval
        return math.log(high / low)

    def test_neighbours_share_a_drift(self) -> None:
        falling = [0.3 - 0.05 * place + 0.2 * (place % 2) for place in range(8)]
        assert self.width([float(place) for place in range(8)], falling) < 0.6 * self.width(None, falling)

    def test_the_unit_of_time_does_not_matter(self) -> None:
        values = [0.0, 0.2, 0.05, 0.21, 0.0, 0.26, 0.02, 0.2]
        hours, seconds = (self.width([unit * place for place in range(8)], values) for unit in (1.0, 3600.0))
        assert hours == pytest.approx(seconds)


class TestLoad:
    def test_a_load_that_all_share_costs_both_alike(self) -> None:
        low, high = ErrorModel.unknown().gain(launches([0.0, 0.7] * 3, [0, 1] * 3, load=[0.8] * 6), 1, 0).interval
        assert 1.7 < low < high < 2.3

    def test_repeats_narrow_the_error_of_crowded_launches(self) -> None:
        rng = np.random.default_rng(0)

        def width(times: int) -> float:
            values = [0.1 * side + rng.normal(0.0, 0.02) for _ in range(times) for side in (0, 1)]
            found = ErrorModel.unknown().gain(launches(values, [0, 1] * times, load=[0.8] * 2 * times), 1, 0)
            return math.log(found.interval[1] / found.interval[0])

        assert width(10) < 0.3 * width(2)

    def test_a_crowded_launch_beside_a_quiet_one_tells_little(self) -> None:
        low, high = ErrorModel.unknown().gain(launches([0.0, 0.3], [0, 1], load=[0.8, 0.0]), 1, 0).interval
        assert low < 1.1 < high


def test_the_launch_that_chose_a_config_among_others_does_not_compare_it() -> None:
    given = launches([0.0, 0.9, 0.0, 0.1, 0.1, 0.02], [0, 1, 0, 1, 1, 2])
    assert given.compared(1, 0).logarithm.tolist() == [0.0, 0.0, 0.1, 0.1, 0.02]
    alone = given.rows(given.config < 2)
    assert len(alone.compared(1, 0)) == len(alone)


@pytest.mark.parametrize("after", [0, 60, 200])
def test_later_launches_of_one_config_take_no_gain_away(after: int) -> None:
    rng = np.random.default_rng(0)
    values = [0.0, 0.2, 0.0, 0.2, 0.01, 0.21, *rng.normal(0.0, 0.01, after)]
    given = launches(values, [*([0, 1] * 3), *([0] * after)], times=[float(place) for place in range(len(values))])
    gain = ErrorModel.unknown().gain(given.compared(1, 0), 1, 0)
    assert gain.quantile(0.5) == pytest.approx(math.exp(0.2), rel=0.03)
    assert gain.probability_above(0.0) > 0.97


def test_a_sweep_in_order_is_no_drift_of_the_machine() -> None:
    """Twelve configs, each launched twice in a row, the last of them 2.2 times as fast as the first."""
    rng = np.random.default_rng(0)
    configs = [place // 2 for place in range(24)]
    values = [math.log(2.2) * config / 11 + rng.normal(0.0, 0.03) for config in configs]
    given = launches(values, configs, times=[float(place) for place in range(24)])
    low, high = ErrorModel.unknown().gain(given.compared(11, 0), 11, 0).interval
    assert low < 2.2 < high
    assert low > 1.7


def test_another_day_may_have_another_level() -> None:
    def width(pause: float) -> float:
        times = [0.0, 1.0, 2.0, 3.0 + pause, 4.0 + pause, 5.0 + pause]
        low, high = (
            ErrorModel.unknown().gain(launches([0.0] * 3 + [0.1] * 3, [0] * 3 + [1] * 3, times=times), 1, 0).interval
        )
        return math.log(high / low)

    assert width(1000.0) > 1.5 * width(0.0)


def test_quiet_workloads_elsewhere_do_not_overrule_own_repeats() -> None:
    """Six workloads within half a per cent, beside repeats that differ by some per cent: no gain is sure."""
    rng = np.random.default_rng(0)
    elsewhere = [
        trial
        for number in range(6)
        for batch in range(4)
        for trial in runs(list(np.exp(rng.normal(0.0, 0.005, 6))), batch=batch, program=f"{number}.py")
    ]
    machine = ErrorModel.of(elsewhere, objective="tokens_per_second")
    alarms = 0
    for _ in range(100):
        given = launches(list(rng.normal(0.0, 0.05, 6)), [0, 1] * 3)
        alarms += machine.gain(given, 1, 0).probability_above(0.0) > 0.97
    assert alarms <= 12


class TestRepeatNoise:
    def test_without_repeats_it_is_wide(self) -> None:
        assert repeat_noise([*runs([100.0]), *runs([200.0], batch=2)]) == pytest.approx(repeat_noise([]), rel=0.2)
        assert repeat_noise([]) > 0.05

    def test_many_repeats_outweigh_the_belief(self) -> None:
        rng = np.random.default_rng(0)
        trials = [trial for batch in range(50) for trial in runs(list(np.exp(5 + rng.normal(0, 0.1, 4))), batch=batch)]
        # Of the latest 64 launches, some 30 degrees of freedom: draws of the prior are .02 to .05 apart there.
        assert repeat_noise(trials) == pytest.approx(0.1, abs=0.04)

    def test_configs_and_workloads_are_kept_apart(self) -> None:
        apart = [*runs([100.0, 100.0]), *runs([900.0, 900.0], batch=2), *runs([500.0, 500.0], program="b.py")]
        assert repeat_noise(apart) < 0.02

    def test_own_repeats_outweigh_those_of_other_workloads(self) -> None:
        quiet = [trial for batch in range(30) for trial in runs([100.0, 101.0], batch=batch, program="b.py")]
        wild = runs([80.0, 100.0, 125.0])
        assert repeat_noise([], elsewhere=quiet) < 0.8 * repeat_noise([])
        assert repeat_noise(wild, elsewhere=quiet) > 0.04
        assert repeat_noise(quiet, elsewhere=wild) < 0.02

    def test_a_changed_program_teaches_little_of_noise(self) -> None:
        changed = runs([1.0, 5.0, 20.0, 34.0], program="changed.py")
        assert repeat_noise([], elsewhere=changed) < 2 * repeat_noise([])

    def test_errors_within_runs_are_no_noise_between_runs(self) -> None:
        rng = np.random.default_rng(0)
        doubts = rng.choice([0.01, 0.05, 0.3], size=60)
        values = rng.normal(0.0, 0.02, size=60) + rng.normal(0.0, doubts)
        given = launches(list(values), [place // 4 for place in range(60)])
        noise = ErrorModel.unknown().noise
        assert noise(replace(given, error=doubts)) < 0.3 * noise(given)

    def test_launches_of_an_unknown_config_are_no_repeats(self) -> None:
        bare = [
            Trial.completed(workload={"program": "a.py"}, config={}, tokens_per_second=speed) for speed in (1.0, 9.0)
        ]
        assert repeat_noise(bare) == repeat_noise([])

    def test_trials_in_another_unit_teach_no_noise(self) -> None:
        failed = Trial.infeasible(workload={}, config={})
        assert repeat_noise([failed, *runs([1.0, 9.0])], objective="samples_per_second") == repeat_noise([])


def test_a_trial_stopped_early_is_a_measurement() -> None:
    early = [
        Trial(
            trial_id=str(index),
            workload={},
            config={"batch": 1},
            state=State.STOPPED_EARLY,
            measurement=trial.measurement,
        )
        for index, trial in enumerate(runs([50.0, 100.0]))
    ]
    assert repeat_noise(early) > 0.1
