"""What is read from a prediction: medians, quantiles, intervals."""

from __future__ import annotations

import math

import numpy as np
import pytest

from torchx_cubicml.predictors.base import Prediction


def test_a_quantile_is_that_of_the_log_normal_distribution() -> None:
    prediction = Prediction(logarithm=np.log([100.0, 2.0]), spread=np.array([0.5, 0.0]))
    assert prediction.throughput == pytest.approx([100.0, 2.0])
    assert prediction.quantile(0.5) == pytest.approx([100.0, 2.0])
    for q, z in ((0.1, -1.281552), (0.9, 1.281552), (0.975, 1.959964)):
        assert prediction.quantile(q) == pytest.approx([100.0 * math.exp(0.5 * z), 2.0], rel=1e-6)


def test_intervals_end_at_the_outer_deciles() -> None:
    prediction = Prediction(logarithm=np.array([math.log(100.0), np.nan]), spread=np.array([0.5, np.nan]))
    found, unknown = prediction.intervals()
    assert found == pytest.approx((100.0 * math.exp(-0.6407758), 100.0, 100.0 * math.exp(0.6407758)))
    assert unknown is None


def test_of_one_measurement_values_are_possible() -> None:
    prediction = Prediction.of_measurement(np.array([-1e4, 0.0, 1e4]), np.array([9.9, 10.0, 11.0]))
    assert prediction.spread.tolist() == [9.9, 10.0, 10.0]
    assert prediction.throughput[1] == 1.0
    assert (prediction.throughput > 0.0).all()
    assert np.isfinite(prediction.throughput).all()
    assert prediction.fits.tolist() == [1.0]


def test_nothing_known_has_no_interval() -> None:
    unknown = Prediction.unknown(3)
    assert unknown.intervals() == [None] * 3
    assert np.isnan(unknown.spread).all()
    assert unknown.fits.tolist() == [1.0]
