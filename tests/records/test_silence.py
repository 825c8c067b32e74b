from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from torchx_cubicml.records.silence import silent_since
from torchx_cubicml.records.trial import State, Trial

START = datetime(2026, 1, 1, 10, tzinfo=UTC)
TRIAL = Trial(trial_id="a", workload={}, config={}, state=State.RUNNING, started_at=START.isoformat())


@pytest.mark.parametrize(
    ("trained_h", "silent_h", "expected"),
    [(0.0, 0.9, False), (0.0, 1.1, True), (2.0, 6.9, False), (2.0, 7.1, True), (-1.0, 0.9, False), (-1.0, 1.1, True)],
)
def test_an_event_is_overdue_after_a_multiple_of_the_time_that_was_reported(
    trained_h: float, silent_h: float, expected: bool
) -> None:
    last = START + timedelta(hours=trained_h)
    found = silent_since(TRIAL, last.isoformat(), last + timedelta(hours=silent_h))
    assert found == (last if expected else None)


@pytest.mark.parametrize("state", [state for state in State if state is not State.RUNNING], ids=str)
def test_only_a_running_trial_can_be_silent(state: State) -> None:
    attempts = replace(TRIAL, state=state)
    assert silent_since(attempts, START.isoformat(), START + timedelta(days=30)) is None


@pytest.mark.parametrize(("first", "last"), [("", START.isoformat()), (START.isoformat(), ""), ("yesterday", "today")])
def test_an_unknown_time_is_no_silence(first: str, last: str) -> None:
    assert silent_since(replace(TRIAL, started_at=first), last, START + timedelta(days=30)) is None


def test_a_clock_far_off_is_no_error() -> None:
    early, late = "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59"
    assert silent_since(replace(TRIAL, started_at=early), START.isoformat(), START + timedelta(days=1)) is None
    assert silent_since(replace(TRIAL, started_at=late), early, START) is not None
    assert silent_since(replace(TRIAL, started_at=early), late, START) is None
