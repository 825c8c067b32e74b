from __future__ import annotations

import math

import numpy as np
import pytest

from torchx_cubicml.errors import RecordError
from torchx_cubicml.tuner.comparison import Repeats, compare

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


def test_a_gain_inside_the_spread_is_not_claimed() -> None:
    found = compare(repeats(100, 110, 90), repeats(103, 112, 95), objective=OBJECTIVE, noise=0.08)
    assert not found.claims_gain
    assert "no gain is claimed" in str(found)


def test_the_interval_narrows_with_repeats() -> None:
    few = compare(repeats(100, 100), repeats(110, 110), objective=OBJECTIVE, noise=0.05)
    many = compare(repeats(*[100] * 8), repeats(*[110] * 8), objective=OBJECTIVE, noise=0.05)
    assert math.log(few.gain_high / few.gain_low) > 2 * math.log(many.gain_high / many.gain_low)


def test_what_spreads_wider_than_was_believed_counts_as_it_spreads() -> None:
    calm = compare(repeats(100, 101, 99), repeats(120, 121, 119), objective=OBJECTIVE, noise=0.02)
    wild = compare(repeats(60, 100, 160), repeats(80, 120, 180), objective=OBJECTIVE, noise=0.02)
    assert calm.claims_gain
    assert not wild.claims_gain


def test_what_the_runs_doubt_of_themselves_is_a_floor_of_the_error() -> None:
    sides = (100, 100, 100), (110, 110, 110)
    sure, unsure = (
        compare(*(repeats(*side, doubt=doubt) for side in sides), objective=OBJECTIVE, noise=0.01)
        for doubt in (0.0, 0.1)
    )
    assert sure.claims_gain
    assert not unsure.claims_gain
    # Student's t of four degrees of freedom, and two means of three measurements.
    assert math.log(unsure.gain_high / unsure.gain) == pytest.approx(
        2.776 * math.hypot(0.1, 0.01) * (2 / 3) ** 0.5, 1e-3
    )


def test_each_measurement_has_its_uncertainty_or_none_has() -> None:
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
