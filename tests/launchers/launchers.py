"""Launchers that run the scenarios of ``tests/schedulers/scenarios.py``: what stands in front of the script in each."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.schedulers.scenarios import Site
from tests.slurm.conftest import running_slurm

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

HERE = Path(__file__).resolve().parent
BIN = Path(sys.executable).parent
BATCH = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Launcher(Site):
    """A launcher, and how the scenarios launch with it.

    Args:
        words: what stands in front of the script.
        ranks: number of ranks.
        own: words behind the script, with which it starts its ranks.
        is_torchrun: whether `cubicrun` takes the place of `torchrun`, and `dist.ddp` stands for it in a tune.
    """

    words: tuple[str, ...] = ()
    ranks: int = 2
    own: tuple[str, ...] = ()
    is_torchrun: bool = False
    scheduler: str = "local_cwd"
    options: tuple[str, ...] = ("-s", "local_cwd", "--workspace", "")
    component: tuple[str, ...] = ()
    training: Path = HERE / "train_ranks.py"
    training_args: str = f"--batch_size {BATCH}"
    refused_args: str = "--refused"
    quick: Path = HERE / "train_ranks.py"
    faster: int = 1024  # a step takes its sleep, so that even a busy machine confirms the gain

    @property
    def facts(self) -> dict[str, str | int]:
        """Facts that are observed in the recorded training."""
        sizes = {"micro_batch_size": BATCH, "global_batch_size": BATCH * self.ranks}
        found: dict[str, str | int] = {"world_size": self.ranks, "nnodes": 1, **sizes}
        return {**found, "sharding_strategy": "DDP", "dp_degree": self.ranks} if self.ranks > 1 else found

    def typed(self, args: Sequence[str]) -> tuple[str, ...]:
        """Return the words that start the training without us."""
        launcher = ("torchrun", *self.words) if self.is_torchrun else self.words
        return (*launcher, self.training.name, *self.own, *args)

    def recorded(self, store: str, script: str, args: Sequence[str], *, space: str = "") -> tuple[str, ...]:
        """Return the words of a launch by `cubicrun`."""
        rewrite = ("--cubicml-space", space) if space else ()
        behind = () if self.is_torchrun else ("--",)
        words = ("cubicrun", *rewrite, "--cubicml-store", f"{self.store}/{store}", *behind, *self.words)
        return (*words, script, *self.own, *args)

    def command(self, script: str, args: Sequence[str], *, processes: int, memory: str = "4000") -> tuple[str, ...]:
        """Return the words of the component that starts the launcher."""
        del processes, memory
        if self.is_torchrun:
            return ("dist.ddp", "-j", f"1x{self.ranks}", "--script", script, "--", *self.own, *args)
        return ("utils.sh", *self.words, script, *self.own, *args)


def needs(*packages: str) -> str:
    """Return names and versions of packages; skip the tests without them."""
    absent = [package for package in packages if find_spec(package) is None]
    if absent:
        pytest.skip(f"{', '.join(absent)} not installed")
    return ", ".join(f"{package} {version(package)}" for package in packages)


def named(
    version: str, folder: Path, *words: str, ranks: int = 2, own: tuple[str, ...] = (), is_torchrun: bool = False
) -> Launcher:
    """Return a launcher whose files lie in a folder."""
    torch = f"torch {_version('torch')}"
    told = f"{version}, {torch}" if version else torch
    return Launcher(
        version=told,
        folder=folder,
        store=str(folder / "stores"),
        words=words,
        ranks=ranks,
        own=own,
        is_torchrun=is_torchrun,
    )


@contextmanager
def cubicrun(folder: Path, port: int) -> Iterator[Launcher]:
    """`cubicrun` in the place of `torchrun`."""
    del port
    yield named("", folder, "--standalone", "--nproc_per_node", "2", is_torchrun=True)


@contextmanager
def agent(folder: Path, port: int) -> Iterator[Launcher]:
    """`python -m torch.distributed.run` behind `cubicrun --`."""
    del port
    yield named("", folder, "python", "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2")


@contextmanager
def accelerate(folder: Path, port: int) -> Iterator[Launcher]:
    """`accelerate launch` with two processes on CPUs, which it starts by torch's agent."""
    del port
    words = ("accelerate", "launch", "--multi_gpu", "--num_processes", "2", "--main_process_port", "0")
    yield named(needs("accelerate"), folder, *words)


@contextmanager
def deepspeed(folder: Path, port: int) -> Iterator[Launcher]:
    """`deepspeed` with two processes on CPUs."""
    told = needs("deepspeed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DS_ACCELERATOR", "cpu")
        patch.setenv("LOCAL_SIZE", "2")
        yield named(told, folder, "deepspeed", "--num_gpus", "2", "--master_port", str(port))


@contextmanager
def mpirun(folder: Path, port: int) -> Iterator[Launcher]:
    """`mpirun -n 2 python` of Open MPI."""
    if shutil.which("mpirun") is None:
        pytest.skip("mpirun not installed")
    told = subprocess.run(["mpirun", "--version"], capture_output=True, text=True, check=True, timeout=60)
    words = ("mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2", "python")
    yield named(told.stdout.partition("\n")[0], folder, *words, own=("--port", str(port)))


@contextmanager
def srun(folder: Path, port: int) -> Iterator[Launcher]:
    """`srun -n 2 python` on one node of a Slurm that ends with these tests."""
    with tempfile.TemporaryDirectory(prefix="cubicml-slurm-") as daemons, running_slurm(Path(daemons)):
        told = subprocess.run(["srun", "--version"], capture_output=True, text=True, check=True, timeout=60)
        words = ("srun", "-N", "1", "-n", "2", "--overcommit", "python")
        yield named(told.stdout.strip(), folder, *words, own=("--port", str(port)))


@contextmanager
def spawn(folder: Path, port: int) -> Iterator[Launcher]:
    """`python`, whose program starts two ranks by `torch.multiprocessing.spawn`."""
    yield named("", folder, "python", own=("--spawn", "2", "--port", str(port)))


@contextmanager
def lightning(folder: Path, port: int) -> Iterator[Launcher]:
    """`python`, whose program lets Lightning start the second of two ranks."""
    del port
    yield named(needs("lightning"), folder, "python", own=("--lightning",))


@contextmanager
def python(folder: Path, port: int) -> Iterator[Launcher]:
    """`python` with a program of one process."""
    del port
    yield named("", folder, "python", ranks=1)


LAUNCHERS: dict[str, Callable[[Path, int], AbstractContextManager[Launcher]]] = {
    each.__name__: each for each in (cubicrun, agent, accelerate, deepspeed, mpirun, srun, spawn, lightning, python)
}


def _version(package: str) -> str:
    return version(package).partition("+")[0]
