from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from itertools import zip_longest

import numpy as np
import pytest

from tests.comparisons import compare
from torchx_cubicml.advisor.comparison import Comparison, Repeats, compared, launches_lacking
from torchx_cubicml.errors import RecordError
from torchx_cubicml.records.crowding import with_crowding
from torchx_cubicml.records.measurement import Measurement
from torchx_cubicml.records.trial import State, Trial

OBJECTIVE = "tokens_per_second"


def repeats(*values: float, doubt: float = 0.0, batch: int = 1) -> Repeats:
    return Repeats(
        config={"micro_batch_size": batch}, throughputs=values, uncertainties=(doubt,) * len(values) if doubt else ()
    )


best = partial(repeats, batch=2)


def test_a_clear_gain_is_claimed_with_its_interval() -> None:
    found = compare(repeats(100, 101, 99), best(200, 198, 202), objective=OBJECTIVE)
    assert found.claims_gain
    assert found.gain_low < found.gain < found.gain_high
    assert found.gain == pytest.approx(2.0, rel=0.01)
    assert str(found).startswith("Gain 2.00x (80 % interval: ")
    per_hour = replace(found, objective="tokens_per_device_hour")
    assert str(per_hour).startswith("Gain 2.00x in tokens per device hour (80 % interval: ")


def test_a_result_of_an_older_release_keeps_its_interval() -> None:
    found = replace(compare(repeats(100, 101, 99), best(200, 198, 202), objective=OBJECTIVE), faster=None)
    assert found.claims_gain
    assert "(95 % interval: " in str(found)


def test_a_gain_inside_the_spread_is_not_claimed() -> None:
    found = compare(repeats(100, 110, 90), best(103, 112, 95), objective=OBJECTIVE)
    assert not found.claims_gain
    assert str(found).endswith("no gain is claimed: its launches and yours vary from run to run")


def test_the_less_certain_side_is_named() -> None:
    found = compare(repeats(100, 101, doubt=0.6), best(140, 141, doubt=0.1), objective=OBJECTIVE)
    assert found.doubt == "your config is known only within a factor of 2.0"
    other = compare(repeats(100, 101, doubt=0.01), best(104, 102, doubt=0.08), objective=OBJECTIVE)
    assert other.doubt == "the other config is known only to ± 9 %"


def test_launches_without_overlap_are_sure_however_uncertain_each_is() -> None:
    """Eleven launches in turn: one order in 462 has no overlap by chance."""
    own, other = (95, 104, 88, 110, 99, 91), (330, 352, 301, 377, 340)
    trials = [
        replace(
            Trial.completed(workload={}, config={"batch": place % 2}, tokens_per_second=speed),
            observed={"host_cpus": 2, "other_busy_cpus": 1.2, "idle_cpus": 0.1},
            ended_at=f"2026-01-01T{place:02}:00:00+00:00",
        )
        for place, speed in enumerate(value for pair in zip_longest(own, other) for value in pair if value)
    ]
    found = compared({"batch": 0}, {"batch": 1}, with_crowding(trials), objective=OBJECTIVE)
    assert found is not None
    assert found.claims_gain
    assert found.gain_low > 2.5


def test_the_interval_narrows_with_repeats() -> None:
    few = compare(repeats(100, 100), best(110, 110), objective=OBJECTIVE)
    many = compare(repeats(*[100] * 8), best(*[110] * 8), objective=OBJECTIVE)
    assert math.log(few.gain_high / few.gain_low) > 2 * math.log(many.gain_high / many.gain_low)


def test_repeats_tell_the_noise() -> None:
    calm = compare(repeats(100, 101, 99), best(120, 121, 119), objective=OBJECTIVE)
    wild = compare(repeats(60, 100, 160), best(80, 120, 180), objective=OBJECTIVE)
    assert calm.claims_gain
    assert not wild.claims_gain


def test_errors_within_runs_bound_the_error_below() -> None:
    sides = (100, 100, 100), (110, 110, 110)
    sure, unsure = (
        compare(repeats(*sides[0], doubt=doubt), best(*sides[1], doubt=doubt), objective=OBJECTIVE)
        for doubt in (0.0, 0.1)
    )
    assert sure.claims_gain
    assert not unsure.claims_gain
    assert math.log(unsure.gain_high / unsure.gain_low) > 1.5 * 0.1 * (2 / 3) ** 0.5


def test_uncertainties_are_given_for_all_or_none() -> None:
    with pytest.raises(RecordError, match="2 measurements have 1 uncertainties"):
        Repeats(config={}, throughputs=(1.0, 2.0), uncertainties=(0.1,))


def test_one_measurement_of_each_claims_nothing() -> None:
    found = compare(repeats(100), best(10_000), objective=OBJECTIVE)
    assert not found.claims_gain
    assert "too few" in str(found)


def test_equal_configs_are_rarely_distinguished() -> None:
    """At most 3 % are nominal; over 1,000 draws above 4.5 % once in a thousand runs."""
    rng = np.random.default_rng(0)
    draws = np.exp(rng.normal(0, 0.05, size=(1000, 6)))
    alarms = sum(compare(repeats(*row[:3]), best(*row[3:]), objective=OBJECTIVE).claims_gain for row in draws)
    assert alarms / 1000 < 0.045


def test_a_config_gains_nothing_over_itself() -> None:
    trials = [Trial.completed(workload={}, config={"batch": 1}, tokens_per_second=speed) for speed in (100.0, 101.0)]
    found = compared({"batch": 1}, {"batch": 1}, trials, objective=OBJECTIVE)
    assert found is not None
    assert (found.gain, found.gain_low, found.gain_high, found.claims_gain) == (1.0, 1.0, 1.0, False)


def test_repeats_need_a_measurement() -> None:
    with pytest.raises(RecordError, match="at least one"):
        repeats()


@pytest.mark.parametrize(
    ("faster", "counts", "claimed"),
    [(0.979, (2, 2), False), (0.981, (2, 2), True), (1.0, (1, 2), False), (1.0, (2, 1), False), (1.0, (3, 2), True)],
)
def test_a_gain_needs_two_measurements_on_each_side(faster: float, counts: tuple[int, int], claimed: bool) -> None:
    own, other = (repeats(*[100.0] * count) for count in counts)
    ends = {"gain": 1.5, "gain_low": 1.2, "gain_high": 2.0, "launches_lacking": launches_lacking(*counts)}
    found = Comparison(objective=OBJECTIVE, baseline=own, best=other, faster=faster, **ends)
    assert found.claims_gain is claimed
    if not claimed:
        assert "98 %, not 98 %" not in str(found)
        assert ("too few" in str(found)) is (min(counts) < 2)
        assert ("vary from run to run" in str(found)) is (min(counts) == 2)


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


def test_launches_on_another_device_are_no_repeats() -> None:
    """A cluster with faster devices is no gain of the config that ran there."""

    def launch(number: int, batch: int, value: float, device: str) -> Trial:
        return Trial(
            trial_id=f"t{number}",
            workload={},
            config={"batch": batch},
            state=State.COMPLETED,
            measurement=Measurement(tokens_per_second=value),
            observed={"device": device},
            started_at=f"2026-01-01T00:{number:02d}:00+00:00",
        )

    here = [launch(at, 1 + at % 2, 100.0 + at, "A100") for at in range(6)]
    faster = [launch(at, 2, 300.0 + at, "H100") for at in range(10, 14)]
    ask = partial(compared, {"batch": 1}, {"batch": 2}, objective=OBJECTIVE)
    found = ask([*faster, *here, launch(20, 1, 101.0, "A100")])
    assert found is not None
    assert not found.claims_gain
    assert found.best.throughputs == (101.0, 103.0, 105.0)
    assert ask([*here, *faster]) is None  # the own config has not run on the device of the latest
    only_there = ask([each for each in here if each.config == {"batch": 1}] + faster)
    assert only_there is not None  # the config may decide on the device
