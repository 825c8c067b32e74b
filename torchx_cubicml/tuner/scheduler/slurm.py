"""Slurm's own commands: squeue knows what lives or ended minutes ago, sacct what ended, a little late.

TorchX asks sacct alone, and has no word for ``CANCELLED by 0``, for instance. A launch is found by its id, which is in
``--comment``: squeue tells it, and of ended jobs sacct tells the comment, or the line that submitted them.
"""

from __future__ import annotations

import subprocess
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from torchx_cubicml.tuner.scheduler.job_state import JobEnd, JobPhase, JobState

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

_ANSWER_S = 30.0
_FIELD = "\x1f"
_TAIL = 16 * 1024  # bytes of a log
_WAITS = frozenset(
    {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "RESV_DEL_HOLD", "SPECIAL_EXIT"}
)
_RUNS = frozenset({"RUNNING", "COMPLETING", "SUSPENDED", "RESIZING", "SIGNALING", "STAGE_OUT", "STOPPED"})
# Of a job of several components the most specific end is believed: one that fails ends the others.
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


class SlurmQuery:
    """See ``SchedulerQuery``; needs Slurm's commands on the search path, as TorchX does."""

    def look(self, app_id: str) -> JobState | None:
        """Ask squeue, then sacct."""
        live = state_of(_rows("squeue", "-h", "-t", "all", "-o", _FIELD.join(("%T", "%r")), "-j", app_id))
        if live is not None and live.phase is not JobPhase.ENDED:
            return live
        # Steps tell what killed them where the job itself has only failed.
        told = _rows("sacct", "-n", "-P", "--delimiter", _FIELD, "-j", app_id, "-o", "State,Reason,JobID")
        steps = [row for row in told if "." in row[-1]]
        ended = state_of([row[:2] for row in told if "." not in row[-1]])
        if any(row[0].startswith("OUT_OF_ME") for row in steps):
            return JobState(phase=JobPhase.ENDED, end=JobEnd.OUT_OF_MEMORY, why="OUT_OF_MEMORY")
        if live is None:
            return ended
        return ended if ended is not None and ended.phase is JobPhase.ENDED else live

    def find(self, launch_ids: Collection[str]) -> Mapping[str, str]:
        """Look through this user's jobs of squeue, then those that sacct remembers of the last days."""
        wanted = set(launch_ids)
        found = _by_launch(_rows("squeue", "-h", "--me", "-t", "all", "-o", _FIELD.join(("%k", "%A", "%i"))), wanted)
        if wanted - found.keys():
            fields = "Comment,SubmitLine,JobIDRaw,JobID"
            words = ("-X", "-n", "-P", "--delimiter", _FIELD, "-S", "now-14days", "-o", fields)
            ended = ((f"{row[0]} {row[1]}", *row[2:]) for row in _rows("sacct", *words) if len(row) == 4)
            found = {**_by_launch(ended, wanted), **found}
        return found

    def submitting(self, launch_ids: Collection[str]) -> bool:
        """Look for an sbatch that a killed process has left behind."""
        return any("sbatch" in line and any(launch_id in line for launch_id in launch_ids) for line in _command_lines())

    def cancel(self, app_id: str) -> bool:
        """Call scancel: TorchX would ask for the state first, and give up where it has no word for it."""
        return _run("scancel", app_id) is not None

    def lines(self, app_id: str, folder: str) -> tuple[str, ...]:
        """Return the last lines of a job's logs, its batch script's and each replica's, in the folder it ran in."""
        found: list[str] = []
        for file in sorted(Path(folder).glob(f"slurm-{app_id}[.-]*")):
            with suppress(OSError), file.open("rb") as log:
                log.seek(max(0, file.stat().st_size - _TAIL))
                found += log.read().decode(errors="replace").splitlines()
        return tuple(found)


def state_of(rows: Iterable[Sequence[str]]) -> JobState | None:
    """Return how a job stands from the state and reason of each of its components.

    >>> str(state_of([("RUNNING", "None"), ("PENDING", "Resources")]).phase)
    'running'
    >>> str(state_of([("COMPLETED", ""), ("CANCELLED by 0", "")]).end)
    'cancelled'
    """
    words = [(row[0].split(" ")[0].rstrip("+"), row[1] if len(row) > 1 else "") for row in rows if row and row[0]]
    if not words:
        return None
    for phase, names in ((JobPhase.RUNNING, _RUNS), (JobPhase.QUEUED, _WAITS)):
        reasons = [reason for name, reason in words if name in names]
        if reasons:
            return JobState(phase=phase, why="" if reasons[0] == "None" else reasons[0])
    told = [name for name, _ in words]
    end = next((name for name in _ENDS if name in told), None)
    if end is None:
        return JobState(phase=JobPhase.UNKNOWN, why=told[0])
    return JobState(phase=JobPhase.ENDED, end=_ENDS[end], why=end)


def _by_launch(rows: Iterable[Sequence[str]], wanted: set[str]) -> dict[str, str]:
    """Return launch id -> job number from rows of text, own number and full name of a component, such as 12+1."""
    found: dict[str, str] = {}
    for text, own, name in (row for row in rows if len(row) == 3):
        for launch_id in wanted.intersection(text.replace("=", " ").replace(";", " ").split()):
            found.setdefault(launch_id, name.split("+")[0] if "+" in name else own)
    return found


def _rows(*words: str) -> list[tuple[str, ...]]:
    return [tuple(line.split(_FIELD)) for line in (_run(*words) or "").splitlines() if line.strip()]


def _run(*words: str) -> str | None:
    """Return what a command prints; ``None`` where it fails or does not answer."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=_ANSWER_S)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout if done.returncode == 0 else None


def _command_lines() -> Iterator[str]:
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            yield file.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:  # ended meanwhile, or another user's
            continue
