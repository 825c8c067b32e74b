"""What a process takes over from the one before it, with a scheduler that answers as it is told to."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from torchx_cubicml.advisor import Suggestion
from torchx_cubicml.records.event import Event, EventKind
from torchx_cubicml.tuner.journal import Journal
from torchx_cubicml.tuner.resume import NEVER_MADE, adopt_all
from torchx_cubicml.tuner.state import TuneState
from torchx_cubicml.tuner.trials import TrialLog

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from torchx_cubicml.tuner.launch_state import PendingLaunch

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
FIRST, SECOND = "launch-1-0001", "launch-1-0002"
PLAN = Suggestion(config={"a": 1}, throughput=None, low=None, high=None, probability_to_fit=1.0, reason="", n_trials=0)


class Clock:
    def __init__(self) -> None:
        self.passed_s = 0.0

    def now(self) -> datetime:
        return NOON + timedelta(seconds=self.passed_s)

    def sleep(self, seconds: float) -> None:
        self.passed_s += seconds


class Jobs:
    """A scheduler: jobs are found from some second on, and a submission is under way until some second."""

    def __init__(
        self, clock: Clock, *, found_at: Mapping[str, float] | None = None, finds: bool = True, submits_s: float = 0.0
    ) -> None:
        self.clock, self.found_at, self.finds, self.submits_s = clock, found_at or {}, finds, submits_s
        self.is_local = self.is_silent = False

    def find(self, launch_ids: Collection[str]) -> Mapping[str, str]:
        known = (name for name in launch_ids if self.clock.passed_s >= self.found_at.get(name, 1e9))
        return {name: f"sim://torchx/{name}" for name in known}

    def submitting(self, launch_ids: Collection[str]) -> bool:
        return bool(launch_ids) and self.clock.passed_s < self.submits_s


class Pending:
    def __init__(self) -> None:
        self.under_way: list[PendingLaunch] = []
        self.dropped: dict[str, str] = {}

    def adopt(self, pending: PendingLaunch) -> None:
        self.under_way.append(pending)

    def drop(self, launch_id: str, reason: str) -> None:
        self.dropped[launch_id] = reason


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def tune_state(tmp_path: Path, clock: Clock) -> TuneState:
    url = str(tmp_path / "store")
    found = TuneState("tune-1", TrialLog(url), Journal(url), clock)
    for launch_id in (FIRST, SECOND):
        found.plan(launch_id, PLAN, {})
    found.trial_log.refresh()
    return found


def test_jobs_of_the_journal_are_taken_over_at_once(tune_state: TuneState, clock: Clock) -> None:
    for launch_id, purpose in ((FIRST, "baseline"), (SECOND, "")):
        tune_state.submitted(launch_id, f"sim://torchx/{launch_id}", purpose)
    pending = Pending()
    assert adopt_all(pending, tune_state, Jobs(clock), clock) == 2
    assert [
        (each.launch_id, each.number, each.purpose, each.handle, dict(each.config)) for each in pending.under_way
    ] == [
        (FIRST, 1, "baseline", f"sim://torchx/{FIRST}", {"a": 1}),
        (SECOND, 2, "search", f"sim://torchx/{SECOND}", {"a": 1}),
    ]
    assert [each.submitted_at for each in pending.under_way] == [NOON] * 2
    assert clock.passed_s == 0.0


def test_a_job_found_within_three_seconds_is_taken_over(tune_state: TuneState, clock: Clock) -> None:
    pending = Pending()
    assert adopt_all(pending, tune_state, Jobs(clock, found_at={FIRST: 2.0, SECOND: 4.0}), clock) == 1
    assert [(each.launch_id, each.handle) for each in pending.under_way] == [(FIRST, f"sim://torchx/{FIRST}")]
    assert pending.dropped == {SECOND: NEVER_MADE}
    assert clock.passed_s == 3.0


def test_a_submission_that_goes_on_is_waited_for(tune_state: TuneState, clock: Clock) -> None:
    pending = Pending()
    jobs = Jobs(clock, found_at={FIRST: 9.0, SECOND: 0.0}, submits_s=20.0)
    assert adopt_all(pending, tune_state, jobs, clock) == 2
    assert pending.dropped == {}
    assert clock.passed_s == 9.0


def test_a_job_made_between_two_questions_is_taken_over(tune_state: TuneState, clock: Clock) -> None:
    class Hasty(Jobs):
        def find(self, launch_ids: Collection[str]) -> Mapping[str, str]:
            found = super().find(launch_ids)
            if self.clock.passed_s >= 4.0:  # the submission ends just after a search
                self.found_at, self.submits_s = {FIRST: 0.0, SECOND: 0.0}, 0.0
            return found

    pending = Pending()
    assert adopt_all(pending, tune_state, Hasty(clock, submits_s=99.0), clock) == 2
    assert pending.dropped == {}


def test_nobody_submitting_is_no_reason_to_wait_less(tune_state: TuneState, clock: Clock) -> None:
    pending = Pending()
    assert adopt_all(pending, tune_state, Jobs(clock, found_at={FIRST: 1.0, SECOND: 1.0}), clock) == 2
    assert clock.passed_s == 1.0


def test_a_start_is_awaited_for_two_minutes(tune_state: TuneState, clock: Clock) -> None:
    started = Event(kind=EventKind.STARTED, trial_id="t", launch_id=SECOND, time=NOON.isoformat())
    tune_state.trial_log.append(started)
    tune_state.trial_log.refresh()
    pending = Pending()
    assert adopt_all(pending, tune_state, Jobs(clock, finds=False), clock) == 1
    (adopted,) = pending.under_way
    assert (adopted.launch_id, adopted.handle, adopted.running_since) == (SECOND, "", NOON)
    assert pending.dropped == {FIRST: NEVER_MADE}
    assert clock.passed_s == 120.0


def test_silence_closes_no_launch(tune_state: TuneState, clock: Clock) -> None:
    jobs, pending = Jobs(clock, finds=False), Pending()
    jobs.is_silent = True
    assert adopt_all(pending, tune_state, jobs, clock) == 2
    assert pending.dropped == {}
    assert [(each.launch_id, each.handle, each.doubt.reason) for each in pending.under_way if each.doubt] == [
        (FIRST, "", NEVER_MADE),
        (SECOND, "", NEVER_MADE),
    ]
    assert clock.passed_s == 3.0


def test_a_local_job_is_asked_for_by_its_launch(tune_state: TuneState, clock: Clock) -> None:
    for launch_id in (FIRST, SECOND):
        tune_state.submitted(launch_id, f"local_cwd://torchx/{launch_id}", "search")
    jobs = Jobs(clock, found_at={FIRST: 0.0})
    jobs.is_local = True
    pending = Pending()
    adopt_all(pending, tune_state, jobs, clock)
    assert [each.handle for each in pending.under_way] == [f"sim://torchx/{FIRST}", f"local_cwd://adopted/{SECOND}"]
