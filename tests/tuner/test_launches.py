"""How the end of a launch is read from what its scheduler and its training left."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from torchx_cubicml.records.trial import State
from torchx_cubicml.tuner.launch_state import Cancellation, PendingLaunch
from torchx_cubicml.tuner.launches import PendingLaunches
from torchx_cubicml.tuner.scheduler.job_state import JobEnd, JobPhase, JobState

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
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
    launches = PendingLaunches(SimpleNamespace(), SimpleNamespace(), jobs, SimpleNamespace())
    state = JobState(phase=JobPhase.ENDED, end=end)
    assert launches._is_out_of_memory(pending, state, (of_training,)) is expected
