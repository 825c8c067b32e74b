from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from torchx_cubicml.errors import RecordError
from torchx_cubicml.records.measurement import Measurement
from torchx_cubicml.records.trial import State, Trial
from torchx_cubicml.tuner.comparison import Comparison, Repeats, compare

OBJECTIVE = "tokens_per_second"


def repeats(*values: float, doubt: float = 0.0) -> Repeats:
    return Repeats(
        config={"micro_batch_size": 1}, throughputs=values, uncertainties=(doubt,) * len(values) if doubt else ()
    )


def test_a_clear_gain_is_claimed_with_its_interval() -> None:
    found = compare(repeats(100, 101, 99), repeats(200, 198, 202), objective=OBJECTIVE, noise=0.02)
    assert found.claims_gain
    assert found.gain_low < found.gain < found.gain_high
    assert found.gain == pytest.approx(2.0, rel=0.01)
    assert str(found).startswith("Gain 2.00x (95 % interval: ")
    per_hour = replace(found, objective="tokens_per_device_hour")
    assert str(per_hour).startswith("Gain 2.00x in tokens per device hour (95 % interval: ")


def test_a_gain_inside_the_spread_is_not_claimed() -> None:
    found = compare(repeats(100, 110, 90), repeats(103, 112, 95), objective=OBJECTIVE, noise=0.08)
    assert not found.claims_gain
    assert str(found).endswith("no gain is claimed: within the spread between repeats")


def test_equal_repeats_of_imprecise_runs_are_said_to_be_imprecise() -> None:
    found = compare(repeats(100, 101, doubt=1.0), repeats(400, 401, doubt=1.0), objective=OBJECTIVE, noise=0.02)
    assert not found.claims_gain
    assert "no gain is claimed: the measurements are too imprecise" in str(found)
    spread = compare(repeats(100, 300, doubt=0.1), repeats(400, 150, doubt=0.1), objective=OBJECTIVE, noise=0.02)
    assert "spread between repeats" in str(spread)


def test_the_interval_narrows_with_repeats() -> None:
    few = compare(repeats(100, 100), repeats(110, 110), objective=OBJECTIVE, noise=0.05)
    many = compare(repeats(*[100] * 8), repeats(*[110] * 8), objective=OBJECTIVE, noise=0.05)
    assert math.log(few.gain_high / few.gain_low) > 2 * math.log(many.gain_high / many.gain_low)


def test_a_wide_spread_replaces_the_assumed_noise() -> None:
    calm = compare(repeats(100, 101, 99), repeats(120, 121, 119), objective=OBJECTIVE, noise=0.02)
    wild = compare(repeats(60, 100, 160), repeats(80, 120, 180), objective=OBJECTIVE, noise=0.02)
    assert calm.claims_gain
    assert not wild.claims_gain


def test_errors_within_runs_bound_the_error_below() -> None:
    sides = (100, 100, 100), (110, 110, 110)
    sure, unsure = (
        compare(*(repeats(*side, doubt=doubt) for side in sides), objective=OBJECTIVE, noise=0.01)
        for doubt in (0.0, 0.1)
    )
    assert sure.claims_gain
    assert not unsure.claims_gain
    # The normal distribution, as nearly all of the error is known, and two means of three measurements.
    assert math.log(unsure.gain_high / unsure.gain) == pytest.approx(
        1.960 * math.hypot(0.1, 0.01) * (2 / 3) ** 0.5, 1e-3
    )


def test_launches_are_imprecise_only_where_their_own_errors_decide() -> None:
    """Two launches that differ by a fifth tell more doubt, by Student's t, than an error of a tenth of each."""
    alike, apart = (
        compare(repeats(100, 101, doubt=0.1), repeats(*best, doubt=0.1), objective=OBJECTIVE, noise=0.01)
        for best in ((110, 111), (100, 121))
    )
    assert (alike.is_imprecise, apart.is_imprecise) == (True, False)
    assert "too imprecise" in str(alike)
    assert "within the spread" in str(apart)


def test_uncertainties_are_given_for_all_or_none() -> None:
    with pytest.raises(RecordError, match="2 measurements have 1 uncertainties"):
        Repeats(config={}, throughputs=(1.0, 2.0), uncertainties=(0.1,))


def test_one_measurement_of_each_claims_nothing() -> None:
    found = compare(repeats(100), repeats(10_000), objective=OBJECTIVE, noise=0.001)
    assert not found.claims_gain
    assert "too few" in str(found)


def test_equal_configs_are_rarely_distinguished() -> None:
    """False alarms: 2.5 % where the noise is guessed far too low; over 4,000 draws above 3.6 % once in 100,000 runs."""
    rng = np.random.default_rng(0)
    draws = np.exp(rng.normal(0, 0.05, size=(4000, 6)))
    alarms = sum(
        compare(repeats(*row[:3]), repeats(*row[3:]), objective=OBJECTIVE, noise=0.001).claims_gain for row in draws
    )
    assert 0.015 < alarms / 4000 < 0.036


def test_repeats_need_a_measurement() -> None:
    with pytest.raises(RecordError, match="at least one"):
        repeats()


def interval(
    baseline: Repeats, best: Repeats, *, noise: float, t: float, t_of_runs: float
) -> tuple[float, float, float]:
    """Gain and ends by the textbook, from sums.

    ``t`` is the 97.5 % point of a table, and ``t_of_runs`` that for the errors that runs tell, partly known.
    """
    logs = [[math.log(value) for value in side.throughputs] for side in (baseline, best)]
    means = [sum(side) / len(side) for side in logs]
    squares = sum((value - mean) ** 2 for side, mean in zip(logs, means, strict=True) for value in side)
    freedom = len(logs[0]) + len(logs[1]) - 2
    repeated = (squares / freedom) * (1 / len(logs[0]) + 1 / len(logs[1])) if freedom else 0.0
    believed = 0.0
    for side in (baseline, best):
        for place in range(len(side.throughputs)):
            doubt = side.uncertainties[place] if side.uncertainties else 0.0
            believed += (noise**2 + doubt**2) / len(side.throughputs) ** 2
    error = max(t * math.sqrt(repeated), t_of_runs * math.sqrt(believed))
    return tuple(math.exp(means[1] - means[0] + sign * error) for sign in (0, -1, 1))


@pytest.mark.parametrize(
    ("baseline", "best", "noise", "t", "t_of_doubted"),
    [
        ((100, 104, 97), (120, 131, 118), 0.02, 2.776, 1.960),
        ((100, 104, 97), (120, 131, 118), 0.2, 2.776, 2.101),
        ((100, 140), (120, 131, 118, 160), 0.02, 2.776, 1.960),
        ((100, 140, 90, 95), (120,), 0.02, 3.182, 1.960),
        ((100,), (120,), 0.05, 12.706, 1.967),
        ((100,), (120, 150), 0.01, 12.706, 1.960),
    ],
)
@pytest.mark.parametrize("doubt", [0.0, 0.3])
def test_the_interval_is_that_of_the_textbook(
    baseline: tuple[int, ...], best: tuple[int, ...], noise: float, t: float, t_of_doubted: float, doubt: float
) -> None:
    sides = repeats(*baseline), repeats(*best, doubt=doubt)
    found = compare(*sides, objective=OBJECTIVE, noise=noise)
    expected = interval(*sides, noise=noise, t=t, t_of_runs=t_of_doubted if doubt else t)
    assert (found.gain, found.gain_low, found.gain_high) == pytest.approx(expected, rel=2e-3)


@pytest.mark.parametrize(
    ("low", "counts", "claimed"),
    [
        (1.0, (2, 2), False),
        (1.000001, (2, 2), True),
        (1.000001, (1, 2), False),
        (1.000001, (2, 1), False),
        (1.000001, (3, 2), True),
    ],
)
def test_a_gain_needs_two_measurements_on_each_side(low: float, counts: tuple[int, int], claimed: bool) -> None:
    baseline, best = (repeats(*[100.0] * count) for count in counts)
    found = Comparison(objective=OBJECTIVE, baseline=baseline, best=best, gain=1.5, gain_low=low, gain_high=2.0)
    assert found.claims_gain is claimed
    if not claimed:
        assert ("too few" in str(found)) is (min(counts) < 2)
        assert ("within the spread" in str(found)) is (min(counts) == 2)


def test_measurements_in_another_unit_are_no_repeats() -> None:
    measurements = [
        Measurement(tokens_per_second=10.0, relative_error=0.1),
        Measurement(samples_per_second=3.0, relative_error=0.2),
        Measurement(tokens_per_second=30.0, samples_per_second=5.0, relative_error=0.3),
        Measurement(tokens_per_second=12.0),
    ]
    trials = [
        Trial(trial_id="t", workload={}, config={}, state=State.COMPLETED, measurement=each) for each in measurements
    ]
    found = Repeats.of({}, trials, objective=OBJECTIVE)
    assert found.throughputs == (10.0, 30.0, 12.0)
    assert found.uncertainties[:2] == (0.1, 0.3)
    assert found.middle == 12.0
    with pytest.raises(RecordError, match="at least one"):
        Repeats.of({}, trials[1:2], objective=OBJECTIVE)
