"""A whole Slurm for the tests of this folder: started once, ended process by process."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).resolve().parent.parent.parent
# No command tells when the batch step of a first run is gone, and until then a second start fails.
_CLEANED_UP_S = 8.0
NEEDED = ("munged", "mariadbd", "slurmdbd", "slurmctld", "slurmd", "sbatch")


@pytest.fixture(scope="session")
def slurm() -> Iterator[Path]:
    """Return the folder of a running Slurm whose commands find it."""
    missing = [name for name in NEEDED if shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin") is None]
    if missing or os.geteuid() != 0:
        pytest.skip(f"a Slurm cannot be started here: {'root is wanted' if not missing else ', '.join(missing)}")
    folder = Path(tempfile.mkdtemp(prefix="cubicml-slurm-"))
    os.environ["SLURM_CONF"] = str(folder / "slurm.conf")
    try:
        subprocess.run([ROOT / "scripts" / "slurm_up", folder], check=True, timeout=120)
        yield folder
    finally:
        subprocess.run([ROOT / "scripts" / "slurm_down", folder], check=False, timeout=120)
        del os.environ["SLURM_CONF"]
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def start_again() -> Callable[[str], None]:
    """Return what starts a requeued job before its usual two minutes."""

    def start(number: str) -> None:
        time.sleep(_CLEANED_UP_S)
        subprocess.run(["scontrol", "update", f"jobid={number}", "StartTime=now"], check=True, timeout=30)

    return start


@pytest.fixture
def workspace(slurm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder from which jobs are submitted; their logs land there."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
