"""The figures of a tune in rounds, worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from torchx_cubicml.predictors.round_table import RoundFigures, RoundTable, round_table, tunes_in_rounds
from torchx_cubicml.records.trial import State, Trial

OBJECTIVE = "tokens_per_second"


def launch(minute: int, measured: float | None, *, number: int | None = None, predicted: float | None = None) -> Trial:
    """Return a launch of a round; without a throughput it ran out of memory."""
    trial = Trial.completed(workload={"world_size": 2}, config={"batch": minute}, tokens_per_second=measured or 1.0)
    trial = replace(
        trial,
        started_at=f"2026-01-01T00:{minute:02}:00+00:00",
        suggestion={"round_number": number, "throughput": predicted} if number else None,
    )
    return trial if measured is not None else replace(trial, state=State.OUT_OF_MEMORY, measurement=None)


def test_each_round_has_its_frontier_and_its_rank_correlation() -> None:
    trials = [
        launch(0, 10.0),
        launch(1, 30.0),
        launch(2, 20.0),
        *(launch(3, 25.0, number=1, predicted=9.0), launch(4, 24.0, number=1, predicted=8.0)),
        launch(5, 22.0, number=1, predicted=7.0),
        *(launch(7, 40.0, number=2, predicted=30.0), launch(8, 50.0, number=2, predicted=20.0)),
        *(launch(9, 45.0, number=2, predicted=25.0), launch(10, None, number=2, predicted=15.0)),
        launch(11, 49.0),  # measures a config again
    ]
    assert round_table(reversed(trials), objective=OBJECTIVE) == RoundTable(
        rounds=(
            RoundFigures(number=0, launches=3, measured=3, median=20.0, best=30.0, best_so_far=30.0, tau=None),
            RoundFigures(number=1, launches=3, measured=3, median=24.0, best=25.0, best_so_far=30.0, tau=1.0, ranked=3),
            RoundFigures(
                number=2, launches=4, measured=3, median=45.0, best=50.0, best_so_far=50.0, tau=-1.0, ranked=3
            ),
        ),
        # Of 15 pairs of launches, the three within round 1 and the nine across rounds agree.
        tau=pytest.approx((12 - 3) / 15),
        ranked=6,
    )


def test_each_tune_has_its_own_rounds_and_what_ran_before_them() -> None:
    first, second = "launch-00aa", "launch-00bb"
    trials = [
        replace(launch(0, 10.0), launch_id=f"{first}-0001"),
        replace(launch(1, 30.0, number=1, predicted=9.0), launch_id=f"{first}-0002"),
        replace(launch(2, 20.0), launch_id=f"{second}-0001"),
        replace(launch(3, 40.0, number=1, predicted=9.0), launch_id=f"{second}-0002"),
    ]
    assert tunes_in_rounds(reversed(trials)) == [first, second]
    tables = [round_table(trials, objective=OBJECTIVE, tune=tune) for tune in (first, second)]
    rows = [[(each.number, each.launches, each.best_so_far) for each in table.rounds] for table in tables]
    assert rows == [[(0, 1, 10.0), (1, 1, 30.0)], [(0, 3, 30.0), (1, 1, 40.0)]]


def test_a_store_without_rounds_has_its_first_launches_alone() -> None:
    (only,) = round_table([launch(0, 10.0), launch(1, None)], objective=OBJECTIVE).rounds
    assert (only.number, only.launches, only.measured, only.best_so_far) == (0, 2, 1, 10.0)


def test_a_prediction_in_another_unit_is_no_prediction() -> None:
    per_hour = {"round_number": 1, "objective": "tokens_per_device_hour"}
    trials = [
        replace(launch(minute, measured), suggestion={**per_hour, "throughput": measured * 1800})
        for minute, measured in enumerate((10.0, 30.0, 20.0))
    ]
    taus = [round_table(trials, objective=name).tau for name in (OBJECTIVE, "tokens_per_device_hour")]
    assert taus == [None, 1.0]
    assert round_table(trials, objective="tokens_per_device_hour").rounds[0].best == 30.0 * 1800


@pytest.mark.parametrize(
    "predicted",
    ["fast", 10**400, float("nan"), -1.0, True, None],
    ids=["text", "huge", "nan", "negative", "bool", "none"],
)
def test_a_hostile_prediction_counts_for_no_correlation(predicted: object) -> None:
    trials = [
        replace(launch(minute, 10.0 + minute), suggestion={"round_number": 1, "throughput": predicted})
        for minute in range(4)
    ]
    assert round_table(trials, objective=OBJECTIVE).tau is None


def test_a_hostile_round_is_none() -> None:
    trials = [
        replace(launch(minute, 10.0), suggestion={"round_number": number, "throughput": 1.0})
        for minute, number in enumerate((1, True, "2", -1, None))
    ]
    table = round_table(trials, objective=OBJECTIVE)
    assert [(each.number, each.launches, each.tau) for each in table.rounds] == [(1, 1, None)]
