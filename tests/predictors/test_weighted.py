from __future__ import annotations

import numpy as np
import pytest

from torchx_cubicml.predictors.weighted import weighted_quantile


@pytest.mark.parametrize("q", [0.0, 0.1, 0.5, 0.8, 1.0])
def test_with_equal_weights_it_is_the_usual_quantile(q: float) -> None:
    values = np.random.default_rng(0).normal(size=11)
    assert weighted_quantile(values, np.full(11, 3.0), q) == pytest.approx(np.quantile(values, q))


def test_a_heavier_value_takes_a_larger_part() -> None:
    """Midpoints of 1, 2, 5 with weights 1, 1, 6 lie at 0.5, 1.5 and 5: the half is 2.25 of 4.5 above the first."""
    values, weights = np.array([5.0, 1.0, 2.0]), np.array([6.0, 1.0, 1.0])
    assert weighted_quantile(values, weights, 0.5) == pytest.approx(2.0 + 3.0 * 1.25 / 3.5)
    assert weighted_quantile(values, weights, 0.0) == 1.0
    assert weighted_quantile(values, weights, 1.0) == 5.0
    assert weighted_quantile(np.array([7.0]), np.array([2.0]), 0.3) == 7.0
