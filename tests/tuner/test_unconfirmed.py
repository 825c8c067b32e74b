"""Fastest measured config without a claim: which one it is, and the reasons that it gives."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from torchx_cubicml import Trial
from torchx_cubicml.advisor.comparison import least_confirmed
from torchx_cubicml.predictors.measurement_error import SURE, ErrorModel, Launches
from torchx_cubicml.records.crowding import with_crowding
from torchx_cubicml.tuner.unconfirmed import crowding_forecast, unconfirmed_of

RATE = "tokens_per_second"
OWN, BEST, OTHER = ({"micro_batch_size": batch} for batch in (4, 64, 8))
BUSY = {"host_cpus": 2, "other_busy_cpus": 1.7, "idle_cpus": 0.0}


def launched(config: dict[str, int], *rates: float, busy: bool = False, steady: bool | None = None) -> list[Trial]:
    made = [Trial.completed(workload={}, config=config, tokens_per_second=rate) for rate in rates]
    trials = [replace(each, observed=BUSY) if busy else each for each in made]
    return [
        replace(each, measurement=replace(each.measurement, is_steady=steady) if each.measurement else None)
        for each in with_crowding(trials)
    ]


def test_a_crowded_one_tells_the_error_its_cause_and_the_cure() -> None:
    trials = [*launched(OWN, 1200, 900, busy=True), *launched(BEST, 1400, 1400, 1400, busy=True, steady=False)]
    found = unconfirmed_of(OWN, [*trials, *launched(OTHER, 1300)], objective=RATE)
    assert found is not None
    assert found.seen == "Fastest seen: batch 4 -> 64: 1.33x your config."
    assert found.why == (
        "Not confirmed: your config is known only within a factor of 3.2; 5 of 5 launches were crowded (at worst, "
        "other processes kept 1.7 of 2 processors busy); the steps of 3 of 5 launches were not steady."
    )
    assert found.advice == "Run it again when the machine is free; these launches are kept."


@pytest.mark.parametrize(
    ("own", "best", "why"),
    [
        ((100.0,), (150.0,), "it takes at least 2 more launches of the two"),
        ((100.0, 130.0), (120.0, 125.0), "its launches and yours vary from run to run"),
        ((100.0, 100.1), (200.0, 200.1), "it was chosen by these same measurements, and no further ones confirmed it"),
    ],
)
def test_others_tell_what_lacks(own: tuple[float, ...], best: tuple[float, ...], why: str) -> None:
    found = unconfirmed_of(OWN, [*launched(OWN, *own), *launched(BEST, *best)], objective=RATE)
    assert found is not None
    assert found.why == f"Not confirmed: {why}."
    assert found.advice == "Run it again; these launches are kept."


def test_none_is_told_without_a_faster_one() -> None:
    own = launched(OWN, 100, 101)
    assert unconfirmed_of(OWN, own, objective=RATE) is None
    assert unconfirmed_of(OWN, [*own, *launched(BEST, 90)], objective=RATE) is None
    assert unconfirmed_of(OWN, launched(BEST, 90), objective=RATE) is None


def test_earlier_launches_count_where_the_tune_found_nothing_faster() -> None:
    tune, earlier = [*launched(OWN, 100, 101), *launched(BEST, 90)], launched(OTHER, 300, 300)
    assert unconfirmed_of(OWN, tune, objective=RATE) is None
    found = unconfirmed_of(OWN, tune, objective=RATE, earlier=earlier)
    assert found is not None
    assert found.comparison.best.config == OTHER


def test_earlier_launches_are_compared_too() -> None:
    tune, earlier = [*launched(OWN, 100), *launched(BEST, 150, 160)], launched(OWN, 90, 95)
    found = unconfirmed_of(OWN, tune, objective=RATE, earlier=earlier)
    assert found is not None
    sides = found.comparison.baseline, found.comparison.best
    assert [len(side.throughputs) for side in sides] == [3, 2]


def test_repeats_and_a_free_machine_confirm_smaller_gains() -> None:
    (quiet,), (crowded,) = launched(OWN, 100.0), launched(OWN, 100.0, busy=True)
    least = partial(least_confirmed, objective=RATE)
    assert 1.0 < least(quiet, 8) < least(quiet, 2) < least(crowded, 2) < 2.0


@pytest.mark.parametrize(("busy", "repeats"), [(False, 3), (True, 2), (True, 3)])
def test_the_model_confirms_the_least_gain_in_half_of_the_histories_that_it_draws(busy: bool, repeats: int) -> None:
    (launch,) = launched(OWN, 100.0, busy=busy)
    least = math.log(least_confirmed(launch, repeats, objective=RATE))
    places, rng = np.arange(2 * repeats), np.random.default_rng(7)
    one, _ = Launches.of([launch], objective=RATE)
    planned = replace(one.rows(0 * places), time=places.astype(np.float64), config=places % 2)
    covariances = planned.covariances()

    def confirmed(gain: float) -> float:
        """Return the share of histories in which a gain is claimed, by variances drawn from the prior."""
        claims = 0
        for _ in range(200):
            errors = rng.multivariate_normal(np.zeros(len(planned)), covariances[rng.integers(len(covariances))])
            seen = replace(planned, logarithm=errors + gain * planned.config)
            claims += ErrorModel.unknown().gain(seen, 1, 0).probability_above(0.0) > SURE
        return claims / 200

    low, middle, high = map(confirmed, (0.5 * least, least, 1.5 * least))
    assert low < 0.3
    assert 0.4 < middle < 0.6
    assert high > 0.55


def test_a_tune_says_beforehand_what_launches_as_crowded_as_the_latest_can_confirm() -> None:
    quiet, crowded = launched(OWN, 100.0), launched(OWN, 90.0, busy=True)
    later = [replace(each, started_at="2026-02-01T00:00:00+00:00") for each in crowded]
    least = least_confirmed(crowded[0], 3, objective=RATE)
    assert crowding_forecast([*quiet, *later], 3, objective=RATE) == (
        "the latest launch was crowded: other processes kept 1.7 of 2 processors busy; "
        f"3 launches of each config, as crowded as this one, are likely to confirm gains above {least:.2f}x only"
    )
    assert crowding_forecast(quiet, 3, objective=RATE) == ""
    assert (
        crowding_forecast([*later, *(replace(each, started_at="2026-03") for each in quiet)], 3, objective=RATE) == ""
    )
    assert crowding_forecast(later, 3, objective="samples_per_second") == ""
