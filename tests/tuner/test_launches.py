"""How the end of a launch is read from what its scheduler and its training left."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from torchx_cubicml.advisor import Suggestion
from torchx_cubicml.errors import LaunchError
from torchx_cubicml.records.event import Event, EventKind
from torchx_cubicml.records.trial import State
from torchx_cubicml.tuner.journal import Journal, NoteKind
from torchx_cubicml.tuner.launch_ends import LaunchEnds
from torchx_cubicml.tuner.launch_state import Cancellation, FinishedLaunch, PendingLaunch
from torchx_cubicml.tuner.launches import PendingLaunches
from torchx_cubicml.tuner.scheduler.job_state import JobEnd, JobPhase, JobState
from torchx_cubicml.tuner.sharing import Sharing
from torchx_cubicml.tuner.state import TuneState
from torchx_cubicml.tuner.trials import TrialLog

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from torchx_cubicml.tuner import Prepared

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
LAUNCH, HANDLE = "launch-1-0001", "sim://torchx/7"
PLAN = Suggestion(config={"a": 1}, throughput=None, low=None, high=None, probability_to_fit=1.0, reason="", n_trials=0)
KILLED = "slurmstepd: error: Detected 1 oom_kill event"


@pytest.mark.parametrize(
    ("end", "of_training", "of_scheduler", "cancelled", "expected"),
    [
        (JobEnd.OUT_OF_MEMORY, "", "", True, True),
        (JobEnd.FAILED, KILLED, "", False, True),
        (JobEnd.FAILED, "", KILLED, False, True),
        (JobEnd.CANCELLED, "", KILLED, False, True),
        (JobEnd.FAILED, "", "", False, False),
        (JobEnd.TIMED_OUT, KILLED, KILLED, False, False),
        (JobEnd.CANCELLED, KILLED, KILLED, True, False),  # by the tuner
    ],
)
def test_out_of_memory_is_in_the_end_or_either_log(
    end: JobEnd, of_training: str, of_scheduler: str, cancelled: bool, expected: bool
) -> None:
    jobs = SimpleNamespace(scheduler_lines=lambda _: (of_scheduler,))
    pending = PendingLaunch(launch_id="l", number=1, purpose="search", config={}, submitted_at=NOON)
    pending.cancellation = Cancellation(state=State.TIMEOUT, reason="", since=NOON) if cancelled else None
    ends = LaunchEnds(SimpleNamespace(), SimpleNamespace(), jobs, SimpleNamespace())
    state = JobState(phase=JobPhase.ENDED, end=end)
    assert ends._is_out_of_memory(pending, state, (of_training,)) is expected


class Clock:
    def __init__(self) -> None:
        self.passed_s = 0.0

    def now(self) -> datetime:
        return NOON + timedelta(seconds=self.passed_s)

    def sleep(self, seconds: float) -> None:
        self.passed_s += seconds


QUEUED, RUNNING = JobState(phase=JobPhase.QUEUED, why="Priority"), JobState(phase=JobPhase.RUNNING)
UNKNOWN = JobState(phase=JobPhase.UNKNOWN, why="no answer")


def over(end: JobEnd = JobEnd.SUCCEEDED) -> JobState:
    return JobState(phase=JobPhase.ENDED, end=end)


class Jobs:
    """A scheduler of one job, whose states are given by the second from which they hold."""

    image = ""

    def __init__(self, clock: Clock, states: Mapping[float, JobState], *, is_local: bool = True) -> None:
        self.clock, self.states, self.is_local = clock, states, is_local
        self.cancelled: list[float] = []
        self.looked: list[float] = []
        self.found: dict[str, str] = {}
        self.refusal = ""
        self.interrupts = False
        self.accepts_cancel = True
        self.is_blind = self.is_silent = False
        self.submits_s = 0.0
        self.ends_submission: str | None = None  # launch whose submission ends as its job is searched for

    def can_look(self, handle: str) -> bool:
        return bool(handle) and not self.is_blind

    def look(self, handle: str) -> JobState:
        assert handle == HANDLE
        self.looked.append(self.clock.passed_s)
        return self.states[max(second for second in self.states if second <= self.clock.passed_s)]

    def cancel(self, handle: str) -> bool:
        assert handle == HANDLE
        self.cancelled.append(self.clock.passed_s)
        return self.accepts_cancel

    def submit(self, app: object, *, launch_id: str, options: Mapping[str, str]) -> str:
        del app, launch_id
        if self.interrupts:
            raise KeyboardInterrupt
        if self.refusal:
            raise LaunchError(self.refusal)
        return HANDLE

    @property
    def finds(self) -> bool:
        return not self.is_silent

    def submitting(self, launch_ids: Collection[str]) -> bool:
        return bool(launch_ids) and self.clock.passed_s < self.submits_s

    def find(self, launch_ids: Collection[str]) -> Mapping[str, str]:
        if self.is_silent:
            return {}
        if self.ends_submission is not None:
            self.submits_s, made, self.ends_submission = 0.0, self.ends_submission, None
            found, self.found = self.found, {**self.found, made: HANDLE}
            return {name: found[name] for name in launch_ids if name in found}
        return {name: self.found[name] for name in launch_ids if name in self.found}

    def last_lines(self, handle: str, role: str) -> tuple[str, ...]:
        return (f"{handle} {role}",)

    def scheduler_lines(self, handle: str) -> tuple[str, ...]:
        del handle
        return ()


class Watched:
    """One launch that was submitted at noon, and is polled each second."""

    def __init__(
        self, prepared: Prepared, states: Mapping[float, JobState], *, handle: str = HANDLE, is_local: bool = True
    ) -> None:
        self.prepared = prepared
        self.clock = Clock()
        self.jobs = Jobs(self.clock, states, is_local=is_local)
        self.journal = Journal(prepared.store_url)
        log = TrialLog(prepared.store_url)
        self.tune_state = TuneState("tune-1", log, self.journal, self.clock)
        self.launches = PendingLaunches(prepared, self.tune_state, self.jobs, self.clock)
        self.tune_state.plan(LAUNCH, PLAN, prepared.workload)
        log.refresh()
        self.pending = PendingLaunch(
            launch_id=LAUNCH, number=1, purpose="search", config=PLAN.config, submitted_at=NOON, handle=handle
        )
        self.launches.adopt(self.pending)

    def tells(self, kind: EventKind, second: float, state: State | None = None) -> None:
        """Let the training record an event."""
        time = (NOON + timedelta(seconds=second)).isoformat()
        self.tune_state.trial_log.append(
            Event(kind=kind, trial_id="t", launch_id=LAUNCH, writer="rank0", time=time, state=state)
        )
        self.tune_state.trial_log.refresh()

    def at(self, second: float) -> list[FinishedLaunch]:
        """Poll until a second has come, that one included."""
        finished: list[FinishedLaunch] = []
        while self.clock.passed_s <= second:
            finished += self.launches.watch()
            self.clock.sleep(1.0)
        return finished

    def end(self, within_s: float = 2000.0) -> tuple[float, FinishedLaunch]:
        """Poll until the launch is over, and return the second."""
        while self.clock.passed_s <= within_s:
            for finished in self.launches.watch():
                assert self.launches.under_way == []
                return self.clock.passed_s, finished
            self.clock.sleep(1.0)
        raise AssertionError("the launch does not end")

    def cost(self) -> tuple[float, float]:
        """Return the seconds of run and of queue that are written to the journal."""
        (note,) = [each for each in self.journal.read() if each.kind is NoteKind.SETTLED]
        return note.number("run_s"), note.number("queue_s")


@pytest.fixture
def short(prepared: Prepared) -> Prepared:
    """Of launches that may run for 100 s and queue for 50 s."""
    request = replace(prepared.request, trial_timeout_s=100.0, queue_timeout_s=50.0, scratch="")
    return replace(prepared, request=request)


class TestWatch:
    def test_a_job_that_is_unknown_for_two_minutes_is_lost(self, prepared: Prepared) -> None:
        watched = Watched(prepared, {0: UNKNOWN})
        second, finished = watched.end()
        assert watched.jobs.cancelled == [121.0]
        assert len(watched.jobs.looked) == 122  # and not once it is given up
        assert second == 126.0  # a job that may yet record its start is awaited for five seconds
        assert finished.trial.state is State.INFRASTRUCTURE
        assert finished.trial.reason == "the job was lost (its scheduler does not know it: no answer)"
        assert finished.last_lines == (f"{HANDLE} quick",)

    def test_a_job_that_is_known_now_and_then_is_not_lost(self, prepared: Prepared) -> None:
        watched = Watched(prepared, {0: UNKNOWN, 120: RUNNING, 121: UNKNOWN, 240: QUEUED, 241: UNKNOWN})
        assert watched.at(361) == []
        assert watched.jobs.cancelled == []
        watched.at(362)
        assert watched.jobs.cancelled == [362.0]
        assert watched.pending.given_up

    def test_too_long_in_the_queue_cancels_again_and_again(self, short: Prepared) -> None:
        watched = Watched(short, {0: QUEUED})
        second, finished = watched.end()
        assert watched.jobs.cancelled == [51.0 + 30 * each for each in range(11)]
        assert second == 352.0 + 5.0  # given up five minutes after the first request
        assert finished.pending.ended is not None
        assert finished.pending.ended[0].why == "it does not end when cancelled"
        assert finished.trial.state is State.INFRASTRUCTURE
        assert finished.trial.reason == (
            "cancelled after 50 s in the queue (--queue-timeout) (Priority); it does not end when cancelled"
        )
        assert watched.cost() == (0.0, 357.0)

    def test_a_queue_without_a_reason_is_told_without_one(self, short: Prepared) -> None:
        watched = Watched(short, {0: JobState(phase=JobPhase.QUEUED), 60: over(JobEnd.CANCELLED)})
        second, finished = watched.end()
        assert second == 65.0
        assert finished.trial.reason == "cancelled after 50 s in the queue (--queue-timeout)"

    def test_the_deadline_of_a_run_begins_as_it_runs(self, short: Prepared) -> None:
        watched = Watched(short, {0: QUEUED, 50: RUNNING, 160: over(JobEnd.CANCELLED)})
        watched.at(149)
        watched.tells(EventKind.STARTED, 50)
        assert watched.launches.running_s() == [100.0]  # the clock shows 150 s
        assert watched.jobs.cancelled == []
        second, finished = watched.end()
        assert watched.jobs.cancelled == [151.0]
        assert second == 160.0 + 15.0  # the end of a training that has begun is awaited longer
        assert (finished.trial.state, finished.trial.reason) == (
            State.TIMEOUT,
            "cancelled after running for 100 s (--trial-timeout)",
        )
        assert watched.cost() == (125.0, 50.0)

    @pytest.mark.parametrize(
        ("state", "waits_s", "kept"),
        [
            (State.COMPLETED, 0.0, State.COMPLETED),
            (State.USER_ERROR, 0.0, State.USER_ERROR),
            (State.INFRASTRUCTURE, 2.0, State.INFRASTRUCTURE),
            (State.UNKNOWN, 2.0, State.UNKNOWN),
            (None, 15.0, State.UNKNOWN),
        ],
    )
    def test_the_end_that_a_training_records_is_awaited(
        self, prepared: Prepared, state: State | None, waits_s: float, kept: State
    ) -> None:
        watched = Watched(prepared, {0: QUEUED, 10: RUNNING, 40: over()})
        watched.tells(EventKind.STARTED, 11)
        if state is not None:
            watched.tells(EventKind.ENDED, 39, state)
        second, finished = watched.end()
        assert (second, finished.trial.state) == (40.0 + waits_s, kept)
        assert watched.cost() == (30.0 + waits_s, 10.0)

    def test_a_cancelled_training_is_not_awaited_longer(self, prepared: Prepared) -> None:
        watched = Watched(prepared, {0: RUNNING, 20: over(JobEnd.CANCELLED)})
        watched.tells(EventKind.STARTED, 0)
        watched.at(10)
        watched.launches.cancel(watched.pending, State.STOPPED_EARLY, "too slow")
        watched.launches.cancel(watched.pending, State.TIMEOUT, "the first reason counts")
        assert watched.jobs.cancelled == [11.0]
        watched.tells(EventKind.ENDED, 19, State.INFRASTRUCTURE)
        second, finished = watched.end()
        assert (second, finished.trial.state, finished.trial.reason) == (20.0, State.STOPPED_EARLY, "too slow")

    def test_an_end_that_was_seen_is_not_cancelled(self, prepared: Prepared) -> None:
        watched = Watched(prepared, {0: RUNNING, 5: over()})
        watched.tells(EventKind.STARTED, 0)
        watched.at(10)
        watched.launches.cancel(watched.pending, State.STOPPED_EARLY, "too slow")
        assert watched.pending.cancellation is None
        assert watched.end()[1].trial.state is State.UNKNOWN

    def test_a_requeued_job_waits_and_runs_once_more(self, short: Prepared) -> None:
        watched = Watched(short, {0: RUNNING, 30: over(JobEnd.PREEMPTED), 31: QUEUED, 71: RUNNING, 121: over()})
        watched.tells(EventKind.STARTED, 0)
        watched.tells(EventKind.ENDED, 29, State.INFRASTRUCTURE)
        watched.at(60)
        assert watched.pending.ended is None
        assert watched.launches.running_s() == [29.0]  # its own end counts, not the time at which it was seen
        watched.at(100)
        assert watched.launches.running_s() == [29.0 + 30.0]
        second, finished = watched.end()
        assert second == 123.0
        assert finished.trial.state is State.INFRASTRUCTURE
        assert watched.jobs.cancelled == []
        assert watched.cost() == (29.0 + 52.0, 42.0)

    def test_a_job_that_lost_its_node_cannot_start_again(self, prepared: Prepared) -> None:
        watched = Watched(prepared, {0: RUNNING, 20: over(JobEnd.NODE_FAILED)})
        watched.tells(EventKind.STARTED, 0)
        second, finished = watched.end()
        assert finished.trial.state is State.INFRASTRUCTURE
        assert watched.jobs.cancelled == [second]

    def test_a_job_without_a_handle_is_as_its_trial(self, prepared: Prepared) -> None:
        watched = Watched(prepared, {}, handle="")
        watched.at(10)
        watched.tells(EventKind.STARTED, 10)
        watched.at(20)
        assert watched.launches.running_s() == [10.0]
        watched.launches.cancel_all("the tune ended")
        assert watched.jobs.looked == watched.jobs.cancelled == []
        assert watched.launches.under_way == []
        (trial,) = watched.tune_state.own_trials()
        assert (trial.state, trial.reason) == (State.STOPPED_EARLY, "the tune ended")

    def test_a_job_that_nobody_can_look_at_is_as_its_trial(self, short: Prepared) -> None:
        watched = Watched(short, {})
        watched.jobs.is_blind = True
        watched.tells(EventKind.STARTED, 0)
        assert watched.at(99) == []
        assert watched.jobs.looked == watched.jobs.cancelled == []
        watched.tells(EventKind.ENDED, 99, State.COMPLETED)
        assert watched.end()[1].trial.state is State.COMPLETED

    def test_a_local_job_that_never_starts_is_given_up(self, short: Prepared) -> None:
        watched = Watched(short, {})
        watched.jobs.is_blind = True
        second, finished = watched.end()
        assert watched.jobs.cancelled[0] == 101.0  # it has no queue to wait in
        assert second == 402.0 + 5.0
        assert finished.trial.state is State.TIMEOUT

    def test_a_run_that_nobody_saw_counts_by_its_own_clock(self, prepared: Prepared) -> None:
        watched = Watched(prepared, {0: over()})
        watched.clock.sleep(100.0)
        watched.tells(EventKind.STARTED, 20)
        watched.tells(EventKind.ENDED, 80, State.COMPLETED)
        assert watched.end()[1].trial.state is State.COMPLETED
        assert watched.cost() == (60.0, 20.0)

    def test_all_are_cancelled_but_those_that_have_ended(self, prepared: Prepared) -> None:
        for ended, cancelled in ((False, [6.0]), (True, [])):
            watched = Watched(prepared, {0: QUEUED, 3: over() if ended else RUNNING})
            watched.at(5)
            watched.launches.cancel_all("interrupted by the user")
            assert watched.jobs.cancelled == cancelled
            assert watched.launches.under_way == []

    def test_its_own_cancellation_stays_the_reason(self, prepared: Prepared) -> None:
        watched = Watched(prepared, {0: RUNNING})
        watched.at(5)
        watched.launches.cancel(watched.pending, State.TIMEOUT, "too late")
        watched.launches.cancel_all("interrupted by the user")
        (trial,) = watched.tune_state.own_trials()
        assert (trial.state, trial.reason) == (State.TIMEOUT, "too late")

    @pytest.mark.parametrize("own", [True, False], ids=["own folder", "folder of the user"])
    def test_scratch_of_a_launch_is_removed_unless_own(self, short: Prepared, tmp_path: Path, own: bool) -> None:
        asked = replace(short.request, scratch=str(tmp_path) if own else "")
        watched = Watched(replace(short, request=asked, scratch=str(tmp_path)), {0: over()})
        for name in (LAUNCH, "launch-of-another"):
            (tmp_path / name).mkdir()
        watched.end()
        assert (tmp_path / LAUNCH).exists() is own
        assert (tmp_path / "launch-of-another").exists()

    def test_a_poll_is_due_after_the_interval_of_its_age(self, prepared: Prepared) -> None:
        watched = Watched(prepared, {0: QUEUED, 90: RUNNING}, is_local=False)
        assert PendingLaunches(prepared, watched.tune_state, watched.jobs, watched.clock).next_poll_s() == 0.0
        watched.at(100)
        assert watched.jobs.looked[:3] == [0.0, 1.0, 2.0]
        assert 100.0 - watched.jobs.looked[-1] <= 3.0  # three per cent of a hundred seconds
        assert len(watched.jobs.looked) < 70
        watched.clock.passed_s = 290.0
        list(watched.launches.watch())
        ran_s = (watched.clock.now() - watched.pending.since).total_seconds()
        assert watched.launches.next_poll_s() == pytest.approx(0.03 * ran_s)
        watched.launches.cancel(watched.pending, State.TIMEOUT, "too late")
        assert watched.launches.next_poll_s() == 0.0
        list(watched.launches.watch())
        assert watched.launches.next_poll_s() == pytest.approx(0.2)


class TestLaunch:
    def test_a_refused_launch_is_over_and_cost_nothing(self, prepared: Prepared) -> None:
        watched = Watched(prepared, {0: QUEUED})
        watched.jobs.refusal = "no quota"
        finished = watched.launches.launch(replace(PLAN, config=prepared.current), "baseline")
        assert isinstance(finished, FinishedLaunch)
        assert finished.refused
        assert (finished.trial.state, finished.trial.reason) == (State.INFRASTRUCTURE, "no quota")
        assert (finished.pending.number, finished.pending.purpose) == (2, "baseline")
        assert watched.launches.under_way == [watched.pending]
        assert watched.tune_state.open_launches() == [LAUNCH]
        assert watched.tune_state.spent(1).launches == 1
        (settled,) = [note for note in Journal(prepared.store_url).read() if note.kind is NoteKind.SETTLED]
        assert settled.facts["end"] == "refused"

    def test_a_job_whose_acceptance_came_too_late_is_found(self, prepared: Prepared) -> None:
        watched = Watched(prepared, {0: QUEUED})
        watched.jobs.refusal, watched.jobs.found = "no quota", {"launch-1-0002": "sim://torchx/late"}
        pending = watched.launches.launch(replace(PLAN, config=prepared.current), "baseline")
        assert isinstance(pending, PendingLaunch)
        assert pending.handle == "sim://torchx/late"
        assert watched.tune_state.handle("launch-1-0002") == "sim://torchx/late"
        assert watched.tune_state.purpose("launch-1-0002") == "baseline"
        assert watched.launches.under_way == [watched.pending, pending]

    def test_a_launch_in_flight_knows_its_suggestion(self, prepared: Prepared) -> None:
        watched = Watched(prepared, {0: QUEUED})
        watched.clock.sleep(7.0)
        hope = replace(PLAN, config=prepared.current, throughput=5.0)
        pending = watched.launches.launch(hope, "search")
        assert isinstance(pending, PendingLaunch)
        assert (pending.launch_id, pending.number, pending.config) == ("launch-1-0002", 2, prepared.current)
        assert (pending.submitted_at, pending.suggestion, pending.handle) == (watched.clock.now(), hope, HANDLE)

    def test_a_launch_that_never_had_a_job_is_dropped(self, prepared: Prepared) -> None:
        watched = Watched(prepared, {0: QUEUED})
        watched.launches.drop(LAUNCH, "never made")
        (trial,) = watched.tune_state.own_trials()
        assert (trial.state, trial.reason) == (State.STOPPED_EARLY, "never made")
        assert watched.tune_state.spent(1).launches == 0
        assert watched.cost() == (0.0, 0.0)


class TestDoubt:
    """Launches of which the scheduler does not tell whether they have a job."""

    @staticmethod
    def launched(prepared: Prepared, *, refusal: str = "no route", is_silent: bool = True) -> Watched:
        watched = Watched(prepared, {0: RUNNING})
        watched.jobs.refusal, watched.jobs.is_silent = refusal, is_silent
        watched.launches.sharing = Sharing(at_a_time=3)
        pending = watched.launches.launch(replace(PLAN, config=prepared.current), "search")
        assert watched.launches.in_doubt == [pending]
        assert not watched.launches.has_room
        return watched

    def test_silence_refuses_no_launch(self, prepared: Prepared) -> None:
        watched = self.launched(prepared)
        assert watched.at(300) == []
        assert len(watched.launches.in_doubt) == 1

    def test_a_job_is_found_once_its_scheduler_answers(self, prepared: Prepared) -> None:
        watched = self.launched(prepared)
        assert watched.at(100) == []
        watched.jobs.is_silent, watched.jobs.found = False, {"launch-1-0002": HANDLE}
        assert watched.at(103) == []
        assert watched.tune_state.handle("launch-1-0002") == HANDLE
        assert watched.launches.in_doubt == []
        assert [pending.state for pending in watched.launches.under_way] == [RUNNING, RUNNING]

    @pytest.mark.parametrize(("answers_at", "over_at"), [(5, 60), (100, 101)], ids=["soon", "late"])
    def test_an_answer_closes_a_launch_that_has_no_job(self, prepared: Prepared, answers_at: int, over_at: int) -> None:
        watched = self.launched(prepared)
        assert watched.at(answers_at) == []
        watched.jobs.is_silent = False
        assert watched.at(over_at - 1) == []
        (finished,) = watched.at(over_at)
        assert (finished.refused, finished.trial.state, finished.trial.reason) == (
            True,
            State.INFRASTRUCTURE,
            "no route",
        )
        assert watched.launches.has_room

    @pytest.mark.parametrize(
        "refusal",
        [
            "sbatch: error: Socket timed out",
            "504 Gateway Time-out",
            "502 Bad Gateway",
            "('Connection aborted.', RemoteDisconnected('Remote end closed connection without response'))",
            "[Errno 104] Connection reset by peer",
        ],
    )
    def test_a_request_that_was_cut_off_may_yet_be_served(self, prepared: Prepared, refusal: str) -> None:
        watched = self.launched(prepared, refusal=refusal, is_silent=False)
        assert watched.at(30) == []
        watched.jobs.found = {"launch-1-0002": HANDLE}
        assert watched.at(31) == []
        assert watched.tune_state.handle("launch-1-0002") == HANDLE

    def test_a_launch_in_doubt_past_its_deadline_tells_so(self, short: Prepared) -> None:
        watched = self.launched(short)
        (finished,) = watched.at(361)
        assert finished.trial.state is State.INFRASTRUCTURE
        assert finished.trial.reason == (
            "cancelled after 50 s in the queue (--queue-timeout) (no route); it may have a job"
        )

    @pytest.mark.parametrize(("second", "stays_open"), [(30, True), (60, False)])
    def test_ctrl_c_leaves_a_request_open_that_may_yet_be_served(
        self, prepared: Prepared, second: int, stays_open: bool
    ) -> None:
        watched = self.launched(prepared, refusal="sbatch: error: Socket timed out", is_silent=False)
        watched.clock.sleep(second)
        watched.launches.cancel_all("interrupted by the user")
        assert watched.tune_state.open_launches() == (["launch-1-0002"] if stays_open else [])

    def test_a_training_that_reports_is_in_no_doubt(self, prepared: Prepared) -> None:
        watched = self.launched(prepared)
        trial_id, time = "u", watched.clock.now().isoformat()
        watched.tune_state.trial_log.append(
            Event(kind=EventKind.STARTED, trial_id=trial_id, launch_id="launch-1-0002", writer="rank0", time=time)
        )
        watched.tune_state.trial_log.refresh()
        assert watched.at(1) == []
        assert watched.launches.in_doubt == []

    def test_a_scheduler_that_never_answered_ends_the_tune(self, prepared: Prepared) -> None:
        watched = Watched(prepared, {}, handle="")
        watched.jobs.refusal, watched.jobs.is_silent = "no route", True
        watched.launches.launch(replace(PLAN, config=prepared.current), "baseline")
        assert watched.at(59) == []
        with pytest.raises(LaunchError, match="local_cwd does not answer, and may have the job of launch 2: no route"):
            watched.at(60)
        watched.launches.cancel_all("the tune ended")
        assert "launch-1-0002" in watched.tune_state.open_launches()


class TestInterruption:
    """Ctrl-C while a job is submitted."""

    @staticmethod
    def interrupted(prepared: Prepared) -> Watched:
        watched = Watched(prepared, {0: RUNNING})
        watched.jobs.interrupts = True
        with pytest.raises(KeyboardInterrupt):
            watched.launches.launch(replace(PLAN, config=prepared.current), "search")
        watched.pending.ended = over(), NOON
        return watched

    def test_a_job_that_was_made_is_cancelled(self, prepared: Prepared) -> None:
        watched = self.interrupted(prepared)
        watched.jobs.found = {"launch-1-0002": HANDLE}
        watched.launches.cancel_all("interrupted by the user")
        assert watched.jobs.cancelled == [0.0]
        assert watched.tune_state.open_launches() == []

    def test_a_job_that_its_scheduler_did_not_cancel_stays_open(self, prepared: Prepared) -> None:
        watched = Watched(prepared, {0: RUNNING})
        watched.jobs.accepts_cancel = False
        assert watched.launches.cancel_all("interrupted by the user") == [watched.pending]
        assert watched.jobs.cancelled == [0.0]
        assert watched.tune_state.open_launches() == [LAUNCH]

    def test_known_jobs_are_cancelled_before_others_are_looked_for(self, prepared: Prepared) -> None:
        watched = self.interrupted(prepared)
        watched.pending.ended, watched.jobs.submits_s = None, 4.0
        watched.launches.cancel_all("interrupted by the user")
        assert watched.jobs.cancelled == [0.0]
        assert watched.clock.passed_s == 4.0

    def test_a_job_made_between_two_questions_is_found(self, prepared: Prepared) -> None:
        watched = self.interrupted(prepared)
        watched.jobs.submits_s, watched.jobs.ends_submission = 99.0, "launch-1-0002"  # just after the first search
        watched.launches.cancel_all("interrupted by the user")
        assert watched.jobs.cancelled == [1.0]

    def test_a_submission_under_way_is_waited_for(self, prepared: Prepared) -> None:
        watched = self.interrupted(prepared)
        watched.jobs.submits_s = 4.0
        watched.launches.cancel_all("interrupted by the user")
        assert watched.clock.passed_s == 4.0
        assert watched.tune_state.open_launches() == []

    @pytest.mark.parametrize(("is_silent", "submits_s", "waited_s"), [(True, 0.0, 0.0), (False, 99.0, 10.0)])
    def test_a_launch_of_which_nothing_is_known_stays_open(
        self, prepared: Prepared, is_silent: bool, submits_s: float, waited_s: float
    ) -> None:
        watched = self.interrupted(prepared)
        watched.jobs.is_silent, watched.jobs.submits_s = is_silent, submits_s
        watched.launches.cancel_all("interrupted by the user")
        assert watched.clock.passed_s == waited_s
        assert watched.tune_state.open_launches() == ["launch-1-0002"]
