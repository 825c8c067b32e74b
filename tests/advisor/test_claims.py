from __future__ import annotations

import math
from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pytest

from tests.advisor.by_hand import Process, Trees, study_of
from torchx_cubicml.advisor.claims import claims_of
from torchx_cubicml.predictors.measurement_error import Gain


def normal(mean: float, spread: float) -> Gain:
    return Gain(np.ones(1), np.array([mean]), np.array([spread]))


@pytest.mark.parametrize("q", [0.1, 0.5, 0.9])
def test_quantiles_of_one_component_are_normal(q: float) -> None:
    assert math.log(normal(0.3, 0.1).quantile(q)) == pytest.approx(NormalDist(0.3, 0.1).inv_cdf(q))
    assert normal(0.3, 0.1).probability_above(NormalDist(0.3, 0.1).inv_cdf(q)) == pytest.approx(1.0 - q)


def test_a_mixture_weighs_its_components() -> None:
    claim = Gain(np.array([0.9, 0.1]), np.array([0.4, -0.4]), np.array([0.01, 0.01]))
    assert claim.probability_above(0.0) == pytest.approx(0.9)
    assert math.log(claim.quantile(0.05)) == pytest.approx(-0.4, abs=0.03)
    assert math.log(claim.quantile(0.5)) == pytest.approx(0.4, abs=0.03)


EIGHT = dict.fromkeys(range(8), 100.0)


def claim_of(
    surrogate: Trees, *, place: int = 3, noise: float = 0.05, measured: dict[int, float] = EIGHT
) -> Gain | None:
    study = study_of(surrogate, measured)
    posterior = replace(study.posterior, noise=noise)
    return claims_of(posterior, [{"place": place}], {"place": 0})[0]


def fast(place: int) -> float:
    return 120.0 if place == 3 else 100.0


@pytest.mark.parametrize(
    ("place", "noise", "spread", "expected"),
    [(3, 0.05, 0.001, 0.05 * math.sqrt(2.0)), (3, 0.05, 0.2, 0.2), (90, 0.05, 0.001, 0.05)],
    ids=["both measured once", "the surrogate doubts more", "one not measured"],
)
def test_two_single_measurements_differ_by_the_noise(place: int, noise: float, spread: float, expected: float) -> None:
    found = claim_of(Process(speeds=fast, spread=spread, slowed=frozenset({0})), place=place, noise=noise)
    assert found is not None
    assert found.spreads.tolist() == [pytest.approx(expected)]
    assert found.weights.tolist() == [1.0]


def test_the_own_config_gains_nothing_over_itself() -> None:
    found = claim_of(Process(speeds=fast), place=0)
    assert found is not None
    assert (found.quantile(0.1), found.quantile(0.9)) == (pytest.approx(1.0), pytest.approx(1.0))


def test_nothing_is_claimed_of_the_unknown() -> None:
    assert claim_of(Process(speeds=lambda place: math.nan)) is None


@pytest.mark.parametrize(
    ("expected_own", "measured_own", "least", "most"),
    [(100.0, 100.0, 0.93, 0.999), (100.0, 70.0, 0.0, 0.3), (100.0, 130.0, 0.99, 1.0)],
    ids=["as predicted", "far below", "above"],
)
def test_a_low_single_baseline_may_have_been_slowed(
    expected_own: float, measured_own: float, least: float, most: float
) -> None:
    surrogate = Process(speeds=lambda place: expected_own if place == 0 else 130.0, spread=0.03)
    found = claim_of(surrogate, measured={**EIGHT, 0: measured_own}, noise=0.03)
    assert found is not None
    assert found.weights.sum() == pytest.approx(1.0)
    assert least <= found.weights[0] <= most
    assert found.means[0] == found.means.max()


def test_a_surrogate_that_cannot_leave_out_has_no_mixture() -> None:
    found = claim_of(Trees(speeds=fast, spread=0.03))
    assert found is not None
    assert len(found.weights) == 1


def test_two_measurements_of_the_own_config_are_no_accident() -> None:
    study = study_of(Process(speeds=fast, spread=0.03), EIGHT)
    own = next(key for key, each in study.posterior.outcomes.items() if each.config == {"place": 0})
    twice = replace(study.posterior.outcomes[own], measured=(100.0, 101.0), uncertainties=(0.0, 0.0))
    posterior = replace(study.posterior, outcomes={**study.posterior.outcomes, own: twice}, noise=0.06)
    found = claims_of(posterior, [{"place": 3}], {"place": 0})[0]
    assert found is not None
    assert (len(found.weights), found.spreads[0]) == (1, pytest.approx(0.06 * math.sqrt(1.5)))


def test_configs_measured_twice_are_compared_by_their_measurements_alone() -> None:
    study = study_of(Process(speeds=lambda place: 1000.0 if place == 3 else 1.0), {0: 100.0, 3: 120.0}, again=[0, 3])
    found = claims_of(study.posterior, [{"place": 3}], {"place": 0})[0]
    assert found is not None
    assert found.quantile(0.5) == pytest.approx(1.2, rel=0.05)
