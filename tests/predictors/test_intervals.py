from __future__ import annotations

import numpy as np
import pytest

from torchx_cubicml.predictors.features.columns import Columns
from torchx_cubicml.predictors.intervals import Novelty

ROWS = [{"device": ("A100", "H100")[n % 2], "release": 24 + n % 3, "world_size": 2 ** (n % 4)} for n in range(40)]


def novelty(among: float) -> tuple[Novelty, Columns]:
    columns = Columns.from_rows(ROWS)
    rest = np.array([among * (n % 2) for n in range(40)]) + np.random.default_rng(0).normal(0.0, 0.01, 40)
    return Novelty.of(columns.encode(ROWS), columns, rest), columns


@pytest.mark.parametrize("row", ROWS[:4], ids=str)
def test_seen_values_are_not_new(row: dict[str, object]) -> None:
    known, columns = novelty(0.0)
    features = columns.encode([row])
    assert known.of_categories(features).tolist() == [0.0]


@pytest.mark.parametrize("device", ["GB300", "abacus"])
def test_a_new_category_is_off_by_as_much_as_known_ones_differ(device: str) -> None:
    variances = []
    for among in (0.0, 1.0):
        known, columns = novelty(among)
        variances.append(known.of_categories(columns.encode([{**ROWS[0], "device": device}]))[0])
    assert 0.0 < variances[0] < 0.05 < variances[1]


def test_a_version_beyond_those_seen_counts_as_a_new_category() -> None:
    known, columns = novelty(0.0)
    later, larger = ({**ROWS[0], "release": 27}, {**ROWS[0], "world_size": 64})
    assert (known.of_categories(columns.encode([later, larger])) > 0.0).tolist() == [True, False]


def test_numbers_beyond_the_range_add_with_each_doubling() -> None:
    known, columns = novelty(0.0)
    near, far = known.of_numbers(columns.encode([{**ROWS[0], "world_size": size} for size in (16, 128)]))
    assert 0.0 < near < far
