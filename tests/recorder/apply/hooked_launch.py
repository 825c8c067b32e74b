"""Launches of the jobs in ``tests/jobs`` on this machine, under hooks or as they are."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from torchx_cubicml.records.contract import CONTRACT_VARIABLE, Contract, encode_contract
from torchx_cubicml.records.trial import State
from torchx_cubicml.store import TrialStore

if TYPE_CHECKING:
    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.records.values import Value

JOBS = Path(__file__).parents[2] / "jobs"
PLACED = ("layers.*.up,layers.*.down", "embedding", "head")
"""Modules of ``train_mesh.py`` that launches place otherwise."""


@dataclass(frozen=True, kw_only=True)
class HookedLaunch:
    """A launch that has ended.

    Args:
        trial: as it was recorded.
        lines: the job's own output.
        warnings: ours, one per line.
    """

    trial: Trial
    lines: list[str]
    warnings: list[str]

    @property
    def losses(self) -> list[float]:
        """Losses that the job printed."""
        return losses_of(self.lines)


def losses_of(lines: list[str]) -> list[float]:
    return [float(line.partition(" ")[2]) for line in lines if line.startswith("loss ")]


def launch_hooked(
    job: str, *arguments: str, store: Path, n_ranks: int = 2, **contract: dict[str, Value]
) -> HookedLaunch:
    """Launch a job under the hooks of a contract, its ``hooks`` or ``checked_hooks``."""
    text = encode_contract(Contract(store=f"file://{store}", **contract))
    recorder = ("-m", "torchx_cubicml.recorder", "--")
    ended = _run(job, arguments, n_ranks, recorder, {CONTRACT_VARIABLE: text})
    (trial,) = TrialStore(str(store))
    assert trial.state is State.COMPLETED
    warnings = [line for line in ended.stderr.splitlines() if "cubicml: warning:" in line]
    return HookedLaunch(trial=trial, lines=ended.stdout.splitlines(), warnings=warnings)


def unhooked_losses(job: str, *arguments: str, n_ranks: int = 2) -> list[float]:
    """Return the losses of a job that runs without us."""
    return losses_of(_run(job, arguments, n_ranks, (), {}).stdout.splitlines())


def _run(
    job: str, arguments: tuple[str, ...], n_ranks: int, recorder: tuple[str, ...], changes: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(n_ranks))
    ended = subprocess.run(
        [*torchrun, *recorder, str(JOBS / job), *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1", **changes},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended
