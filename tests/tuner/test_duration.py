from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from torchx_cubicml.records.trial import State, Trial
from torchx_cubicml.tuner import Budget
from torchx_cubicml.tuner.duration import duration_text, more_work_text, rounds_text

if TYPE_CHECKING:
    from torchx_cubicml.tuner import Prepared


def ran(prepared: Prepared, seconds: int, **changes: object) -> Trial:
    done = Trial.completed(workload=prepared.workload, config=prepared.current, samples_per_second=1.0)
    times = {"started_at": "2026-01-01T00:00:00+00:00", "ended_at": f"2026-01-01T00:00:{seconds:02d}+00:00"}
    return replace(done, **{**times, **changes})


def with_request(prepared: Prepared, **changes: object) -> Prepared:
    return replace(prepared, request=replace(prepared.request, **changes))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"budget": Budget(launches=12), "parallel": 1},
            "12 launches one after another take about 3 min, besides queues",
        ),
        ({"budget": Budget(launches=12), "parallel": 5}, "12 launches 5 at a time take about 45 s, besides queues"),
        ({"budget": Budget(launches=1), "parallel": 1}, "one launch takes as long, besides queues"),
        ({"budget": Budget(hours=1.0), "parallel": 2}, "1 hours are enough for about 480 such launches"),
        ({"budget": Budget(launches=2), "parallel": 1, "step_limit": 9}, ", less with --steps 9"),
    ],
    ids=["launches", "at a time", "one", "hours", "steps"],
)
def test_own_launches_tell_the_time(prepared: Prepared, changes: dict[str, object], expected: str) -> None:
    prepared = with_request(prepared, **changes)
    text = duration_text(prepared, [ran(prepared, seconds) for seconds in (14, 15, 40)])
    assert text.startswith("an earlier launch of your config took about 15 s: ")
    assert expected in text


def test_other_launches_tell_nothing(prepared: Prepared) -> None:
    other = {**prepared.current, "width": 7}
    trials = [
        ran(prepared, 10, config=other),
        ran(prepared, 10, state=State.USER_ERROR),
        ran(prepared, 10, ended_at=""),
        ran(prepared, 0),
    ]
    assert duration_text(prepared, trials) == ""


def test_a_permitted_batch_says_how_much_more_work_it_is(prepared: Prepared) -> None:
    assert more_work_text(prepared).startswith("changes_training lets a step do up to 64 times the work of yours")
    small = tuple(replace(item, changes_training=False) for item in prepared.space.parameters)
    assert more_work_text(replace(prepared, space=replace(prepared.space, parameters=small))) == ""


@pytest.mark.parametrize(("random_launches", "left"), [(4, 1), (0, 4), (7, 0)])
def test_a_tune_in_rounds_says_what_is_left_for_them(prepared: Prepared, random_launches: int, left: int) -> None:
    method = replace(prepared.request.method, random_launches=random_launches)
    asked = with_request(prepared, budget=Budget(launches=8), parallel=2, rounds=True, method=method)
    assert rounds_text(asked) == f"{left} of 8 launches are left for rounds of 2, besides start and confirmation"
    assert rounds_text(with_request(asked, rounds=False)) == ""
    assert rounds_text(with_request(asked, budget=Budget(hours=1.0))) == ""


@pytest.mark.parametrize(("launch_id", "expected"), [("", "20 s"), ("l-1", "15 s")], ids=["by hand", "of a tune"])
def test_the_start_of_the_launcher_counts(prepared: Prepared, launch_id: str, expected: str) -> None:
    """A launch by hand is recorded from the start of its process; one of a tune from its submission."""
    trial = ran(prepared, 15, launch_id=launch_id)
    assert trial.measurement is not None
    trial = replace(trial, measurement=replace(trial.measurement, startup_s=5.0))
    assert duration_text(prepared, [trial]).startswith(f"an earlier launch of your config took about {expected}: ")
