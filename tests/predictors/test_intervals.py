from __future__ import annotations

import numpy as np
import pytest

from torchx_cubicml.predictors.features.columns import Columns
from torchx_cubicml.predictors.intervals import Novelty, conformal_scale, group_error, prior_variance

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


def test_the_prior_variance_shrinks_as_by_three_trials() -> None:
    assert prior_variance(0.0) == pytest.approx(0.09)
    assert prior_variance(3.0) == pytest.approx(0.045)
    assert prior_variance(6.0) == pytest.approx(0.03)


def test_a_scale_makes_four_fifths_of_the_errors_lie_inside() -> None:
    """The sixteenth and seventeenth of nineteen: 0.8 of twenty is the quantile at 16/19 of the way."""
    errors = np.arange(1.0, 20.0)
    share = 0.8 * 20 / 19
    expected = np.quantile(errors, share) / 1.2816
    for unit in (5.0, 8.0):
        assert conformal_scale(errors[::-1], np.full(19, unit)) == pytest.approx(expected / unit)
    assert conformal_scale(errors, errors) == pytest.approx(1 / 1.2816)


def test_a_scale_has_bounds_and_needs_ten_errors() -> None:
    assert conformal_scale(np.full(10, 100.0), np.ones(10)) == 5.0
    assert conformal_scale(np.full(10, 1e-9), np.ones(10)) == 0.2
    assert conformal_scale(np.full(9, 100.0), np.ones(9)) == 1.0
    assert conformal_scale(np.full(3, 2.0), np.ones(3), fewest=3) == pytest.approx(2 / 1.2816)


def test_a_new_category_adds_the_variance_of_medians() -> None:
    """Two devices whose logs differ by one and vary by nothing: medians 0 and 1, variance a quarter, one difference."""
    columns = Columns.from_rows(ROWS)
    rest = np.array([float(n % 2) for n in range(40)])
    known = Novelty.of(columns.encode(ROWS), columns, rest)
    (found,) = known.of_categories(columns.encode([{**ROWS[0], "device": "GB300"}]))
    assert found == pytest.approx((1 * 0.25 + 2 * 0.15**2) / 3)


def test_each_doubling_outside_adds_fifteen_per_cent() -> None:
    """Forty rows: six on either side are outermost, ten have each of the sizes 1, 2, 4, 8; so 1 to 8 is known."""
    known, columns = novelty(0.0)
    sizes = [0.25, 1, 8, 16, 128]
    found = known.of_numbers(columns.encode([{**ROWS[0], "world_size": size} for size in sizes]))
    assert np.sqrt(found) == pytest.approx([0.3, 0.0, 0.0, 0.15, 0.6])


def test_a_version_outside_is_a_new_category_or_number() -> None:
    known, columns = novelty(0.0)
    found = known.of_categories(columns.encode([{**ROWS[0], "release": each} for each in (23, 24, 26, 27, 60)]))
    assert found == pytest.approx([0.15**2, 0.0, 0.0, 0.15**2, 0.0])


def novelty_of(
    rows: list[dict[str, object]], rest: list[float], asked: list[dict[str, object]]
) -> tuple[list[float], list[float]]:
    """Return the variances that new categories and numbers beyond the range add."""
    columns = Columns.from_rows(rows)
    known = Novelty.of(columns.encode(rows), columns, np.array(rest))
    features = columns.encode(asked)
    return known.of_categories(features).tolist(), known.of_numbers(features).tolist()


def test_a_range_ends_before_the_outermost_rows() -> None:
    """Of sixteen rows the three smallest and the three largest do not count: 8 to 2048."""
    rows = [{"size": 2**n} for n in range(16)]
    asked = [{"size": 2**n} for n in (3, 12, 2, 14, 0)] + [{"size": 0}, {"size": -1}, {}]
    _, found = novelty_of(rows, [0.0] * 16, asked)
    assert found == pytest.approx([(0.15 * beyond) ** 2 for beyond in (0, 0, 1, 2, 3, 0, 0, 0)])


def test_doublings_of_several_numbers_add_up() -> None:
    rows = [{"size": 2 ** (n % 4), "width": 2 ** (n % 2 + 5), "zero": n, "gap": n + 1} for n in range(8)]
    del rows[3]["gap"]  # neither what is missing somewhere nor what is not positive has a range
    asked = [{"size": 32, "width": 8, "zero": 99, "gap": 99}]
    low, high = np.sort([n % 4 for n in range(8)])[[1, -2]]
    assert (low, high) == (0, 3)
    assert novelty_of(rows, [0.0] * 8, asked)[1] == pytest.approx([(0.15 * (2 + 2)) ** 2])


def test_a_number_that_hardly_varies_may_be_a_version() -> None:
    """The range is less than a doubling, and what is asked lies less than one beyond."""
    rows = [{"release": 24 + n % 3, "size": 10 * (1 + n % 2)} for n in range(9)]
    asked = [{"release": release} for release in (24, 26, 27, 23, 51, 53, 12.5, 11)] + [{"size": 21}]
    found, _ = novelty_of(rows, [0.0] * 9, asked)
    prior = 0.15**2
    assert found == pytest.approx([0, 0, prior, prior, prior, 0, prior, 0, 0])


def test_the_variance_of_a_new_category_is_shrunk_to_the_prior() -> None:
    """Three categories with medians 0, 0.3 and 0.9, without noise; a fourth occurs once and does not count."""
    rows = [{"kind": kind} for kind in "aaabbbcccd"]
    rest = [0.0] * 3 + [0.3] * 3 + [0.9] * 3 + [99.0]
    among = float(np.var([0.0, 0.3, 0.9]))
    expected = (2 * among + 2 * 0.15**2) / (2 + 2)
    asked = [{"kind": "new"}, {"kind": "a"}, {"kind": "d"}, {}]
    assert novelty_of(rows, rest, asked)[0] == pytest.approx([expected, 0.0, 0.0, expected])
    gaps = [*rows, {}, {}]
    assert novelty_of(gaps, [*rest, 0.0, 0.0], asked)[0] == [0.0] * 4  # encoded, an unknown word is a gap


def test_noise_within_categories_is_no_difference() -> None:
    rows = [{"kind": kind} for kind in "aaabbb"]
    rest = [-0.1, 0.0, 0.1, 0.2, 0.3, 0.5]
    noise = 2.2 * (0.1**2 / 3 + 0.1**2 / 3) / 2
    among = 0.15**2 - noise
    (found,), _ = novelty_of(rows, rest, [{"kind": "new"}])
    assert found == pytest.approx((among + 2 * 0.15**2) / 3)
    (same,), _ = novelty_of(rows, [-1.0, 0.0, 1.0] * 2, [{"kind": "new"}])
    assert same == pytest.approx(2 * 0.15**2 / 3)
    (single,), _ = novelty_of([{"kind": "a"}, {"kind": "b"}], [0.0, 9.0], [{"kind": "new"}])
    assert single == pytest.approx(0.15**2)


@pytest.mark.parametrize(("count", "scale"), [(9, 1.0), (10, 2.0)])
def test_a_scale_needs_ten_errors(count: int, scale: float) -> None:
    errors = np.full(count, 2.0 * 1.2816)
    assert conformal_scale(errors, np.ones(count)) == pytest.approx(scale)
    assert conformal_scale(errors, np.ones(count), fewest=5) == pytest.approx(2.0)


@pytest.mark.parametrize(("ratio", "scale"), [(0.21, 0.21), (0.19, 0.2), (4.9, 4.9), (5.1, 5.0)])
def test_a_scale_has_limits(ratio: float, scale: float) -> None:
    assert conformal_scale(np.full(20, ratio * 1.2816), np.ones(20)) == pytest.approx(scale)


def test_error_of_a_group_is_its_own_where_it_has_many_trials_and_that_of_all_where_it_has_few() -> None:
    drawn = np.abs(np.random.default_rng(0).normal(0.0, 0.3, 200))
    exact = np.zeros(200)
    assert group_error(drawn, exact, 0.1) == pytest.approx(0.3, rel=0.15)
    assert group_error(drawn[:0], exact[:0], 0.1) == pytest.approx(0.1)
    assert 0.1 < group_error(np.array([0.2]), exact[:1], 0.1) < group_error(np.full(20, 0.2), exact[:20], 0.1)
    # What a measurement says of its own noise is not the group's.
    assert group_error(np.full(20, 0.2), np.full(20, 0.2), 0.1) < group_error(np.full(20, 0.2), exact[:20], 0.1)
