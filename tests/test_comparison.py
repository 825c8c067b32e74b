from __future__ import annotations

import math

import numpy as np
import pytest

from torchx_cubicml.comparison import Repeats, compare, repeats_of
from torchx_cubicml.errors import RecordError
from torchx_cubicml.trial import Trial

OBJECTIVE = "tokens_per_second"


def repeats(*values: float) -> Repeats:
    return Repeats(config={"micro_batch_size": 1}, throughputs=values)


def test_a_clear_gain_is_claimed_with_its_interval() -> None:
    found = compare(repeats(100, 101, 99), repeats(200, 198, 202), objective=OBJECTIVE, noise=0.02)
    assert found.claims_gain
    assert found.gain_low < found.gain < found.gain_high
    assert found.gain == pytest.approx(2.0, rel=0.01)
    assert str(found).startswith("gain 2.00x")


def test_a_gain_inside_the_spread_is_not_claimed() -> None:
    found = compare(repeats(100, 110, 90), repeats(103, 112, 95), objective=OBJECTIVE, noise=0.08)
    assert not found.claims_gain
    assert "no gain is claimed" in str(found)


def test_the_interval_narrows_with_repeats() -> None:
    few = compare(repeats(100), repeats(110), objective=OBJECTIVE, noise=0.05)
    many = compare(repeats(*[100] * 9), repeats(*[110] * 9), objective=OBJECTIVE, noise=0.05)
    assert math.log(few.gain_high / few.gain_low) == pytest.approx(3 * math.log(many.gain_high / many.gain_low))


def test_equal_configs_are_rarely_told_apart() -> None:
    """False-alarm rate: 2.5 % per draw by construction; over 2,000 draws under 4 % except once in 10,000 runs."""
    rng = np.random.default_rng(0)
    draws = np.exp(rng.normal(0, 0.05, size=(2000, 6)))
    alarms = sum(
        compare(repeats(*row[:3]), repeats(*row[3:]), objective=OBJECTIVE, noise=0.05).claims_gain for row in draws
    )
    assert 0.01 < alarms / 2000 < 0.04


def test_repeats_are_those_of_the_same_requested_config() -> None:
    def trial(batch: int, tokens: float) -> Trial:
        return Trial.completed(workload={}, config={"micro_batch_size": batch}, tokens_per_second=tokens)

    trials = [trial(1, 10.0), trial(2, 20.0), trial(1, 12.0)]
    found = repeats_of(trials, {"micro_batch_size": 1}, objective=OBJECTIVE)
    assert found is not None
    assert found.throughputs == (10.0, 12.0)
    assert found.middle == 11.0
    assert repeats_of(trials, {"micro_batch_size": 3}, objective=OBJECTIVE) is None
    assert repeats_of(trials, {"micro_batch_size": 1}, objective="samples_per_second") is None


def test_repeats_need_a_measurement() -> None:
    with pytest.raises(RecordError, match="at least one"):
        repeats()
