"""The scenarios on a real Slurm of its own; ``tests/slurm`` has what is particular to Slurm."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.schedulers.scenarios import Scenarios, Site
from tests.slurm.conftest import running_slurm

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    """Return a Slurm of two virtual nodes that ends with these tests."""
    daemons, folder = (Path(tempfile.mkdtemp(prefix=f"cubicml-{name}-")) for name in ("slurm", "jobs"))
    try:
        with running_slurm(daemons):
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
        shutil.rmtree(folder, ignore_errors=True)


class TestSlurm(Scenarios):
    """Slurm."""
