"""What Slurm's commands print, read from commands that print it."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from torchx_cubicml.tuner.scheduler.job_state import JobEnd, JobPhase, JobState, no_answer
from torchx_cubicml.tuner.scheduler.slurm import SlurmQuery, state_of

if TYPE_CHECKING:
    from pathlib import Path

FIELD = "\x1f"


class Commands:
    """Commands of Slurm that print what they are told to, and write down their arguments."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def print(self, command: str, *rows: tuple[str, ...], status: int = 0) -> None:
        (self.folder / f"{command}.txt").write_text("".join(FIELD.join(row) + "\n" for row in rows))
        path = self.folder / command
        path.write_text(
            "#!/bin/sh\n"
            f"printf '%s\\n' \"$*\" >> {self.folder}/{command}.called\n"
            f"cat {self.folder}/{command}.txt\nexit {status}\n"
        )
        path.chmod(0o755)

    def called(self, command: str) -> list[str]:
        path = self.folder / f"{command}.called"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commands:
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/usr/bin{os.pathsep}/bin")
    found = Commands(tmp_path)
    for command in ("squeue", "sacct", "scancel"):
        found.print(command)
    return found


def phase_of(state: JobState | None) -> tuple[JobPhase, JobEnd | None] | None:
    return None if state is None else (state.phase, state.end)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([], None),
        ([("",)], None),
        ([("RUNNING", "None")], JobState(phase=JobPhase.RUNNING)),
        ([("PENDING", "Resources")], JobState(phase=JobPhase.QUEUED, why="Resources")),
        ([("PENDING", "Priority"), ("COMPLETING", "None")], JobState(phase=JobPhase.RUNNING)),
        ([("REQUEUED",)], JobState(phase=JobPhase.QUEUED)),
        ([("COMPLETED", "")], JobState(phase=JobPhase.ENDED, end=JobEnd.SUCCEEDED, why="COMPLETED")),
        ([("CANCELLED by 1000", "")], JobState(phase=JobPhase.ENDED, end=JobEnd.CANCELLED, why="CANCELLED")),
        ([("CANCELLED+", "")], JobState(phase=JobPhase.ENDED, end=JobEnd.CANCELLED, why="CANCELLED")),
        ([("CANCELLED", ""), ("FAILED", "")], JobState(phase=JobPhase.ENDED, end=JobEnd.FAILED, why="FAILED")),
        ([("FAILED", ""), ("NODE_FAIL", "")], JobState(phase=JobPhase.ENDED, end=JobEnd.NODE_FAILED, why="NODE_FAIL")),
        ([("OUT_OF_MEMORY", "")], JobState(phase=JobPhase.ENDED, end=JobEnd.OUT_OF_MEMORY, why="OUT_OF_MEMORY")),
        ([("BOOT_FAIL", "")], JobState(phase=JobPhase.ENDED, end=JobEnd.NODE_FAILED, why="BOOT_FAIL")),
        ([("PREEMPTED", "")], JobState(phase=JobPhase.ENDED, end=JobEnd.PREEMPTED, why="PREEMPTED")),
        ([("TIMEOUT", "")], JobState(phase=JobPhase.ENDED, end=JobEnd.TIMED_OUT, why="TIMEOUT")),
        ([("DEADLINE", "")], JobState(phase=JobPhase.ENDED, end=JobEnd.TIMED_OUT, why="DEADLINE")),
        ([("NEW_STATE", "")], JobState(phase=JobPhase.UNKNOWN, why="NEW_STATE")),
    ],
    ids=str,
)
def test_components_make_the_state_of_a_job(rows: list[tuple[str, ...]], expected: JobState | None) -> None:
    assert state_of(rows) == expected


class TestLook:
    def test_a_live_job_is_as_squeue_says(self, commands: Commands) -> None:
        commands.print("squeue", ("PENDING", "Priority"))
        assert SlurmQuery().look("7") == JobState(phase=JobPhase.QUEUED, why="Priority")
        assert commands.called("squeue") == [f"-h -t all -o %T{FIELD}%r -j 7"]
        assert commands.called("sacct") == []

    def test_a_job_that_squeue_forgot_is_as_sacct_says(self, commands: Commands) -> None:
        commands.print("sacct", ("TIMEOUT", "None", "7"), ("CANCELLED", "", "7.batch"))
        assert phase_of(SlurmQuery().look("7")) == (JobPhase.ENDED, JobEnd.TIMED_OUT)
        assert commands.called("sacct") == [f"-n -P --delimiter {FIELD} -j 7 -o State,Reason,JobID"]

    def test_memory_that_killed_a_step_is_the_cause_of_a_failed_job(self, commands: Commands) -> None:
        commands.print("squeue", ("FAILED", "NonZeroExitCode"))
        commands.print("sacct", ("FAILED", "None", "7"), ("OUT_OF_ME+", "", "7.0"))
        assert phase_of(SlurmQuery().look("7")) == (JobPhase.ENDED, JobEnd.OUT_OF_MEMORY)

    def test_the_end_of_a_step_is_not_that_of_its_job(self, commands: Commands) -> None:
        commands.print("sacct", ("COMPLETED", "1.5", "7"), ("FAILED", "None", "7.0"))
        assert phase_of(SlurmQuery().look("7")) == (JobPhase.ENDED, JobEnd.SUCCEEDED)

    def test_an_end_in_squeue_counts_while_sacct_lags_behind(self, commands: Commands) -> None:
        commands.print("squeue", ("COMPLETED", "None"))
        for rows in ([], [("RUNNING", "None", "7")]):
            commands.print("sacct", *rows)
            assert phase_of(SlurmQuery().look("7")) == (JobPhase.ENDED, JobEnd.SUCCEEDED)

    def test_an_end_in_sacct_is_the_more_specific(self, commands: Commands) -> None:
        commands.print("squeue", ("FAILED", "None"))
        commands.print("sacct", ("NODE_FAIL", "None", "7"))
        assert phase_of(SlurmQuery().look("7")) == (JobPhase.ENDED, JobEnd.NODE_FAILED)

    def test_commands_that_fail_are_no_answer(self, commands: Commands) -> None:
        for command in ("squeue", "sacct"):
            commands.print(command, ("RUNNING", "None", "7"), status=1)
        assert SlurmQuery().look("7") == no_answer("Slurm does not answer")

    @pytest.mark.parametrize("status", [0, 1], ids=["accounting", "no accounting"])
    def test_a_job_that_squeue_and_sacct_forgot_is_unknown(self, commands: Commands, status: int) -> None:
        commands.print("sacct", status=status)
        squeue = commands.folder / "squeue"
        squeue.write_text('#!/bin/sh\ncase "$*" in *-j*) echo "Invalid job id specified" >&2; exit 1 ;; esac\n')
        assert SlurmQuery().look("7") is None


class TestFind:
    def test_live_jobs_are_found_by_their_comment(self, commands: Commands) -> None:
        commands.print("squeue", ("my note;launch-1", "70", "70"), ("launch-2", "71", "72+1"), ("launch-9", "73", "73"))
        assert SlurmQuery().find(["launch-1", "launch-2"]) == {"launch-1": "70", "launch-2": "72"}
        assert commands.called("squeue") == [f"-h --me -t all -o %k{FIELD}%A{FIELD}%i"]
        assert commands.called("sacct") == []

    def test_ended_jobs_are_found_by_comment_or_command(self, commands: Commands) -> None:
        commands.print("squeue", ("launch-1", "70", "70"))
        commands.print(
            "sacct",
            ("launch-2", "", "71", "71"),
            ("", "sbatch --comment=launch-3 job.sh", "72", "72"),
            ("launch-1", "", "60", "60"),
            ("a row", "of three", "fields with launch-4"),
        )
        assert SlurmQuery().find(["launch-1", "launch-2", "launch-3", "launch-4"]) == {
            "launch-1": "70",
            "launch-2": "71",
            "launch-3": "72",
        }
        (words,) = commands.called("sacct")
        assert words == f"-X -n -P --delimiter {FIELD} -S now-14days -o Comment,SubmitLine,JobIDRaw,JobID"

    def test_a_slurm_that_does_not_answer_proves_nothing(self, commands: Commands) -> None:
        commands.print("squeue", ("launch-1", "70", "70"), status=1)
        commands.print("sacct", ("launch-1", "", "70", "70"))
        assert SlurmQuery().find(["launch-1"]) is None


def test_a_cancellation_is_accepted_or_not(commands: Commands) -> None:
    assert SlurmQuery().cancel("7")
    assert commands.called("scancel") == ["7"]
    commands.print("scancel", status=1)
    assert not SlurmQuery().cancel("7")


def test_the_last_lines_of_the_logs_of_a_job_and_its_replicas(tmp_path: Path) -> None:
    (tmp_path / "slurm-7.out").write_text("batch\n")
    (tmp_path / "slurm-7-role-0.err").write_text("x" * 20_000 + "\nlast\n")
    (tmp_path / "slurm-71.out").write_text("another job\n")
    lines = SlurmQuery(str(tmp_path)).scheduler_lines("7")
    assert lines[1:] == ("last", "batch")
    assert 16_000 < len(lines[0]) < 16_400  # sixteen KiB of a log are read
    assert SlurmQuery(str(tmp_path)).scheduler_lines("8") == ()


def test_a_submission_that_goes_on_is_seen_among_the_processes() -> None:
    words = [sys.executable, "-S", "-c", "import time; print(flush=True); time.sleep(600)"]
    with subprocess.Popen([*words, "sbatch", "--comment=launch-7f3a"], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert SlurmQuery().submitting(["launch-0000", "launch-7f3a"])
        assert not SlurmQuery().submitting(["launch-0000"])
        process.kill()
    assert not SlurmQuery().submitting(["launch-7f3a"])
