from __future__ import annotations

from datetime import timedelta

import pytest

from torchx_cubicml.records.trial import State, Trial
from torchx_cubicml.tuner.launch_state import Cancellation, PendingLaunch, end_state_of, state_by_trial
from torchx_cubicml.tuner.polling import SystemClock
from torchx_cubicml.tuner.scheduler.job_state import JobEnd, JobPhase, JobState

NOW = SystemClock().now()


def verdict(
    end: JobEnd, state: State, *, cancellation: State | None = None, out_of_memory: bool = False
) -> tuple[State, str] | None:
    pending = PendingLaunch(launch_id="l", number=1, purpose="search", config={}, submitted_at=NOW)
    pending.cancellation = (
        Cancellation(state=cancellation, reason="doomed", since=NOW) if cancellation is not None else None
    )
    trial = Trial(trial_id="t", workload={}, config={}, state=state)
    return end_state_of(pending, JobState(phase=JobPhase.ENDED, end=end), trial, out_of_memory=out_of_memory)


@pytest.mark.parametrize(
    ("end", "reported", "written"),
    [
        (JobEnd.SUCCEEDED, State.COMPLETED, None),
        (JobEnd.FAILED, State.USER_ERROR, None),
        (JobEnd.FAILED, State.UNKNOWN, None),
        (JobEnd.FAILED, State.RUNNING, State.UNKNOWN),
        (JobEnd.TIMED_OUT, State.RUNNING, State.TIMEOUT),
        (JobEnd.NODE_FAILED, State.RUNNING, State.INFRASTRUCTURE),
        (JobEnd.PREEMPTED, State.UNKNOWN, State.INFRASTRUCTURE),
        (JobEnd.NODE_FAILED, State.COMPLETED, None),
        (JobEnd.UNWATCHED, State.RUNNING, State.UNKNOWN),
        (JobEnd.UNWATCHED, State.PLANNED, State.INFRASTRUCTURE),  # it is launched once more
    ],
    ids=str,
)
def test_the_tuner_writes_what_the_training_could_not(end: JobEnd, reported: State, written: State | None) -> None:
    found = verdict(end, reported)
    assert (found[0] if found is not None else None) is written


@pytest.mark.parametrize("reported", [State.RUNNING, State.UNKNOWN, State.INFRASTRUCTURE, State.PLANNED])
def test_evidence_of_memory_stands_before_what_ranks_saw(reported: State) -> None:
    found = verdict(JobEnd.FAILED, reported, out_of_memory=True)
    assert found is not None
    assert found[0] is State.OUT_OF_MEMORY


def test_a_cancelled_job_has_the_state_of_its_cancellation() -> None:
    assert verdict(JobEnd.CANCELLED, State.INFRASTRUCTURE, cancellation=State.TIMEOUT) == (State.TIMEOUT, "doomed")
    assert verdict(JobEnd.CANCELLED, State.COMPLETED, cancellation=State.TIMEOUT) is None


def told(end: JobEnd | None, state: State, *, out_of_memory: bool = False, why: str = "") -> tuple[State, str] | None:
    pending = PendingLaunch(launch_id="l", number=1, purpose="search", config={}, submitted_at=NOW)
    trial = Trial(trial_id="t", workload={}, config={}, state=state)
    return end_state_of(pending, JobState(phase=JobPhase.ENDED, end=end, why=why), trial, out_of_memory=out_of_memory)


@pytest.mark.parametrize(
    ("end", "state", "out_of_memory", "words"),
    [
        (JobEnd.FAILED, State.RUNNING, True, "the scheduler ended the job: out of memory (why)"),
        (JobEnd.TIMED_OUT, State.RUNNING, False, "the scheduler's time limit ended the job (why)"),
        (JobEnd.LOST, State.RUNNING, False, "the job was lost (why)"),
        (JobEnd.CANCELLED, State.RUNNING, False, "the job was cancelled (why)"),
        (JobEnd.PREEMPTED, State.RUNNING, False, "the job was preempted (why)"),
        (JobEnd.SUCCEEDED, State.RUNNING, False, "no result: the job exited 0 without reporting"),
        (None, State.RUNNING, False, "no result: the job ended without reporting"),
        (
            JobEnd.UNWATCHED,
            State.RUNNING,
            False,
            "no result: the job ended while no tuner was running without reporting",
        ),
    ],
)
def test_the_reason_says_how_the_job_ended(end: JobEnd | None, state: State, out_of_memory: bool, words: str) -> None:
    found = told(end, state, out_of_memory=out_of_memory, why="why")
    assert found is not None
    assert found[1] == words


@pytest.mark.parametrize(("why", "detail"), [("exit status 7", " (exit status 7)"), ("FAILED", ""), ("", "")])
def test_a_failed_job_has_its_schedulers_explanation_unless_that_is_its_state(why: str, detail: str) -> None:
    found = told(JobEnd.FAILED, State.RUNNING, why=why)
    assert found == (State.UNKNOWN, f"no result: the job failed without reporting{detail}")


def test_what_ended_by_itself_is_no_victim_of_memory_or_time() -> None:
    assert told(JobEnd.FAILED, State.COMPLETED, out_of_memory=True) is None
    assert told(JobEnd.TIMED_OUT, State.USER_ERROR) is None
    assert told(JobEnd.TIMED_OUT, State.UNKNOWN) == (State.TIMEOUT, "the scheduler's time limit ended the job")


@pytest.mark.parametrize("state", [State.COMPLETED, State.OUT_OF_MEMORY], ids=str)
def test_what_ended_before_its_cancellation_stays_as_it_ended(state: State) -> None:
    assert verdict(JobEnd.CANCELLED, state, cancellation=State.TIMEOUT) is None


@pytest.mark.parametrize(
    ("state", "phase"),
    [
        (None, JobPhase.QUEUED),
        (State.PLANNED, JobPhase.QUEUED),
        (State.RUNNING, JobPhase.RUNNING),
        (State.COMPLETED, JobPhase.ENDED),
        (State.USER_ERROR, JobPhase.ENDED),
    ],
)
def test_a_job_that_nobody_can_ask_for_is_as_its_trial(state: State | None, phase: JobPhase) -> None:
    trial = None if state is None else Trial(trial_id="t", workload={}, config={}, state=state)
    found = state_by_trial(trial)
    assert found.phase is phase
    assert found.end is (JobEnd.UNWATCHED if phase is JobPhase.ENDED else None)
    without_queue = JobPhase.RUNNING if phase is JobPhase.QUEUED else phase
    assert state_by_trial(trial, can_wait=False).phase is without_queue


def test_the_time_that_a_job_ran_leaves_out_its_waits() -> None:
    pending = PendingLaunch(launch_id="l", number=1, purpose="search", config={}, submitted_at=NOW)
    later = NOW + timedelta(seconds=100)
    assert pending.ran_s(later) is None
    assert pending.since == NOW
    pending.running_since = NOW + timedelta(seconds=40)
    assert pending.ran_s(later) == 60.0
    assert pending.since == pending.running_since
    pending.running_since, pending.requeued_at, pending.ran_before_s = None, NOW + timedelta(seconds=70), 30.0
    assert pending.ran_s(later) == 30.0
    assert pending.since == pending.requeued_at
    pending.running_since = NOW + timedelta(seconds=90)
    assert pending.ran_s(later) == 40.0
