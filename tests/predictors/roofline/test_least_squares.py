from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from torchx_cubicml.predictors.roofline.least_squares import least_squares

Array = NDArray[np.float64]


def _curved_valley(theta: Array) -> Array:
    """Rosenbrock's, whose least is at ones."""
    return np.concatenate([10.0 * (theta[1:] - theta[:-1] ** 2), 1.0 - theta[:-1]])


def _curve(theta: Array) -> Array:
    places = np.linspace(0.0, 4.0, 60)
    noise = 0.05 * np.random.default_rng(0).normal(size=60)
    return theta[0] * np.exp(-theta[1] * places) + theta[2] - (3.0 * np.exp(-1.3 * places) + 0.5 + noise)


def test_a_straight_line_is_found_in_one_step_or_two() -> None:
    design = np.random.default_rng(1).normal(size=(20, 3))
    truth = np.array([1.0, -2.0, 0.5])
    found = least_squares(lambda theta: design @ (theta - truth), np.zeros(3), steps=4)
    assert found == pytest.approx(truth, abs=1e-4)


def test_a_curved_valley_is_followed_to_its_end() -> None:
    assert least_squares(_curved_valley, np.array([-1.2, 1.0, 1.5]), steps=200) == pytest.approx(np.ones(3), abs=1e-3)


def test_as_low_as_scipys() -> None:
    from scipy.optimize import least_squares as theirs

    start = np.array([1.0, 0.2, 0.0])
    ours = _curve(least_squares(_curve, start, steps=30))
    best = _curve(theirs(_curve, start).x)
    assert ours @ ours == pytest.approx(best @ best, rel=1e-4)


def test_no_step_leaves_the_domain() -> None:
    def misfit(theta: Array) -> Array:
        with np.errstate(invalid="ignore"):
            return np.array([np.log(theta[0]) + 3.0, 0.1 * theta[0]])

    found = least_squares(misfit, np.array([4.0]), steps=60)
    assert np.log(found[0]) == pytest.approx(-3.0, abs=0.05)


def test_useless_steps_leave_the_start() -> None:
    assert least_squares(lambda theta: theta, np.zeros(2), steps=5).tolist() == [0.0, 0.0]
    assert least_squares(_curved_valley, np.array([5.0, 5.0]), steps=0).tolist() == [5.0, 5.0]
