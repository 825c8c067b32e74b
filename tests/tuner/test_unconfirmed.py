"""Fastest measured config without a claim: which one it is, and the reasons that it gives."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from torchx_cubicml import Trial
from torchx_cubicml.advisor.comparison import Repeats, compare, least_confirmed
from torchx_cubicml.records.crowding import with_crowding
from torchx_cubicml.tuner.unconfirmed import unconfirmed_of

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
    trials = [*launched(OWN, 1200, 900, busy=True), *launched(BEST, 4000, 4400, busy=True, steady=False)]
    found = unconfirmed_of(OWN, [*trials, *launched(OTHER, 1300)], objective=RATE)
    assert found is not None
    assert found.seen == "Fastest seen: batch 4 -> 64: 4.04x your config."
    assert found.why == (
        "Not confirmed: a launch is known only within a factor of 5.2, as 4 of 4 launches were crowded (at worst, "
        "other processes kept 1.7 of 2 processors busy); the steps of 2 of 4 launches were not steady."
    )
    assert found.advice == "Run it again when the machine is free; these launches are kept."


@pytest.mark.parametrize(
    ("own", "best", "why"),
    [
        ((100.0,), (150.0,), "it takes at least 2 more launches of the two"),
        ((100.0, 130.0), (120.0, 125.0), "the difference is within the spread between repeats"),
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


def test_earlier_launches_count_for_configs_that_the_tune_did_not_measure() -> None:
    tune, earlier = [*launched(OWN, 100, 101), *launched(BEST, 90)], launched(BEST, 300, 300)
    assert unconfirmed_of(OWN, tune, objective=RATE, earlier=earlier) is None
    found = unconfirmed_of(OWN, tune, objective=RATE, earlier=[*earlier, *launched(OTHER, 150)])
    assert found is not None
    assert found.comparison.best.config == OTHER


def test_earlier_launches_that_are_not_compared_are_counted() -> None:
    tune, earlier = [*launched(OWN, 100), *launched(BEST, 150, 160)], launched(OWN, 90, 95)
    found = unconfirmed_of(OWN, tune, objective=RATE, earlier=earlier)
    assert found is not None
    sides = found.comparison.baseline, found.comparison.best
    assert [(len(side.throughputs), side.left_out) for side in sides] == [(1, 2), (2, 0)]


@pytest.mark.parametrize("uncertainty", [0.05, 1.0])
@pytest.mark.parametrize("repeats", [2, 3, 5])
def test_the_least_confirmed_gain_is_where_a_claim_begins(uncertainty: float, repeats: int) -> None:
    edge = math.log(least_confirmed(uncertainty, repeats))
    claims = []
    for share in (0.99, 1.01):
        sides = [
            Repeats(config={"a": side}, throughputs=(rate,) * repeats, uncertainties=(uncertainty,) * repeats)
            for side, rate in enumerate((1.0, math.exp(edge * share)))
        ]
        claims.append(compare(sides[0], sides[1], objective=RATE, noise=1e-6).claims_gain)
    assert claims == [False, True]
