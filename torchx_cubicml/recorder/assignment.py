"""What this process records of its launch, and where: read once, before the program runs."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchx_cubicml.contract import Contract, decode_contract
from torchx_cubicml.settings import default_store_url, option, read_job_environment
from torchx_cubicml.trial import new_id

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torchx_cubicml.recorder.run_program import Program
    from torchx_cubicml.settings import JobEnvironment
    from torchx_cubicml.trial import Value

WRITE_DEADLINE_S = 10.0
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """What one process of the job is to record.

    Args:
        job: what the environment tells of the job.
        contract: the launcher's, or one made here for a launch without a launcher of ours.
        declared: whether the contract is the launcher's.
        trial_id: name of the trial; empty on a rank that must ask rank 0 for it.
        write_deadline_s: seconds that the end of the process may wait for the store.
    """

    job: JobEnvironment
    contract: Contract
    declared: bool
    trial_id: str
    write_deadline_s: float = WRITE_DEADLINE_S

    @property
    def leads(self) -> bool:
        """Whether this process tells of the whole launch; the others tell only of their own failure."""
        return self.job.rank == 0


def read_assignment(program: Program, environment: Mapping[str, str] | None = None) -> Assignment:
    """Return what this process is to record.

    Args:
        program: that this process runs.
        environment: in place of the process's own.

    Raises:
        ContractError: the launcher's contract is damaged or of another version.
    """
    job = read_job_environment(environment)
    contract = decode_contract(job.contract) if job.contract else _own_contract(program, job, environment)
    trial_id = trial_id_of(job) or contract.trial_id or (new_id("trial") if job.rank == 0 else "")
    return Assignment(
        job=job,
        contract=contract,
        declared=bool(job.contract),
        trial_id=trial_id,
        write_deadline_s=_seconds(option("write_deadline_s", environment)),
    )


def trial_id_of(job: JobEnvironment) -> str:
    """Return the name that all ranks derive alike from the scheduler's job; empty without TorchX."""
    scheme, separator, rest = job.torchx_job_id.partition("://")
    app_id = rest.rpartition("/")[2]
    return _UNSAFE.sub("-", f"{scheme}-{app_id}")[:200] if separator and scheme and app_id else ""


def known_at_start(assignment: Assignment) -> dict[str, Value]:
    """Return the facts that are known before the program runs."""
    job = assignment.job
    facts: dict[str, Value] = {
        "world_size": job.world_size,
        "nnodes": job.nnodes,
        "host": os.uname().nodename,
        "python_version": sys.version.partition(" ")[0],
    }
    scheduler = _scheduler(job, assignment.contract)
    return {**facts, "scheduler": scheduler} if scheduler else facts


def _own_contract(program: Program, job: JobEnvironment, environment: Mapping[str, str] | None) -> Contract:
    return Contract(
        store=option("store", environment) or default_store_url(),
        workload={"program": program.label, "world_size": job.world_size},
    )


def _scheduler(job: JobEnvironment, contract: Contract) -> str:
    named = contract.scheduler or job.torchx_job_id.partition("://")[0]
    return named or job.scheduler_job_id.partition("-")[0]


def _seconds(text: str | None) -> float:
    try:
        seconds = float(text or WRITE_DEADLINE_S)
    except ValueError:
        return WRITE_DEADLINE_S
    return seconds if 0 < seconds < 3600 else WRITE_DEADLINE_S
