from __future__ import annotations

import numpy as np
import pytest

from torchx_cubicml.predictors.boosting import Trend


def line(count: int, *, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    inputs = np.random.default_rng(seed).normal(size=(count, 2))
    return inputs, 3.0 + 2.0 * inputs[:, 0] - inputs[:, 1]


def test_a_line_is_recovered() -> None:
    inputs, values = line(200)
    assert Trend.fit(inputs, values).weights == pytest.approx([3.0, 2.0, -1.0], abs=0.05)


def test_a_few_wild_values_do_not_bend_it() -> None:
    inputs, values = line(100)
    values[:5] += 50.0
    assert Trend.fit(inputs, values).weights == pytest.approx([3.0, 2.0, -1.0], abs=0.1)


def test_one_value_is_the_trend() -> None:
    trend = Trend.fit(np.zeros((1, 3)), np.array([7.0]))
    assert trend.predict(np.ones((1, 3))) == pytest.approx([7.0])


def test_leave_one_out_residuals_are_those_of_refits() -> None:
    inputs, values = line(30)
    values += np.random.default_rng(1).normal(0.0, 0.1, 30)
    refits = [
        values[index]
        - Trend.fit(np.delete(inputs, index, axis=0), np.delete(values, index)).predict(inputs[[index]])[0]
        for index in range(30)
    ]
    assert Trend.fit(inputs, values).leave_one_out == pytest.approx(refits, abs=0.03)


def test_leverage_grows_away_from_the_data_and_is_bounded() -> None:
    trend = Trend.fit(*line(20))
    near, far, very_far = trend.leverage(np.array([[0.0, 0.0], [4.0, 4.0], [1e3, 1e3]]))
    assert near < far <= very_far == 4.0
