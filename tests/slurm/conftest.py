"""A whole Slurm for the tests of this folder: started once, ended process by process."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).resolve().parent.parent.parent
NEEDED = ("munged", "mariadbd", "slurmdbd", "slurmctld", "slurmd", "sbatch")


def pytest_report_header() -> str:
    """Tell which TorchX is tested: the nightly build comes by another search path."""
    found = next(Path(folder) for folder in sys.path if (Path(folder) / "torchx" / "version.py").exists())
    return f"TorchX: {', '.join(path.stem for path in found.glob('torchx*.dist-info') if 'cubicml' not in path.name)}"


@pytest.fixture(scope="session")
def slurm() -> Iterator[Path]:
    """Return the folder of a running Slurm whose commands find it."""
    folder = Path(tempfile.mkdtemp(prefix="cubicml-slurm-"))
    with running_slurm(folder):
        yield folder


@contextmanager
def running_slurm(folder: Path) -> Iterator[None]:
    """Run a Slurm in ``folder`` whose commands find it; skip the tests where there is none."""
    missing = [name for name in NEEDED if shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin") is None]
    if missing or os.geteuid() != 0:
        pytest.skip(f"a Slurm cannot be started here: {'root is wanted' if not missing else ', '.join(missing)}")
    keeper = keep(folder)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("SLURM_CONF", str(folder / "slurm.conf"))
            yield
    finally:
        keeper.communicate(timeout=120)


def keep(folder: Path) -> subprocess.Popen[str]:
    """Start a Slurm in ``folder`` that ends when this process closes the pipe, or dies."""
    words = [ROOT / "scripts" / "slurm_until_eof", folder]
    keeper = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)
    if keeper.stdout is None or keeper.stdout.readline() != "up\n":
        keeper.communicate(timeout=120)
        raise RuntimeError(f"no Slurm came up in {folder}")
    return keeper


@pytest.fixture
def start_again() -> Callable[[str], None]:
    """Return what starts a requeued job before its usual two minutes."""

    def start(number: str) -> None:
        for _ in range(600):  # a job whose first run is not cleaned up yet is COMPLETING, although it waits too
            done = subprocess.run(
                ["squeue", "-h", "-j", number, "-o", "%T"], capture_output=True, text=True, check=True
            )
            if done.stdout.strip() == "PENDING":
                break
            time.sleep(0.1)
        revoked = int(
            time.time()
        )  # the node refuses a second run that is granted in the second in which the first ended
        while int(time.time()) <= revoked:
            time.sleep(0.05)
        subprocess.run(["scontrol", "update", f"jobid={number}", "StartTime=now"], check=True, timeout=30)

    return start


@pytest.fixture
def workspace(slurm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder from which jobs are submitted; their logs land there."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
