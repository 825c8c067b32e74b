from __future__ import annotations

from dataclasses import replace
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np
import pytest

from torchx_cubicml.advisor.noise import (
    median_noise,
    pooled_noise,
    repeat_noise,
    repeated_measurements,
    updated_forecast,
)
from torchx_cubicml.predictors import Prediction
from torchx_cubicml.records.trial import State, Trial

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torchx_cubicml.advisor.noise import RepeatedMeasurements


def runs(speeds: list[float], *, batch: int = 1, program: str = "a.py") -> list[Trial]:
    return [
        Trial.completed(workload={"program": program}, config={"batch": batch}, tokens_per_second=speed)
        for speed in speeds
    ]


LEVELS = np.geomspace(0.001, 1.0, 70)
LOGS = np.log(LEVELS)


def bell(logs: NDArray[np.float64], centre: float, deviation: float) -> NDArray[np.float64]:
    density = np.array([NormalDist(centre, deviation).pdf(each) for each in logs])
    return density / density.sum()


def likelihoods(group: tuple[tuple[float, ...], tuple[float, ...]]) -> list[float]:
    """Log density of the differences of a config's repeats from the first, which share its error, at each level."""
    speeds, errors = group
    apart = np.log(speeds[1:]) - np.log(speeds[0])
    found = []
    for level in LEVELS:
        variances = np.array(errors) ** 2 + level**2 + 1e-6
        covariance = np.diag(variances[1:]) + variances[0]
        found.append(float(-0.5 * (np.linalg.slogdet(covariance)[1] + apart @ np.linalg.solve(covariance, apart))))
    return found


def plain_noise(own: list[RepeatedMeasurements], elsewhere: list[list[RepeatedMeasurements]]) -> float:
    """Noise by the rule of conditional probability, one level of the site and of the workload at a time."""
    site = bell(LOGS, np.log(0.03), 0.75)
    workload_given = [bell(LOGS, centre, 0.5) for centre in LOGS]
    for groups in elsewhere:
        seen = np.exp(np.sum([likelihoods(group) for group in groups], axis=0))
        site *= [0.9 * prior @ seen + 0.1 * seen.mean() for prior in workload_given]
    seen = np.exp(np.sum([likelihoods(group) for group in own], axis=0)) if own else np.ones(70)
    posterior = sum(weight * prior for weight, prior in zip(site, workload_given, strict=True)) * seen
    return float(np.sqrt(posterior @ LEVELS**2 / posterior.sum()))


QUIET = [((100.0, 100.5, 99.8), (0.0, 0.01, 0.0)), ((50.0, 50.6), (0.0, 0.0))]
WILD = [((1.0, 5.0, 20.0), (0.0, 0.1, 0.0))]


@pytest.mark.parametrize("own", [[], QUIET, WILD], ids=["none", "quiet", "wild"])
@pytest.mark.parametrize("elsewhere", [[], [QUIET], [QUIET, QUIET, WILD], [WILD, WILD]], ids=len)
def test_the_noise_is_that_of_a_plain_rule(
    own: list[RepeatedMeasurements], elsewhere: list[list[RepeatedMeasurements]]
) -> None:
    assert pooled_noise(own, elsewhere) == pytest.approx(plain_noise(own, elsewhere), rel=1e-6)


def test_half_of_the_probability_is_below_the_median_noise() -> None:
    """The prior's own median, where nothing was repeated; the median of an error that is seen often is that error."""
    assert median_noise([]) == pytest.approx(0.03, rel=0.02)
    rng = np.random.default_rng(0)
    often = [(tuple(np.exp(rng.normal(0, 0.1, 4))), (0.0,) * 4) for _ in range(400)]  # one part in 50 is its error
    assert median_noise(often) == pytest.approx(0.1, rel=0.06)
    assert median_noise([], [often] * 5) > 0.05


def test_a_thousand_quiet_repeats_leave_little_noise() -> None:
    again = [((100.0, 100.1, 99.9), (0.0,) * 3)] * 1000
    assert pooled_noise(again) < 0.002


@pytest.mark.parametrize(
    ("fact", "repeats"),
    [("device", False), ("n_params", False), ("micro_batch_size", False), ("torch_version", True)],
)
def test_repeats_share_machine_model_and_config(fact: str, repeats: bool) -> None:
    pair = [replace(trial, observed={fact: place}) for place, trial in enumerate(runs([100.0, 110.0]))]
    expected = [[((100.0, 110.0), (0.0, 0.0))]] if repeats else []
    assert repeated_measurements(pair, objective="tokens_per_second") == expected


def test_only_configs_measured_twice_are_repeats() -> None:
    trials = [*runs([100.0]), *runs([200.0, 210.0], batch=2), *runs([5.0], program="b.py")]
    assert repeated_measurements(trials, objective="tokens_per_second") == [[((200.0, 210.0), (0.0, 0.0))]]


class TestRepeatNoise:
    def test_without_repeats_it_is_wide(self) -> None:
        assert repeat_noise([*runs([100.0]), *runs([200.0], batch=2)]) == repeat_noise([]) > 0.05

    def test_many_repeats_outweigh_the_belief(self) -> None:
        rng = np.random.default_rng(0)
        trials = [trial for batch in range(50) for trial in runs(list(np.exp(5 + rng.normal(0, 0.1, 4))), batch=batch)]
        # 150 degrees of freedom: the estimate's standard deviation is about .006.
        assert repeat_noise(trials) == pytest.approx(0.1, abs=0.02)

    def test_configs_and_workloads_are_kept_apart(self) -> None:
        apart = [*runs([100.0, 100.0]), *runs([900.0, 900.0], batch=2), *runs([500.0, 500.0], program="b.py")]
        assert repeat_noise(apart) < 0.02

    def test_own_repeats_outweigh_those_of_other_workloads(self) -> None:
        quiet = [trial for batch in range(30) for trial in runs([100.0, 101.0], batch=batch, program="b.py")]
        wild = runs([80.0, 100.0, 125.0])
        assert repeat_noise([], elsewhere=quiet) < 0.5 * repeat_noise([])
        assert repeat_noise(wild, elsewhere=quiet) > 0.04
        assert repeat_noise(quiet, elsewhere=wild) < 0.02

    def test_a_changed_program_teaches_little_of_noise(self) -> None:
        changed = runs([1.0, 5.0, 20.0, 34.0], program="changed.py")
        assert repeat_noise([], elsewhere=changed) < 2 * repeat_noise([])

    def test_errors_within_runs_are_no_noise_between_runs(self) -> None:
        """Over 60 groups of four; the estimate's standard deviation is about 0.003."""
        rng = np.random.default_rng(0)
        doubts = rng.choice([0.01, 0.05, 0.3], size=(60, 4))
        logs = rng.normal(0.0, 0.03, size=(60, 4)) + rng.normal(0.0, doubts)
        measurements = [(tuple(values), tuple(each)) for values, each in zip(np.exp(logs), doubts, strict=True)]
        assert pooled_noise(measurements) == pytest.approx(0.03, abs=0.012)
        assert pooled_noise((values, (0.0,) * 4) for values, _ in measurements) > 0.1

    def test_launches_of_an_unknown_config_are_no_repeats(self) -> None:
        bare = [
            Trial.completed(workload={"program": "a.py"}, config={}, tokens_per_second=speed) for speed in (1.0, 9.0)
        ]
        assert repeat_noise(bare) == repeat_noise([])

    def test_trials_in_another_unit_teach_no_noise(self) -> None:
        failed = Trial.infeasible(workload={}, config={})
        assert repeat_noise([failed, *runs([1.0, 9.0])], objective="samples_per_second") == repeat_noise([])


def predicted(*throughputs: float, spread: float = 0.1) -> Prediction:
    return Prediction(logarithm=np.log(throughputs), spread=np.full(len(throughputs), spread))


class TestBelieve:
    def test_more_measurements_weigh_more(self) -> None:
        measured = [((200.0,) * count, (0.0,) * count) for count in (1, 20)]
        estimates = updated_forecast(predicted(100.0, 100.0), measured, noise=0.1)
        (once, often), (spread_of_once, spread_of_often) = estimates.throughput, estimates.spread
        assert once == pytest.approx((100.0 * 200.0) ** 0.5)
        assert once < often < 200.0
        assert spread_of_often < spread_of_once < 0.1

    def test_measurements_alone_are_their_mean(self) -> None:
        estimate = updated_forecast(Prediction.unknown(1), [((90.0, 100.0, 111.0), (0.0,) * 3)], noise=0.1)
        assert estimate.throughput == pytest.approx([(90.0 * 100.0 * 111.0) ** (1 / 3)])
        assert estimate.spread == pytest.approx([0.1 / 3**0.5])

    def test_a_run_that_is_unsure_of_itself_weighs_less(self) -> None:
        estimate = updated_forecast(Prediction.unknown(1), [((100.0, 200.0), (0.0, 0.3))], noise=0.1)
        assert estimate.throughput == pytest.approx([100.0 * 2.0 ** (0.01 / (0.1 + 0.01))])
        assert estimate.spread == pytest.approx([(1 / 0.01 + 1 / 0.1) ** -0.5])

    def test_a_belief_without_measurements_is_the_prediction(self) -> None:
        asked = predicted(100.0, np.nan)
        estimates = updated_forecast(asked, [((), ())] * 2, noise=0.1)
        assert estimates.intervals() == asked.intervals()
        assert estimates.intervals()[1] is None

    def test_a_config_without_measurements_hides_no_other(self) -> None:
        estimates = updated_forecast(Prediction.unknown(2), [((), ()), ((200.0,), (0.0,))], noise=0.1)
        assert estimates.throughput[1] == pytest.approx(200.0)

    def test_a_prediction_is_left_as_it_was(self) -> None:
        asked = predicted(100.0)
        updated_forecast(asked, [((200.0,), (0.0,))], noise=0.1)
        assert asked.throughput == pytest.approx([100.0])


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
