"""The scenarios on a real Slurm of its own; ``tests/slurm`` has what is particular to Slurm."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.schedulers.scenarios import Scenarios, Site
from tests.slurm.conftest import NEEDED, keep

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    """Return a Slurm of two virtual nodes that ends with these tests."""
    missing = [name for name in NEEDED if shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin") is None]
    if missing or os.geteuid() != 0:
        pytest.skip(f"a Slurm cannot be started here: {'root is wanted' if not missing else ', '.join(missing)}")
    daemons, folder = (Path(tempfile.mkdtemp(prefix=f"cubicml-{name}-")) for name in ("slurm", "jobs"))
    keeper = keep(daemons)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("SLURM_CONF", str(daemons / "slurm.conf"))
            told = subprocess.run(["sinfo", "--version"], capture_output=True, text=True, check=True, timeout=30)
            yield Site(
                scheduler="slurm",
                version=told.stdout.strip(),
                options=("-s", "slurm", "--workspace", ""),
                component=(),
                folder=folder,
                store=str(folder / "stores"),
                limits_memory=True,
            )
    finally:
        keeper.communicate(timeout=120)
        shutil.rmtree(folder, ignore_errors=True)


class TestSlurm(Scenarios):
    """Slurm."""
