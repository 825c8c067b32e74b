"""Jobs of one plain command, without a training, and waits for what they do."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from torchx import specs

from torchx_cubicml.tuner.scheduler.job_state import JobPhase, JobState

if TYPE_CHECKING:
    from collections.abc import Callable

    from torchx_cubicml.tuner.scheduler.jobs import JobRunner

ROLE = "role"
_LONGEST_S = 300.0
"""Seconds of a wait: only a hang takes so long."""
_EVERY_S = 0.2


def app(*command: str, image: str = "", cpu: int = 1, memory_mb: int = 200, num_replicas: int = 1) -> specs.AppDef:
    """Return an app of one command; in the container of an image it finds /usr of this machine."""
    role = specs.Role(
        name=ROLE,
        image=image,
        entrypoint=command[0],
        args=[*command[1:]],
        resource=specs.Resource(cpu=cpu, gpu=0, memMB=memory_mb),
        mounts=[specs.BindMount("/usr", "/usr", read_only=True)] if image else [],
        num_replicas=num_replicas,
    )
    return specs.AppDef(name="app", roles=[role])


def end_of(jobs: JobRunner, handle: str) -> JobState:
    """Return the state of a job once it has ended."""
    return state_when(jobs, handle, lambda state: state.phase is JobPhase.ENDED)


def state_when(jobs: JobRunner, handle: str, holds: Callable[[JobState], bool]) -> JobState:
    """Return the state of a job once something holds of it."""
    end = time.monotonic() + _LONGEST_S
    while not holds(state := jobs.look(handle)):
        assert time.monotonic() < end, state
        time.sleep(_EVERY_S)
    return state


def wait_until(holds: Callable[[], object], problem: str) -> None:
    """Wait until something holds."""
    end = time.monotonic() + _LONGEST_S
    while not holds():
        assert time.monotonic() < end, problem
        time.sleep(_EVERY_S)
