"""Launches of the jobs in ``tests/jobs`` on this machine, under hooks or as they are."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from torch.distributed import TCPStore

from tests.forked_programs import ForkedProgram
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
    job: str, *arguments: str, store: Path, n_ranks: int = 2, by_torchrun: bool = False, **contract: dict[str, Value]
) -> HookedLaunch:
    """Launch a job under the hooks of a contract, its ``hooks`` or ``checked_hooks``.

    Its ranks have loaded torch before they begin, unless torchrun starts them.
    """
    text = encode_contract(Contract(store=f"file://{store}", **contract))
    words = ("-m", "torchx_cubicml.recorder", "--", str(JOBS / job), *arguments)
    stdout, stderr = (_run_torchrun if by_torchrun else _run_ranks)(words, n_ranks, {CONTRACT_VARIABLE: text})
    (trial,) = TrialStore(str(store))
    assert trial.state is State.COMPLETED
    warnings = [line for line in stderr.splitlines() if "cubicml: warning:" in line]
    return HookedLaunch(trial=trial, lines=stdout.splitlines(), warnings=warnings)


def unhooked_losses(job: str, *arguments: str, n_ranks: int = 2) -> list[float]:
    """Return the losses of a job that runs without us."""
    stdout, _ = _run_ranks((str(JOBS / job), *arguments), n_ranks, {})
    return losses_of(stdout.splitlines())


def _run_torchrun(words: tuple[str, ...], n_ranks: int, changes: dict[str, str]) -> tuple[str, str]:
    """Return what the ranks of a launch write to stdout and stderr."""
    options = ("--standalone", "--nproc_per_node", str(n_ranks))
    return _ended(ForkedProgram("torchrun", *options, *words, env={**os.environ, "OMP_NUM_THREADS": "1", **changes}))


def _run_ranks(words: tuple[str, ...], n_ranks: int, changes: dict[str, str]) -> tuple[str, str]:
    """Return the same of ranks that meet as those of torchrun do."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    meeting = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "WORLD_SIZE": str(n_ranks),
        "LOCAL_WORLD_SIZE": str(n_ranks),
        "GROUP_WORLD_SIZE": "1",
        "GROUP_RANK": "0",
    }
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **meeting, **changes}
    ranks = [
        ForkedProgram("python", *words, env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(n_ranks)
    ]
    stdouts, stderrs = zip(*map(_ended, ranks), strict=True)
    return "".join(stdouts), "".join(stderrs)


def _ended(program: ForkedProgram) -> tuple[str, str]:
    stdout, stderr = program.communicate(timeout=600)
    assert program.returncode == 0, stderr
    return stdout, stderr
