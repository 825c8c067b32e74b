"""Job states from Ray's job server: causes of ends that TorchX leaves out, and jobs by their launch.

TorchX names a job after its app, so the app's name bears the launch id. TorchX's app id is ``ADDRESS-SUBMISSION_ID``.
"""

from __future__ import annotations

import re
import time
from contextlib import suppress
from threading import Thread
from typing import TYPE_CHECKING

from torchx_cubicml.tuner.scheduler.job_state import JobEnd, JobPhase, JobState, no_answer, one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from typing import Any, TypeVar

    _T = TypeVar("_T")

_TIMEOUT_S = 30.0
_DRIVER_STARTS_WITHIN_S = 60.0  # else its messages are switched off, and it may have placed the training
_LONGEST_WAIT = 65536  # characters of a log; a driver that waits for room writes less
_LIVE = {"PENDING": JobPhase.QUEUED, "RUNNING": JobPhase.RUNNING}
_ENDS = {"SUCCEEDED": JobEnd.SUCCEEDED, "STOPPED": JobEnd.CANCELLED, "FAILED": JobEnd.FAILED}
# The message of a failed job ends with its log. Lines of the training do not begin so: Ray puts its process first.
_ERROR = r"^(?:ray\.exceptions\.\w+|Unexpected error occurred): "
_CAUSES = (
    (re.compile(rf"{_ERROR}(.*?killed due to the node running low on memory)", re.MULTILINE), JobEnd.OUT_OF_MEMORY),
    (re.compile(rf"{_ERROR}(.*?its node has died)", re.MULTILINE), JobEnd.NODE_FAILED),
    (re.compile(r"^TimeoutError: (Placement group creation timed out)", re.MULTILINE), JobEnd.NO_ROOM),
)
_WAITS, _PLACED = "Waiting for minimum placement group", "Successfully created placement groups"  # TorchX's driver
_EXIT_CODE = re.compile(r"exec_module failed with return code (-?\d+)")  # of the training, in TorchX's driver
_LOG = re.compile(r",? last available logs.*", re.DOTALL)
_OF_TRAINING = re.compile(r"^(?:\x1b\[\d+m)?\(CommandActor pid=[^)]*\)(?:\x1b\[0m)? ?", re.MULTILINE)


class RayQuery:
    """Query of Ray's job server through Ray's own client. See ``SchedulerQuery``.

    Args:
        address: host and port of the server, as in ``dashboard_address``; ``RAY_ADDRESS`` precedes it, as in TorchX.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._placed: set[str] = set()  # jobs that no longer wait for room
        self._running_since: dict[str, float] = {}  # for Ray, by a clock that only goes forward

    def look(self, app_id: str) -> JobState | None:
        """Return the state of a job with the message of its end; one that waits for room is queued.

        Ray calls a job running once TorchX's driver runs, which then waits 100 s at most for room for the training.
        """
        address, submission_id = _parts(app_id)
        job = _ask(address, lambda client: client.get_job_info(submission_id))
        if job is None:  # unknown, or a server that does not answer
            return no_answer("Ray's job server does not answer") if self.find(()) is None else None
        state = state_of(str(job.status), job.message or "")
        if state.phase is not JobPhase.RUNNING or submission_id in self._placed:
            return state
        log = _ask(address, lambda client: client.get_job_logs(submission_id))
        return state if log is None else self._state_by_log(submission_id, log)

    def _state_by_log(self, submission_id: str, log: str) -> JobState:
        """Return the state of a job whose driver runs: queued until its log shows that the training is placed."""
        running_s = time.monotonic() - self._running_since.setdefault(submission_id, time.monotonic())
        if _PLACED in log or len(log) > _LONGEST_WAIT or _OF_TRAINING.search(log):
            self._placed.add(submission_id)
        elif _WAITS in log:
            return JobState(phase=JobPhase.QUEUED, why="waits for room on the cluster")
        elif running_s < _DRIVER_STARTS_WITHIN_S:
            return JobState(phase=JobPhase.QUEUED, why="its driver starts")
        return JobState(phase=JobPhase.RUNNING)

    def find(self, launch_ids: Collection[str]) -> Mapping[str, str] | None:
        """Search all jobs that the cluster has had since it started."""
        jobs = _ask(self._address, lambda client: client.list_jobs())
        if jobs is None:
            return None
        names = [str(job.submission_id) for job in jobs if job.submission_id]
        return {
            launch_id: f"{self._address}-{name}"
            for launch_id in launch_ids
            for name in names
            if f"{launch_id}-" in name
        }

    def submitting(self, launch_ids: Collection[str]) -> bool:
        """Return false: a killed process leaves no submission behind."""
        del launch_ids
        return False

    def cancel(self, app_id: str) -> bool:
        """Stop the job; one that has ended stays as it is."""
        address, submission_id = _parts(app_id)
        return bool(_ask(address, lambda client: client.stop_job(submission_id)))

    def lines(self, app_id: str) -> tuple[str, ...]:
        """Return the lines that the training wrote; those of TorchX's driver if it wrote none."""
        address, submission_id = _parts(app_id)
        lines = (_ask(address, lambda client: client.get_job_logs(submission_id)) or "").splitlines()
        found = [(match, line) for line in lines if (match := _OF_TRAINING.match(line))]
        return tuple(line[match.end() :] for match, line in found) or tuple(lines)


def state_of(status: str, message: str) -> JobState:
    """Return the state of a job from Ray's own status and message.

    >>> str(state_of("FAILED", "Unexpected error occurred: 2 were killed due to the node running low on memory").end)
    'ran out of memory'
    """
    why = one_line(_LOG.sub("", message))
    if status in _LIVE:
        return JobState(phase=_LIVE[status], why=why if status == "PENDING" else "")
    if status not in _ENDS:
        return JobState(phase=JobPhase.UNKNOWN, why=status)
    if status != "FAILED":
        return JobState(phase=JobPhase.ENDED, end=_ENDS[status], why="" if status == "SUCCEEDED" else why)
    for pattern, end in _CAUSES:
        if cause := pattern.search(message):
            return JobState(phase=JobPhase.ENDED, end=end, why=one_line(cause[1]))
    code = _EXIT_CODE.search(message)
    return JobState(phase=JobPhase.ENDED, end=JobEnd.FAILED, why=f"exit code {code[1]}" if code else why)


def _parts(app_id: str) -> tuple[str, str]:
    """Return the address and the submission id in TorchX's app id; the address has no - after its port."""
    port = re.search(r":\d+-", app_id)
    if port is None:
        address, _, submission_id = app_id.partition("-")
        return address, submission_id
    return app_id[: port.end() - 1], app_id[port.end() :]


def _ask(address: str, question: Callable[[Any], _T]) -> _T | None:
    """Return the answer of the job server at an address; ``None`` without one in time."""
    answers: list[_T] = []

    def ask() -> None:
        with suppress(Exception):  # a client of another release, or a server out of reach, must not end a tune
            from ray.job_submission import JobSubmissionClient

            answers.append(question(JobSubmissionClient(f"http://{address}")))

    thread = Thread(target=ask, name="torchx-cubicml-ray", daemon=True)  # Ray's client has no timeout
    thread.start()
    thread.join(_TIMEOUT_S)
    return answers[0] if answers else None
