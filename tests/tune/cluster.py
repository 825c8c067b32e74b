"""A simulated cluster as a TorchX scheduler, with the faults of real ones; its time passes when a tune sleeps."""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING
from zlib import crc32

from torchx.runner import Runner
from torchx.schedulers.api import DescribeAppResponse, Scheduler
from torchx.specs import AppDryRunInfo, AppState, runopts
from torchx.workspace import WorkspaceMixin

from torchx_cubicml.records.contract import CONTRACT_VARIABLE, decode_contract
from torchx_cubicml.records.event import Event, EventKind
from torchx_cubicml.records.measurement import Measurement
from torchx_cubicml.records.trial import State
from torchx_cubicml.store import TrialStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from torchx.specs import AppDef, Role

    from torchx_cubicml.records.contract import Contract
    from torchx_cubicml.records.values import Config, Value


class StatusError(Exception):
    """What a status call of the cluster raises."""


class Killed(BaseException):
    """The tuner is gone, as by SIGKILL, at whatever it asked of the cluster."""


@dataclass(slots=True)
class Job:
    """One job: when it begins and ends, and what happens at its end."""

    contract: Contract
    submitted: datetime
    begins: datetime
    ends: datetime
    fate: str
    reported: set[str] = field(default_factory=set)
    cancelled: bool = False
    cut_off: datetime | None = None  # by a fault after which it waits once more
    ran_before_s: float = 0.0
    devices: str | None = None  # CUDA_VISIBLE_DEVICES of its role


def speed(config: Config) -> float:
    """Return the true throughput of a config, the same in every process."""
    return 100.0 + sum(crc32(f"{name}={value}".encode()) % 97 for name, value in sorted(config.items()))


def no_error(config: Config) -> str:
    """Return no error: the program takes every config."""
    del config
    return ""


def usual_measurement(config: Config) -> Measurement:
    """Return what a job of a config is measured at: its true throughput."""
    return Measurement(samples_per_second=speed(config), tokens_per_second=64 * speed(config))


FATES = ("done", "done", "done", "done", "done", "oom", "node", "preempted", "lost", "stuck", "silent", "raises")


@dataclass(slots=True)
class SimulatedCluster:
    """The machines, their clock, and what really happened on them.

    Args:
        seed: of its faults.
        fates: from which the fate of each job is drawn.
        run_s: shortest and longest run.
        fates_of: of jobs by their numbers from 1, in place of what is drawn.
        measure: what a job of a config is measured at.
        observed: facts that each job sees.
        error: with which the program ends at once for a config; empty where it runs.
    """

    seed: int = 0
    fates: tuple[str, ...] = FATES
    run_s: tuple[float, float] = (20.0, 200.0)
    time: datetime = datetime(2026, 1, 1, tzinfo=UTC)
    jobs: dict[str, Job] = field(default_factory=dict)
    kill_in: int = 0  # calls
    late_s: float = 3.0  # by which an end is reported
    builds: int = 0
    images: list[str] = field(default_factory=list)
    open: set[str] = field(default_factory=set)
    fates_of: dict[int, str] = field(default_factory=dict)
    measure: Callable[[Config], Measurement] = usual_measurement
    observed: Mapping[str, Value] = field(default_factory=lambda: {"world_size": 2})
    rejects: float = 0.0  # share of submissions
    error: Callable[[Config], str] = no_error
    reports_after_s: float = math.inf  # a running job reports what it measures
    rng: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)

    def now(self) -> datetime:
        self._maybe_kill()
        return self.time

    def _maybe_kill(self) -> None:
        self.kill_in -= 1
        if self.kill_in == 0:
            raise Killed

    def sleep(self, seconds: float) -> None:
        self.time += timedelta(seconds=max(seconds, 0.001))
        self._report()

    def submit(self, contract: Contract, devices: str | None = None) -> str:
        self._maybe_kill()
        if self.rng.random() < self.rejects:
            raise StatusError("sbatch: error: try again later")
        run_s = self.rng.uniform(*self.run_s)
        begins = self.time + timedelta(seconds=self.rng.expovariate(1 / 20))
        fate = self.fates_of.get(len(self.jobs) + 1, self.rng.choice(self.fates))
        if self.error(contract.config):
            fate = "refuses"
        if fate == "refuses":
            begins, run_s = self.time, 1.0
        if fate == "stuck":
            begins += timedelta(days=30)
        name = f"job-{len(self.jobs) + 1}"
        self.open.add(name)
        self.jobs[name] = Job(
            contract=contract,
            submitted=self.time,
            begins=begins,
            ends=begins + timedelta(seconds=run_s),
            fate=fate,
            devices=devices,
        )
        self._maybe_kill()
        return name

    def state(self, name: str) -> AppState:
        """Return what the cluster says, which need not be so."""
        job = self.jobs[name]
        if job.fate == "raises" and self.rng.random() < 0.3:
            raise StatusError("failed to translate slurm state CANCELLED by 0")
        if job.fate == "lost" and self.time > job.begins:
            return AppState.UNKNOWN
        if job.cancelled:
            return AppState.CANCELLED
        if self.time < job.submitted + timedelta(seconds=1):
            return AppState.UNKNOWN
        if self.time < job.begins:
            ended = job.cut_off is not None and self.time < job.cut_off + timedelta(seconds=1)
            return AppState.FAILED if ended else AppState.PENDING  # so it looks until it is back in the queue
        if self.time < job.ends + timedelta(seconds=self.late_s):
            return AppState.RUNNING
        return AppState.SUCCEEDED if job.fate in {"done", "raises", "requeued"} else AppState.FAILED

    def cancel(self, name: str) -> None:
        job = self.jobs[name]
        job.cancelled = job.cancelled or self.time < job.ends
        job.ends = min(job.ends, self.time)

    def in_flight(self) -> int:
        return sum(job.ends > self.time and not job.cancelled for job in self.jobs.values())

    def launched_twice(self) -> list[str]:
        counts = Counter(job.contract.launch_id for job in self.jobs.values())
        return [launch_id for launch_id, count in counts.items() if count > 1]

    def _report(self) -> None:
        for name in list(self.open):
            job = self.jobs[name]
            if (
                self.time >= job.begins
                and "begin" not in job.reported
                and not (job.cancelled and job.ends <= job.begins)
            ):
                job.reported.add("begin")
                self._event(name, job, EventKind.STARTED)
            reports = job.begins + timedelta(seconds=min(self.reports_after_s, 1e9))
            if reports <= self.time < job.ends and "measured" not in job.reported:
                job.reported.add("measured")
                self._event(name, job, EventKind.MEASURED, measured=self.measure(job.contract.config))
            if self.time >= job.ends:
                self.open.discard(name)
                if "begin" in job.reported:
                    self._end(name, job)

    def _end(self, name: str, job: Job) -> None:
        if job.cancelled or job.fate == "silent":
            return
        if job.fate == "requeued" and job.cut_off is None:
            self._event(name, job, EventKind.ENDED, State.INFRASTRUCTURE)
            self._requeue(name, job)
            return
        if job.fate in {"done", "raises", "requeued"}:
            self._event(name, job, EventKind.ENDED, State.COMPLETED, self.measure(job.contract.config))
        elif job.fate == "oom":
            self._event(name, job, EventKind.ENDED, State.OUT_OF_MEMORY)
        elif job.fate == "refuses":
            self._event(name, job, EventKind.ENDED, State.USER_ERROR, reason=self.error(job.contract.config))
        elif job.fate == "preempted":
            self._event(name, job, EventKind.ENDED, State.INFRASTRUCTURE)

    def _requeue(self, name: str, job: Job) -> None:
        run_time = job.ends - job.begins
        job.ran_before_s = run_time.total_seconds()
        job.cut_off, job.begins = self.time, self.time + timedelta(hours=2)
        job.ends = job.begins + run_time
        job.reported.clear()
        self.open.add(name)

    def _event(
        self,
        name: str,
        job: Job,
        kind: EventKind,
        state: State | None = None,
        measured: Measurement | None = None,
        reason: str = "",
    ) -> None:
        contract = job.contract
        TrialStore(contract.store).append(
            Event(
                kind=kind,
                trial_id=f"sim-{name}",
                launch_id=contract.launch_id,
                attempt=(0 if job.cut_off is None else 1, 0),
                sequence=(EventKind.STARTED, EventKind.MEASURED, EventKind.ENDED).index(kind),
                writer="rank0",
                time=self.time.isoformat(),
                workload=contract.workload,
                config=contract.config,
                origin=contract.origin,
                observed=self.observed,
                state=state,
                measurement=measured,
                reason=reason,
            )
        )


class SimulatedScheduler(Scheduler[dict[str, str]]):
    """The cluster as TorchX sees it."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        super().__init__("sim", "torchx")
        self.cluster = cluster

    def _run_opts(self) -> runopts:
        return runopts()

    def _submit_dryrun(self, app: AppDef, cfg: Mapping[str, str]) -> AppDryRunInfo[AppDef]:
        del cfg
        return AppDryRunInfo(app, repr)

    def schedule(self, dryrun_info: AppDryRunInfo[AppDef]) -> str:
        role = dryrun_info.request.roles[0]
        self.cluster.images.append(role.image)
        return self.cluster.submit(decode_contract(role.env[CONTRACT_VARIABLE]), role.env.get("CUDA_VISIBLE_DEVICES"))

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        return DescribeAppResponse(app_id=app_id, state=self.cluster.state(app_id))

    def _cancel_existing(self, app_id: str) -> None:
        self.cluster.cancel(app_id)

    def list(self) -> list[object]:
        return []

    def _validate(self, app: AppDef, scheduler: str) -> None:
        pass

    def log_iter(self, *args: object, **kwargs: object) -> Iterable[str]:
        return ()


class ContainedScheduler(WorkspaceMixin[None], SimulatedScheduler):
    """The cluster where jobs run in images."""

    def build_workspace_and_update_role(self, role: Role, workspace: str, cfg: Mapping[str, str]) -> None:
        del workspace, cfg
        self.cluster.builds += 1
        role.image = "built"


def runner_of(cluster: SimulatedCluster, *, contained: bool = False) -> Runner:
    """Return a TorchX runner that knows this cluster alone."""
    kind = ContainedScheduler if contained else SimulatedScheduler
    return Runner("torchx", {"sim": lambda *_, **__: kind(cluster)})
