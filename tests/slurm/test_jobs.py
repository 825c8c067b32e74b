"""Single jobs on a real Slurm: how they are seen, cancelled, found again, and what is told of their ends."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from torchx_cubicml.launch.component import materialize
from torchx_cubicml.tuner.scheduler.job_state import JobEnd, JobPhase, JobState
from torchx_cubicml.tuner.scheduler.jobs import JobRunner, is_out_of_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TUNE = Path(__file__).resolve().parent.parent / "tune"


@pytest.fixture
def jobs(workspace: Path) -> Iterator[JobRunner]:
    del workspace
    with JobRunner("slurm") as runner:
        yield runner


def submit(jobs: JobRunner, launch_id: str, *words: str) -> str:
    return jobs.submit(
        materialize(f"{TUNE}/components.py:quick", ["--script", f"{TUNE}/quick.py", *words]).app, launch_id=launch_id
    )


def until(jobs: JobRunner, handle: str, reached: Callable[[JobState], bool]) -> JobState:
    state = jobs.look(handle)
    for _ in range(900):
        if reached(state):
            return state
        time.sleep(0.1)
        state = jobs.look(handle)
    raise AssertionError(f"{handle} stays {state}")


def has_ended(state: JobState) -> bool:
    return state.phase is JobPhase.ENDED


def runs(state: JobState) -> bool:
    return state.phase is JobPhase.RUNNING


def control(*words: str) -> None:
    subprocess.run(["scontrol", *words], check=True, timeout=30)


def test_a_job_is_seen_to_its_end_and_found_by_its_launch(jobs: JobRunner) -> None:
    handle = submit(jobs, "launch-a-0001", "--", "--seconds", "0.1")
    assert until(jobs, handle, has_ended).end is JobEnd.SUCCEEDED
    assert jobs.find(["launch-a-0001", "launch-a-0002"]) == {"launch-a-0001": handle}
    assert not jobs.submitting(["launch-a-0001"])


def test_a_cancelled_job_is_reported_whatever_torchx_makes_of_it(jobs: JobRunner) -> None:
    handle = submit(jobs, "launch-c-0001", "--replicas", "2", "--", "--seconds", "100")
    until(jobs, handle, runs)
    assert jobs.find(["launch-c-0001"]) == {"launch-c-0001": handle}
    jobs.cancel(handle)
    assert until(jobs, handle, has_ended).end is JobEnd.CANCELLED


def test_a_job_that_can_never_start_waits(jobs: JobRunner) -> None:
    handle = submit(jobs, "launch-p-0001", "--replicas", "3", "--memMB", "15000", "--", "--seconds", "1")
    waits = until(jobs, handle, lambda state: state.phase is JobPhase.QUEUED and bool(state.why))
    assert waits.end is None
    jobs.cancel(handle)
    assert until(jobs, handle, has_ended).end is JobEnd.CANCELLED


def test_a_job_killed_for_its_memory_leaves_slurms_evidence(jobs: JobRunner) -> None:
    handle = submit(jobs, "launch-m-0001", "--memMB", "100", "--", "--eat_mib", "600", "--batch_size", "2")
    state = until(jobs, handle, has_ended)
    assert state.end in {JobEnd.FAILED, JobEnd.CANCELLED, JobEnd.OUT_OF_MEMORY}
    assert state.end is JobEnd.OUT_OF_MEMORY or is_out_of_memory(jobs.scheduler_lines(handle))


def test_a_requeued_job_is_followed_to_its_second_end(jobs: JobRunner, start_again: Callable[[str], None]) -> None:
    handle = submit(jobs, "launch-r-0001", "--", "--seconds", "6")
    until(jobs, handle, runs)
    control("requeue", handle.rpartition("/")[2])
    assert until(jobs, handle, lambda state: state.phase is JobPhase.QUEUED).end is None
    number = handle.rpartition("/")[2]
    start_again(number)
    assert until(jobs, handle, has_ended).end is JobEnd.SUCCEEDED


def test_a_job_whose_node_dies_is_reported_so(jobs: JobRunner) -> None:
    handle = submit(jobs, "launch-n-0001", "--", "--seconds", "100")
    until(jobs, handle, runs)
    number = handle.rpartition("/")[2]
    control("update", f"jobid={number}", "Requeue=0")
    listed = subprocess.run(["squeue", "-h", "-j", number, "-o", "%N"], capture_output=True, text=True, check=True)
    node = listed.stdout.strip()
    control("update", f"nodename={node}", "state=down", "reason=test")
    try:
        assert until(jobs, handle, has_ended).end is JobEnd.NODE_FAILED
    finally:  # a node that lives comes back by itself
        subprocess.run(["scontrol", "update", f"nodename={node}", "state=resume"], check=False, timeout=30)
