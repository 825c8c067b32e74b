from __future__ import annotations

import pytest

from torchx_cubicml.records.trial import State, Trial
from torchx_cubicml.tuner.launch_state import Cancellation, PendingLaunch, end_state_of
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
