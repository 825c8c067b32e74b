"""Job states from Slurm's own commands: squeue for live and recently ended jobs, sacct for ended ones, a little late.

TorchX queries only sacct, and cannot parse ``CANCELLED by 0``, for instance. A launch is found by its id in the job's
``--comment``. squeue reports the comment; for ended jobs, sacct reports the comment or the submit line.
"""

from __future__ import annotations

import subprocess
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from torchx_cubicml.tuner.scheduler.job_state import JobEnd, JobPhase, JobState, no_answer
from torchx_cubicml.tuner.scheduler.scheduler_query import SchedulerQuery

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

_TIMEOUT_S = 30.0
_FIELD = "\x1f"
_TAIL = 16 * 1024  # bytes of a log
_OWN_JOBS = ("squeue", "-h", "--me", "-t", "all", "-o")
_QUEUED_STATES = frozenset(
    {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "RESV_DEL_HOLD", "SPECIAL_EXIT"}
)
_RUNNING_STATES = frozenset({"RUNNING", "COMPLETING", "SUSPENDED", "RESIZING", "SIGNALING", "STAGE_OUT", "STOPPED"})
# A component that fails ends the others, so the most specific end counts for a job of several components.
_ENDS = {
    "OUT_OF_MEMORY": JobEnd.OUT_OF_MEMORY,
    "NODE_FAIL": JobEnd.NODE_FAILED,
    "BOOT_FAIL": JobEnd.NODE_FAILED,
    "PREEMPTED": JobEnd.PREEMPTED,
    "TIMEOUT": JobEnd.TIMED_OUT,
    "DEADLINE": JobEnd.TIMED_OUT,
    "FAILED": JobEnd.FAILED,
    "CANCELLED": JobEnd.CANCELLED,
    "COMPLETED": JobEnd.SUCCEEDED,
}


class SlurmQuery(SchedulerQuery):
    """Query of Slurm by its commands, which must be on the search path, as for TorchX. See ``SchedulerQuery``.

    Args:
        job_dir: folder of the jobs' logs.
    """

    believed = frozenset({JobPhase.RUNNING})

    def __init__(self, job_dir: str = ".") -> None:
        self._job_dir = Path(job_dir)

    def look(self, app_id: str) -> JobState | None:
        """Query squeue, then sacct; ``None`` only while squeue answers."""
        live = state_of(_rows("squeue", "-h", "-t", "all", "-o", _FIELD.join(("%T", "%r")), "-j", app_id))
        if live is not None and live.phase is not JobPhase.ENDED:
            return live
        # Job steps contain the cause of their end where the job itself is only marked as failed.
        rows = _rows("sacct", "-n", "-P", "--delimiter", _FIELD, "-j", app_id, "-o", "State,Reason,JobID")
        steps = [row for row in rows if "." in row[-1]]
        ended = state_of([row[:2] for row in rows if "." not in row[-1]])
        if any(row[0].startswith("OUT_OF_ME") for row in steps):
            return JobState(phase=JobPhase.ENDED, end=JobEnd.OUT_OF_MEMORY, why="OUT_OF_MEMORY")
        if live is None:  # squeue fails for a job that it forgot, too
            is_silent = ended is None and _run(*_OWN_JOBS, "%A") is None
            return no_answer("Slurm does not answer") if is_silent else ended
        return ended if ended is not None and ended.phase is JobPhase.ENDED else live

    def find(self, launch_ids: Collection[str]) -> Mapping[str, str] | None:
        """Search this user's jobs in squeue, then those of the last 14 days in sacct."""
        ids = set(launch_ids)
        live = _run(*_OWN_JOBS, _FIELD.join(("%k", "%A", "%i")))
        if live is None:
            return None
        found = _by_launch(_split(live), ids)
        if ids - found.keys():
            fields = "Comment,SubmitLine,JobIDRaw,JobID"
            options = ("-X", "-n", "-P", "--delimiter", _FIELD, "-S", "now-14days", "-o", fields)
            ended = ((f"{row[0]} {row[1]}", *row[2:]) for row in _rows("sacct", *options) if len(row) == 4)
            found = {**_by_launch(ended, ids), **found}
        return found

    def submitting(self, launch_ids: Collection[str]) -> bool:
        """Return whether an sbatch process for one of the launches, left behind by a killed process, still runs."""
        return any(
            "sbatch" in line and any(launch_id in line for launch_id in launch_ids) for line in _process_command_lines()
        )

    def cancel(self, app_id: str) -> bool:
        """Call scancel: TorchX would query the state first, and fail if it cannot parse it."""
        return _run("scancel", app_id) is not None

    def marked_options(self, options: Mapping[str, object], launch_id: str) -> Mapping[str, object]:
        """Return the options with the launch id at the end of the comment."""
        return {**options, "comment": " ".join(filter(None, (str(options.get("comment") or ""), launch_id)))}

    def scheduler_lines(self, app_id: str) -> tuple[str, ...]:
        """Return the last lines of a job's logs: those of its batch script and of each replica."""
        found: list[str] = []
        for file in sorted(self._job_dir.glob(f"slurm-{app_id}[.-]*")):
            with suppress(OSError), file.open("rb") as log:
                log.seek(max(0, file.stat().st_size - _TAIL))
                found += log.read().decode(errors="replace").splitlines()
        return tuple(found)


def state_of(rows: Iterable[Sequence[str]]) -> JobState | None:
    """Combine the states and reasons of a job's components into the job's state.

    >>> str(state_of([("RUNNING", "None"), ("PENDING", "Resources")]).phase)
    'running'
    >>> str(state_of([("COMPLETED", ""), ("CANCELLED by 0", "")]).end)
    'cancelled'
    """
    words = [(row[0].split(" ")[0].rstrip("+"), row[1] if len(row) > 1 else "") for row in rows if row and row[0]]
    if not words:
        return None
    for phase, states in ((JobPhase.RUNNING, _RUNNING_STATES), (JobPhase.QUEUED, _QUEUED_STATES)):
        reasons = [reason for name, reason in words if name in states]
        if reasons:
            return JobState(phase=phase, why="" if reasons[0] == "None" else reasons[0])
    names = [name for name, _ in words]
    end = next((name for name in _ENDS if name in names), None)
    if end is None:
        return JobState(phase=JobPhase.UNKNOWN, why=names[0])
    return JobState(phase=JobPhase.ENDED, end=_ENDS[end], why=end)


def _by_launch(rows: Iterable[Sequence[str]], launch_ids: set[str]) -> dict[str, str]:
    """Return launch id -> job id from rows of text, raw job id, and job id with component, such as 12+1."""
    found: dict[str, str] = {}
    for text, raw_id, job_id in (row for row in rows if len(row) == 3):
        for launch_id in launch_ids.intersection(text.replace("=", " ").replace(";", " ").split()):
            found.setdefault(launch_id, job_id.split("+")[0] if "+" in job_id else raw_id)
    return found


def _rows(*words: str) -> list[tuple[str, ...]]:
    return _split(_run(*words) or "")


def _split(text: str) -> list[tuple[str, ...]]:
    return [tuple(line.split(_FIELD)) for line in text.splitlines() if line.strip()]


def _run(*words: str) -> str | None:
    """Run a command and return its output; ``None`` if it fails or does not answer in time."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, errors="replace", check=False, timeout=_TIMEOUT_S)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout if done.returncode == 0 else None


def _process_command_lines() -> Iterator[str]:
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            yield file.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:  # the process has ended, or belongs to another user
            continue
