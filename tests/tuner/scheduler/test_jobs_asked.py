"""What a scheduler is asked for, and how its answers are read, with a runner that writes down what it is asked."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from torchx import specs
from torchx.schedulers.api import Stream
from torchx.schedulers.local_scheduler import SignalException

from torchx_cubicml.errors import LaunchError
from torchx_cubicml.tuner.scheduler.job_state import JobEnd, JobPhase, JobState
from torchx_cubicml.tuner.scheduler.jobs import JobRunner, is_out_of_memory
from torchx_cubicml.tuner.scheduler.local import LocalQuery
from torchx_cubicml.tuner.scheduler.ray import RayQuery
from torchx_cubicml.tuner.scheduler.slurm import SlurmQuery

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class Asked:
    """A runner of TorchX with one answer."""

    def __init__(
        self,
        *,
        state: specs.AppState | BaseException | None = None,
        builds: str = "",
        log: Sequence[str] | Exception = (),
    ) -> None:
        self.asked: list[tuple[dict[str, object], str | None, str]] = []
        self.read: list[tuple[object, ...]] = []
        self.entered: list[object] = []
        self._log = log
        self.cancelled: list[str] = []
        self._state, self._builds = state, builds

    def scheduler_backends(self) -> list[str]:
        return ["slurm", "local_cwd", "lsf", "ray"]

    def scheduler_run_opts(self, scheduler: str) -> specs.runopts:
        options = specs.runopts()
        for name in ("comment", "log_dir", "partition"):
            options.add(name, type_=str, help=f"of {scheduler}")
        options.add("dashboard_address", type_=str, default="127.0.0.1:8265", help=f"of {scheduler}")
        return options

    def dryrun(
        self, app: specs.AppDef, scheduler: str, *, cfg: dict[str, object], workspace: str | None
    ) -> SimpleNamespace:
        self.asked.append((cfg, workspace, app.roles[0].image))
        if workspace:
            app.roles[0].image = self._builds
        return SimpleNamespace(request=app, scheduler=scheduler)

    def schedule(self, made: SimpleNamespace) -> str:
        if isinstance(self._state, BaseException):
            raise self._state
        return f"{made.scheduler}://torchx/{len(self.asked)}"

    def cancel(self, handle: str) -> None:
        self.cancelled.append(handle)
        raise RuntimeError("the status cannot be read")

    def _scheduler(self, scheduler: str) -> SimpleNamespace:
        del scheduler
        return SimpleNamespace(describe=self._describe, log_iter=self._log_iter)

    def _log_iter(self, *asked: object, **options: object) -> Iterator[str]:
        self.read.append((*asked, *options.values()))
        if isinstance(self._log, Exception):
            raise self._log
        return iter(self._log)

    def __enter__(self) -> None:
        self.entered.append("entered")

    def __exit__(self, *raised: object) -> None:
        self.entered.append(raised)

    def _describe(self, app_id: str) -> SimpleNamespace | None:
        if isinstance(self._state, Exception):
            raise self._state
        return None if self._state is None or app_id == "unknown" else SimpleNamespace(state=self._state, msg="why")


def app() -> specs.AppDef:
    return specs.AppDef(name="app", roles=[specs.Role(name="role", image="typed", entrypoint="python")])


@pytest.mark.parametrize(
    ("options", "comment"), [("", "launch-1"), ("comment=mine", "mine launch-1")], ids=["no comment", "own comment"]
)
def test_a_slurm_comment_has_the_launch_and_the_users_text(options: str, comment: str) -> None:
    asked = Asked()
    assert JobRunner("slurm", scheduler_args=options, runner=asked).submit(app(), launch_id="launch-1") == (
        "slurm://torchx/1"
    )
    ((cfg, _, _),) = asked.asked
    assert cfg["comment"] == comment
    assert not cfg.get("log_dir")


@pytest.mark.parametrize(
    ("scheduler", "options", "folder"),
    [
        ("local_cwd", "", "/logs/launch-1"),
        ("local_cwd", "log_dir=/own", "/own"),
        ("lsf", "", None),
    ],
)
def test_local_jobs_have_a_log_folder_each(scheduler: str, options: str, folder: str | None) -> None:
    asked = Asked()
    JobRunner(scheduler, scheduler_args=options, log_dir="/logs", runner=asked).submit(app(), launch_id="launch-1")
    ((cfg, _, _),) = asked.asked
    assert cfg.get("log_dir") == folder
    assert not cfg.get("comment")


def test_the_image_of_a_workspace_is_built_by_the_first_launch() -> None:
    asked = Asked(builds="built:1")
    jobs = JobRunner("lsf", workspace="file:///here", runner=asked)
    for number in (1, 2):
        jobs.submit(app(), launch_id=f"launch-{number}")
    assert [(workspace, image) for _, workspace, image in asked.asked] == [
        ("file:///here", "typed"),
        (None, "built:1"),
    ]
    assert jobs.image == "built:1"


def test_on_ray_each_launch_builds_its_image_and_bears_its_launch() -> None:
    asked, names = Asked(builds="/tmp/removed"), []
    jobs = JobRunner("ray", workspace="file:///here", runner=asked)
    for number in (1, 2):
        submitted = app()
        jobs.submit(submitted, launch_id=f"launch-{number}")
        names.append(submitted.name)
    assert [(workspace, image) for _, workspace, image in asked.asked] == [("file:///here", "typed")] * 2
    assert (jobs.image, names) == ("", ["app-launch-1", "app-launch-2"])


def test_what_a_scheduler_rejects_is_told_with_the_cause() -> None:
    with pytest.raises(LaunchError, match="lsf rejected the job: ValueError: no quota"):
        JobRunner("lsf", runner=Asked(state=ValueError("no quota"))).submit(app(), launch_id="launch-1")


@pytest.mark.parametrize(
    ("scheduler", "options", "words"),
    [
        ("slrm", "", r"unknown scheduler 'slrm'; choose from slurm, local_cwd, lsf, ray"),
        ("slurm", "partitions=a", r"unknown option 'partitions' of scheduler slurm; choose from comment, log_dir"),
        ("slurm", "partition=a,comments=b", "unknown option 'comments'"),
    ],
)
def test_an_unknown_scheduler_lists_the_known_ones(scheduler: str, options: str, words: str) -> None:
    with pytest.raises(LaunchError, match=words):
        JobRunner(scheduler, scheduler_args=options, runner=Asked())


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (specs.AppState.SUCCEEDED, JobState(phase=JobPhase.ENDED, end=JobEnd.SUCCEEDED, why="why")),
        (specs.AppState.FAILED, JobState(phase=JobPhase.ENDED, end=JobEnd.FAILED, why="why")),
        (specs.AppState.CANCELLED, JobState(phase=JobPhase.ENDED, end=JobEnd.CANCELLED, why="why")),
        (specs.AppState.RUNNING, JobState(phase=JobPhase.RUNNING)),
        (specs.AppState.PENDING, JobState(phase=JobPhase.QUEUED)),
        (specs.AppState.SUBMITTED, JobState(phase=JobPhase.QUEUED)),
        (specs.AppState.UNSUBMITTED, JobState(phase=JobPhase.QUEUED)),
        (specs.AppState.UNKNOWN, JobState(phase=JobPhase.UNKNOWN)),
        (None, JobState(phase=JobPhase.UNKNOWN)),
        (KeyError("odd"), JobState(phase=JobPhase.UNKNOWN, why="KeyError: 'odd'")),
    ],
    ids=str,
)
def test_a_state_of_torchx_is_read(state: specs.AppState | Exception | None, expected: JobState) -> None:
    assert JobRunner("lsf", runner=Asked(state=state)).look("lsf://torchx/1") == expected


def test_ray_is_queried_by_its_own_client_first(monkeypatch: pytest.MonkeyPatch) -> None:
    ran_out = JobState(phase=JobPhase.ENDED, end=JobEnd.OUT_OF_MEMORY)
    cancelled: list[str] = []
    monkeypatch.setattr(RayQuery, "look", lambda _, app_id: ran_out if app_id == "127.0.0.1:8265-train-1" else None)
    monkeypatch.setattr(RayQuery, "find", lambda _, launch_ids: dict.fromkeys(launch_ids, "127.0.0.1:8265-train-1"))
    monkeypatch.setattr(RayQuery, "cancel", lambda _, app_id: cancelled.append(app_id) or True)
    jobs = JobRunner("ray", runner=Asked(state=specs.AppState.FAILED))
    assert jobs.find(["launch-1"]) == {"launch-1": "ray://torchx/127.0.0.1:8265-train-1"}
    assert jobs.look("ray://torchx/127.0.0.1:8265-train-1") == ran_out
    assert jobs.look("ray://torchx/127.0.0.1:8265-train-2").phase is JobPhase.UNKNOWN
    jobs.cancel("ray://torchx/127.0.0.1:8265-train-1")
    assert (cancelled, jobs.is_local, jobs.finds) == (["127.0.0.1:8265-train-1"], False, True)


def test_a_scheduler_without_its_client_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def options(*_: object) -> None:
        raise NameError("name 'JobSubmissionClient' is not defined")

    monkeypatch.setattr(Asked, "scheduler_run_opts", options)
    with pytest.raises(LaunchError, match="the client of scheduler ray is not installed here: name 'JobSubmission"):
        JobRunner("ray", runner=Asked())


def test_slurm_is_queried_unless_torchx_sees_the_job_run(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {"7": JobState(phase=JobPhase.QUEUED), "8": None}
    monkeypatch.setattr(SlurmQuery, "look", lambda _, app_id: answers[app_id])
    ended = JobRunner("slurm", runner=Asked(state=specs.AppState.FAILED))
    assert ended.look("slurm://torchx/7").phase is JobPhase.QUEUED
    assert ended.look("slurm://torchx/8").end is JobEnd.FAILED
    assert JobRunner("slurm", runner=Asked(state=specs.AppState.RUNNING)).look("slurm://torchx/7").phase is (
        JobPhase.RUNNING
    )


def test_slurm_jobs_are_cancelled_without_torchx(monkeypatch: pytest.MonkeyPatch) -> None:
    cancelled: list[str] = []
    monkeypatch.setattr(SlurmQuery, "find", lambda _, launch_ids: dict.fromkeys(launch_ids, "7"))
    monkeypatch.setattr(SlurmQuery, "cancel", lambda _, app_id: cancelled.append(app_id) or True)
    monkeypatch.setattr(SlurmQuery, "submitting", lambda _, launch_ids: bool(launch_ids))
    asked = Asked()
    slurm = JobRunner("slurm", runner=asked)
    assert slurm.find(["launch-1"]) == {"launch-1": "slurm://torchx/7"}
    assert slurm.find([]) == {}
    assert slurm.cancel("slurm://torchx/7")
    assert (cancelled, asked.cancelled) == (["7"], [])
    assert slurm.submitting(["launch-1"])
    assert not slurm.submitting([])
    assert (slurm.is_local, slurm.finds) == (False, True)


def test_torchx_cancels_jobs_of_other_schedulers() -> None:
    asked = Asked()
    jobs = JobRunner("lsf", runner=asked)
    assert not jobs.cancel("lsf://torchx/1")  # TorchX fails, so nothing was accepted
    assert asked.cancelled == ["lsf://torchx/1"]
    assert jobs.find(["launch-1"]) == {}
    assert not jobs.submitting(["launch-1"])
    assert (jobs.is_local, jobs.finds) == (False, False)
    assert jobs.scheduler_lines("lsf://torchx/1") == ()
    local = JobRunner("local_cwd", runner=Asked(state=specs.AppState.RUNNING))
    assert (local.is_local, local.finds) == (True, True)
    assert local.look("local_cwd://adopted/launch-none").end is JobEnd.UNWATCHED  # TorchX is not asked
    assert local.look("local_cwd://torchx/app").phase is JobPhase.RUNNING


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("slurmstepd: error: Detected 1 oom_kill event in StepId=7.0", True),
        ("slurmstepd: error: Exceeded job memory limit", True),
        ("slurmstepd: error: *** STEP 7.0 OUT_OF_MEMORY", True),
        ("slurmstepd: error: *** STEP 7.0 CANCELLED", False),
        ("my program exceeded memory limit", False),
    ],
)
def test_out_of_memory_is_read_from_slurm_lines_alone(line: str, expected: bool) -> None:
    assert is_out_of_memory(["first", line, "last"]) is expected


@pytest.mark.parametrize("state", [specs.AppState.SUCCEEDED, specs.AppState.FAILED, None], ids=str)
def test_the_last_lines_of_a_job_that_is_over(state: specs.AppState | None) -> None:
    asked = Asked(state=state, log=[f"line {number}\n" for number in range(70)])
    jobs = JobRunner("lsf", runner=asked)
    assert jobs.last_lines("lsf://torchx/app-7", "role") == tuple(f"line {number}" for number in range(10, 70))
    assert jobs.last_lines("lsf://torchx/app-7", "role", count=2) == ("line 68", "line 69")
    assert asked.read == [("app-7", "role", 0, Stream.STDERR)] * 2


def test_torchx_is_not_asked_for_lines_of_a_job_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    folders: list[tuple[str, str]] = []
    found = tuple(f"line {number}" for number in range(70))
    monkeypatch.setattr(
        SlurmQuery, "scheduler_lines", lambda query, app_id: folders.append((app_id, str(query._job_dir))) or found
    )
    asked = Asked(state=specs.AppState.RUNNING, log=["never read"])
    jobs = JobRunner("slurm", runner=asked)
    assert jobs.last_lines("slurm://torchx/7", "role") == found[10:]
    assert jobs.last_lines("slurm://torchx/7", "role", count=3) == found[-3:]
    assert jobs.scheduler_lines("slurm://torchx/7") == found
    assert folders == [("7", ".")] * 3
    assert asked.read == []
    assert JobRunner("lsf", runner=asked).last_lines("lsf://torchx/7", "role") == ()


def test_a_scheduler_without_logs_has_no_lines() -> None:
    asked = Asked(state=specs.AppState.FAILED, log=NotImplementedError("no logs"))
    assert JobRunner("lsf", runner=asked).last_lines("lsf://torchx/7", "role") == ()


@pytest.mark.parametrize("interruption", [KeyboardInterrupt(), SignalException("", 2)], ids=["python", "torchx"])
def test_an_interrupt_while_a_job_is_submitted_is_one(interruption: BaseException) -> None:
    with pytest.raises(KeyboardInterrupt):
        JobRunner("lsf", runner=Asked(state=interruption)).submit(app(), launch_id="launch-1")


def test_illegal_options_are_told_with_their_scheduler() -> None:
    class Strict(Asked):
        def scheduler_run_opts(self, scheduler: str) -> specs.runopts:
            options = specs.runopts()
            options.add("nodes", type_=int, help=f"of {scheduler}")
            return options

    with pytest.raises(LaunchError, match=r"invalid options 'nodes=many' for scheduler slurm: .*many"):
        JobRunner("slurm", scheduler_args="nodes=many", runner=Strict())


def test_leaving_ends_the_jobs_of_the_runner() -> None:
    asked = Asked()
    jobs = JobRunner("lsf", runner=asked)
    assert jobs.__enter__() is jobs
    error = ValueError("why")
    jobs.__exit__(ValueError, error, None)
    assert asked.entered == ["entered", (ValueError, error, None)]


def test_an_adopted_local_job_is_found_by_its_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    cancelled: list[str] = []
    monkeypatch.setattr(LocalQuery, "find", lambda _, launch_ids: {name: name for name in launch_ids})
    monkeypatch.setattr(LocalQuery, "cancel", lambda _, app_id: cancelled.append(app_id) or True)
    asked = Asked()
    jobs = JobRunner("local_cwd", runner=asked)
    assert jobs.find(["launch-1"]) == {"launch-1": "local_cwd://adopted/launch-1"}
    jobs.cancel("local_cwd://adopted/launch-1")
    assert (cancelled, asked.cancelled) == (["launch-1"], [])
    assert jobs.cancel("local_cwd://torchx/app-1")  # TorchX fails, but the job ends with this process
    assert (cancelled, asked.cancelled) == (["launch-1"], ["local_cwd://torchx/app-1"])
    assert JobRunner("lsf", runner=asked).look("lsf://adopted/1") == JobState(phase=JobPhase.UNKNOWN)
