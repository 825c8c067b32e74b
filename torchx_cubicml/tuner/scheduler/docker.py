"""Job states from the Docker daemon: exit codes, kills for memory, and jobs that outlived the process that made them.

TorchX reports a job without containers as succeeded, and every failure alike. A launch is found by its contract in the
environment of its containers: TorchX sets their labels itself.
"""

from __future__ import annotations

from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from torchx_cubicml.errors import ContractError
from torchx_cubicml.records.contract import CONTRACT_VARIABLE, decode_contract
from torchx_cubicml.records.iso_time import parse_time
from torchx_cubicml.tuner.scheduler.job_state import JobEnd, JobPhase, JobState, no_answer, one_line

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

_APP_ID = "torchx.pytorch.org/app-id"  # of a container; TorchX sets these three
_ROLE = "torchx.pytorch.org/role-name"
_REPLICA = "torchx.pytorch.org/replica-id"
_TIMEOUT_S = 30
_GRACE_S = 10
_STARTS_WITHIN = timedelta(seconds=60)  # else the process that made the container died before it started it
_RUNNING_STATES = frozenset({"running", "paused"})
_QUEUED_STATES = frozenset({"created", "restarting"})
_OVER_STATES = frozenset({"exited", "dead"})
# The most specific end counts for a job of several containers.
_ENDS = (JobEnd.OUT_OF_MEMORY, JobEnd.FAILED, JobEnd.UNWATCHED, JobEnd.SUCCEEDED)


class DockerQuery:
    """Query of the Docker daemon that ``DOCKER_HOST`` names, as for TorchX. See ``SchedulerQuery``."""

    def look(self, app_id: str) -> JobState | None:
        """Inspect the job's containers."""
        with suppress(Exception):
            return state_of(_containers(f"{_APP_ID}={app_id}"), now=datetime.now(UTC))
        return no_answer("the Docker daemon does not answer")

    def find(self, launch_ids: Collection[str]) -> Mapping[str, str] | None:
        """Search the environment of each container that TorchX made, except those that Docker could not start."""
        with suppress(Exception):
            launches = {
                launch_of(container): container["Config"]["Labels"][_APP_ID]
                for container in _containers(_APP_ID)
                if not _is_refused(container["State"])
            }
            return {launch_id: app_id for launch_id, app_id in launches.items() if launch_id in launch_ids}
        return None

    def submitting(self, launch_ids: Collection[str]) -> bool:
        """Return false: a killed process leaves no submission behind."""
        del launch_ids
        return False

    def cancel(self, app_id: str) -> bool:
        """Send SIGTERM to all containers at once, and SIGKILL to those that do not end; TorchX stops them in turn."""
        with suppress(Exception), _daemon() as daemon:
            names = [each["Id"] for each in daemon.containers(filters={"label": f"{_APP_ID}={app_id}"})]
            for name in names:
                with suppress(Exception):  # it has ended
                    daemon.kill(name, "SIGTERM")
            stopped = [_stop(daemon, name) for name in names]
            return all(stopped)
        return False

    def lines(self, app_id: str, role: str, *, count: int) -> tuple[str, ...]:
        """Return the last lines that a role's first replica wrote to stderr; empty if they cannot be read."""
        labels = [f"{_APP_ID}={app_id}", f"{_ROLE}={role}", f"{_REPLICA}=0"]
        with suppress(Exception), _daemon() as daemon:
            (found,) = daemon.containers(all=True, filters={"label": labels})
            log = daemon.logs(found["Id"], stdout=False, stderr=True, tail=count)
            return tuple(log.decode(errors="replace").splitlines())[-count:]  # \r ends a line too
        return ()


def state_of(containers: Iterable[Mapping[str, Any]], *, now: datetime) -> JobState | None:
    """Combine what Docker tells of a job's containers into the job's state; ``None`` if it has none.

    >>> over = {"Status": "exited", "ExitCode": 1, "OOMKilled": True, "Error": ""}
    >>> str(state_of([{"State": over}], now=datetime.now(UTC)).end)
    'ran out of memory'
    """
    states = [_state_of_one(container, now) for container in containers]
    for phase in (JobPhase.RUNNING, JobPhase.QUEUED):
        if any(state.phase is phase for state in states):
            return JobState(phase=phase)
    for end in _ENDS:
        found = next((state for state in states if state.end is end), None)
        if found is not None:
            return found
    return None


def launch_of(container: Mapping[str, Any]) -> str:
    """Return the launch id in a container's environment; empty if it has none."""
    name = f"{CONTRACT_VARIABLE}="
    values = (item.removeprefix(name) for item in container["Config"]["Env"] or () if item.startswith(name))
    try:
        return next((decode_contract(value).launch_id for value in values), "")
    except ContractError:
        return ""


def _state_of_one(container: Mapping[str, Any], now: datetime) -> JobState:
    state = container["State"]
    status = state["Status"]
    if status in _RUNNING_STATES:
        return JobState(phase=JobPhase.RUNNING)
    if status in _QUEUED_STATES and not _is_refused(state):
        created = parse_time(container["Created"])
        if status == "created" and created is not None and now - created > _STARTS_WITHIN:
            return JobState(phase=JobPhase.ENDED, end=JobEnd.UNWATCHED, why="its container was never started")
        return JobState(phase=JobPhase.QUEUED)
    if status in _OVER_STATES or _is_refused(state):
        end, why = _end_of(state)
        return JobState(phase=JobPhase.ENDED, end=end, why=one_line(why))
    return JobState(phase=JobPhase.UNKNOWN, why=status)


def _end_of(state: Mapping[str, Any]) -> tuple[JobEnd, str]:
    """Return the end of a container and its cause; a job that goes on without a process killed for memory ends well."""
    code, error = state["ExitCode"], state["Error"]
    if state["OOMKilled"] and code:
        return JobEnd.OUT_OF_MEMORY, "OOMKilled"
    if code or error:
        return JobEnd.FAILED, f"exit code {code}{f': {error}' if error else ''}"
    return JobEnd.SUCCEEDED, ""


def _is_refused(state: Mapping[str, Any]) -> bool:
    """Return whether Docker made a container and could not start it, for which TorchX's submission fails."""
    return bool(state["Status"] == "created" and state["Error"])


def _containers(label: str) -> list[Mapping[str, Any]]:
    """Inspect all containers of a label, except those that are removed meanwhile."""
    from docker.errors import NotFound

    inspected = []
    with _daemon() as daemon:
        for each in daemon.containers(all=True, filters={"label": label}):
            with suppress(NotFound):
                inspected.append(daemon.inspect_container(each["Id"]))
    return inspected


def _stop(daemon: Any, name: str) -> bool:
    """Stop a container, and return whether the daemon accepted it; one that is removed has stopped."""
    from docker.errors import NotFound

    try:
        with suppress(NotFound):
            daemon.stop(name, timeout=_GRACE_S)
    except Exception:  # noqa: BLE001 - no method of a query may raise
        return False
    return True


def _daemon() -> closing[Any]:
    import docker

    return closing(docker.from_env(timeout=_TIMEOUT_S).api)
