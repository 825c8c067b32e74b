"""Accuracy of stored predictions by the number of measurements known when they were made."""

from __future__ import annotations

import pytest

from torchx_cubicml.predictors.forecast_growth import forecast_errors, growth
from torchx_cubicml.records.trial import Trial

OBJECTIVE = "tokens_per_second"


def launched(minute: int, measured: float, predicted: float | None = None, *, seconds: int = 30) -> Trial:
    start, end = (
        f"2026-01-01T{minute // 60:02d}:{minute % 60:02d}:00Z",
        f"2026-01-01T{minute // 60:02d}:{minute % 60:02d}:{seconds}Z",
    )
    trial = Trial.completed(workload={}, config={"a": minute}, tokens_per_second=measured)
    promise = {"throughput": predicted, "low": 0.9 * predicted, "high": 1.1 * predicted} if predicted else None
    return Trial(
        trial_id=f"t{minute}",
        workload={},
        config={"a": minute},
        state=trial.state,
        measurement=trial.measurement,
        suggestion=promise,
        started_at=start,
        ended_at=end,
    )


def test_a_launch_knows_the_measurements_that_had_ended_when_it_started() -> None:
    trials = [launched(0, 5.0), launched(1, 10.0, 8.0), launched(2, 10.0, 10.5), launched(3, 4.0)]
    errors = forecast_errors(trials[::-1], objective=OBJECTIVE)
    assert [each.known for each in errors] == [1, 2]
    assert [each.error for each in errors] == pytest.approx([0.25, 0.05])
    assert [each.is_inside for each in errors] == [False, True]


def test_launches_side_by_side_do_not_know_one_another() -> None:
    trials = [launched(0, 5.0), *(launched(5, 10.0, 8.0) for _ in range(3))]
    assert [each.known for each in forecast_errors(trials, objective=OBJECTIVE)] == [1, 1, 1]


def test_too_much_and_too_little_are_errors_of_one_size() -> None:
    errors = forecast_errors([launched(0, 5.0, 10.0), launched(1, 10.0, 5.0)], objective=OBJECTIVE)
    assert [each.error for each in errors] == pytest.approx([1.0, 1.0])


def test_groups_double_and_tell_error_rank_and_interval() -> None:
    known = [launched(minute, 100.0 + minute, 100.0 + minute + 30 * (-1) ** minute) for minute in range(10)]
    later = [launched(minute, 100.0 + minute, 101.0 + minute) for minute in range(10, 35)]
    first, second, third = growth(forecast_errors([*known, *later], objective=OBJECTIVE))
    assert [(each.first, each.last) for each in (first, second, third)] == [(0, 10), (11, 20), (21, 40)]
    assert [each.launches for each in (first, second, third)] == [11, 10, 14]
    assert first.error > 10 * second.error
    assert second.tau == pytest.approx(1.0)
    assert first.tau is not None
    assert first.tau < 0.9
    assert (second.inside, second.with_interval) == (10, 10)
    assert first.inside < first.with_interval == 11


def test_a_few_launches_have_no_rank_and_foreign_promises_none_at_all() -> None:
    (group,) = growth(forecast_errors([launched(0, 5.0, 4.0), launched(1, 5.0, 4.0)], objective=OBJECTIVE))
    assert group.tau is None
    trial = launched(0, 5.0)
    strange = Trial(
        trial_id="x",
        workload={},
        config={},
        state=trial.state,
        measurement=trial.measurement,
        suggestion={"throughput": 9.0, "low": "x", "high": True},
        started_at="2026-01-01T00:00:00Z",
    )
    (error,) = forecast_errors([strange], objective=OBJECTIVE)
    assert error.is_inside is None
