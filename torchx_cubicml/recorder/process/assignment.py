"""Recording assignment of this process: contract, trial id and store, read once before the program runs."""

from __future__ import annotations

import hashlib
import os
import re
import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torchx_cubicml.project import project_of
from torchx_cubicml.recorder.own_ranks.rank_starter import RankStarter
from torchx_cubicml.records.contract import Contract, decode_contract
from torchx_cubicml.records.trial import SECOND_ATTEMPT_SUFFIX, new_id
from torchx_cubicml.records.values import MAX_TEXT
from torchx_cubicml.records.workload import PROJECT
from torchx_cubicml.settings import (
    KEEP_COMMAND,
    default_store_url,
    is_on,
    option,
    read_job_environment,
    seconds_option,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torchx_cubicml.recorder.process.run_program import Program
    from torchx_cubicml.records.values import Config, Value
    from torchx_cubicml.settings import JobEnvironment

WRITE_DEADLINE_S = 10.0
_RANDOM_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_NOT_UTF8 = re.compile("[\ud800-\udfff]")
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """Recording assignment of one process of the job.

    Args:
        job: facts of the job from the environment.
        contract: from the launcher, or made here for a launch that was not made by this package.
        declared: whether the contract is from the launcher.
        trial_id: name of the trial; empty on a rank that must read it from rank 0.
        program: script or module that this process runs; ``None`` if its arguments are too long to be recorded.
        write_deadline_s: seconds that the end of the process may wait for the store.
        starter: recorded process that has started this one as a rank, and has recorded the start of the launch;
            ``None`` for other processes.
    """

    job: JobEnvironment
    contract: Contract
    declared: bool
    trial_id: str
    program: Program | None = None
    write_deadline_s: float = WRITE_DEADLINE_S
    starter: RankStarter | None = None

    @property
    def leads(self) -> bool:
        """Return whether this process reports the whole launch; the others report only their own failure."""
        return self.job.rank == 0


def read_assignment(program: Program, environment: Mapping[str, str] | None = None) -> Assignment:
    """Read the recording assignment of this process.

    Args:
        program: that this process runs.
        environment: used in place of the process's own.

    Raises:
        ContractError: the launcher's contract is damaged or of another version.
    """
    job = read_job_environment(environment)
    contract = decode_contract(job.contract) if job.contract else _own_contract(program, job, environment)
    trial_id = trial_id_of(job) or contract.trial_id or _trial_id_of_run(job)
    if not trial_id and job.rank == 0:
        trial_id = _trial_id_of_task(job, program, contract.config) or _trial_id_of_folder(job) or new_id("trial")
    if trial_id and contract.is_second_attempt:
        trial_id = f"{trial_id}{SECOND_ATTEMPT_SUFFIX}"
    return Assignment(
        job=job,
        contract=contract,
        declared=bool(job.contract),
        trial_id=trial_id,
        program=program if _is_recordable(program.arguments) else None,
        write_deadline_s=seconds_option("write_deadline_s", WRITE_DEADLINE_S, environment),
        starter=RankStarter.decode(job.starter, job.contract) if job.starter and job.contract else None,
    )


def rank_assignment(
    starter: RankStarter, *, rank: int, world_size: int, environment: Mapping[str, str] | None = None
) -> Assignment:
    """Return the recording assignment of a rank that multiprocessing has started, in the environment of its starter.

    Args:
        starter: process that has started it.
        rank: rank in its process group.
        world_size: size of that group.
        environment: used in place of the process's own.

    Raises:
        ContractError: the starter's contract is damaged.
    """
    contract = decode_contract(starter.contract)
    suffix = SECOND_ATTEMPT_SUFFIX if contract.is_second_attempt else ""
    return Assignment(
        job=replace(read_job_environment(environment), rank=rank, local_rank=rank, world_size=world_size),
        contract=contract,
        declared=True,
        trial_id=f"{contract.trial_id}{suffix}",
        write_deadline_s=seconds_option("write_deadline_s", WRITE_DEADLINE_S, environment),
        starter=starter,
    )


def trial_id_of(job: JobEnvironment) -> str:
    """Return the trial id that all ranks derive from the scheduler's job; empty without TorchX.

    It contains the cluster's name, as a job's number is unique within its cluster only.
    """
    scheme, separator, rest = job.torchx_job_id.partition("://")
    app_id = rest.rpartition("/")[2]
    if not (separator and scheme and app_id):
        return ""
    return _UNSAFE.sub("-", "-".join(filter(None, (scheme, job.cluster, app_id))))[:200]


def trial_id_of_step(job: JobEnvironment, words: Sequence[str], config: Config, *, process: int) -> str:
    """Return the trial id that each run of a requeued Slurm job derives; empty unless a task is this launch alone.

    A process that Slurm did not start itself may be one of several launches of its task, which nothing tells apart.

    Args:
        job: facts of the job from the environment.
        words: name and arguments of the program, with which a later run of the job counts as the same launch.
        config: requested config.
        process: id of the process that the whole launch descends from.
    """
    if not job.step or process != job.step_process:
        return ""
    settings = (f"{name}={config[name]!r}" for name in sorted(config))
    launch = "\n".join((job.cluster, job.step, str(job.world_size), *words, "", *settings))
    return f"trial-{hashlib.sha256(os.fsencode(launch)).hexdigest()[:16]}"


def known_at_start(assignment: Assignment) -> dict[str, Value]:
    """Return the facts that are known before the program runs."""
    job = assignment.job
    facts: dict[str, Value] = {
        "world_size": job.world_size,
        "nnodes": job.nnodes,
        "host": os.uname().nodename,
        "python_version": sys.version.partition(" ")[0],
    }
    if assignment.contract.refused:
        facts["runs_as_typed"] = assignment.contract.refused
    named = {
        "scheduler": _scheduler(job, assignment.contract),
        "job_id": job.torchx_job_id or job.scheduler_job_id,
        "partition": job.partition,
    }
    return facts | {name: value for name, value in named.items() if value}


def _trial_id_of_run(job: JobEnvironment) -> str:
    """Return the trial id that all ranks derive, at each attempt, from torchrun's run id; empty unless that is random.

    The run id is random under ``--standalone``; a run id that a user has chosen may be shared by many launches.
    """
    return f"torchrun-{job.run_id}" if _RANDOM_ID.fullmatch(job.run_id) else ""


def _trial_id_of_task(job: JobEnvironment, program: Program, config: Config) -> str:
    """Return the trial id that rank 0 derives from its Slurm task; torchrun's agent is the parent of its ranks."""
    process = os.getppid() if job.run_id else os.getpid()
    return trial_id_of_step(job, (program.name, *program.arguments), config, process=process)


def _trial_id_of_folder(job: JobEnvironment) -> str:
    """Return the trial id that rank 0 derives at each attempt on its node; empty unless the folder name is random."""
    folder = job.run_folder.rpartition("/")[2]
    if not re.fullmatch(rf"{re.escape(job.run_id)}_[a-z0-9_]{{8}}", folder):
        return ""
    launch = "\n".join((os.uname().nodename, job.run_folder, str(job.world_size)))
    return f"trial-{hashlib.sha256(os.fsencode(launch)).hexdigest()[:16]}"


def _own_contract(program: Program, job: JobEnvironment, environment: Mapping[str, str] | None) -> Contract:
    project = project_of(program.name, is_module=program.is_module)
    workload: dict[str, Value] = {"program": program.label, "world_size": job.world_size}
    if project:
        workload[PROJECT] = project
    keeps_command = is_on(option(KEEP_COMMAND, environment))
    return Contract(
        store=option("store", environment) or default_store_url(),
        workload=workload,
        kept_variables=() if keeps_command else None,
    )


def _is_recordable(arguments: tuple[str, ...]) -> bool:
    text = " ".join(arguments)
    return len(text) <= MAX_TEXT and _NOT_UTF8.search(text) is None


def _scheduler(job: JobEnvironment, contract: Contract) -> str:
    named = contract.scheduler or job.torchx_job_id.partition("://")[0]
    return named or job.scheduler_job_id.partition("-")[0]
