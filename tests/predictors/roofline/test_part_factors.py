from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchx_cubicml.predictors.roofline.part_factors import part_factors


def test_factors_are_found_where_totals_tell_the_parts_apart() -> None:
    rng = np.random.default_rng(0)
    parts = rng.uniform(0.1, 10.0, size=(60, 3))
    planted = np.array([1.4, 0.8, 1.0])
    assert part_factors(parts, parts @ planted) == pytest.approx(planted, rel=0.05)


def test_one_odd_total_moves_the_factors_little() -> None:
    parts = np.random.default_rng(1).uniform(0.1, 10.0, size=(40, 2))
    totals = parts @ np.array([1.2, 1.2])
    totals[7] *= 50.0
    assert part_factors(parts, totals) == pytest.approx([1.2, 1.2], rel=0.1)


@given(factor=st.floats(0.3, 3.0), n=st.integers(0, 6), seed=st.integers(0, 1000))
def test_factors_are_positive_and_bring_the_total_nearer(factor: float, n: int, seed: int) -> None:
    parts = np.random.default_rng(seed).uniform(0.0, 5.0, size=(n, 4)) + 1e-3
    totals = factor * parts.sum(axis=1)
    factors = part_factors(parts, totals)
    assert (factors > 0.0).all()
    before, after = (np.abs(np.log(parts @ each / totals)).sum() for each in (np.ones(4), factors))
    assert after <= before + 1e-9
    if n == 0:
        assert factors.tolist() == [1.0] * 4
