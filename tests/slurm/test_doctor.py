"""The job of ``doctor`` on Slurm tells its Python, its packages, its clock and the store."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

from torchx_cubicml import Trial, TrialStore
from torchx_cubicml.cli import doctor

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def job_finding(store: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, str]]:
    parser = argparse.ArgumentParser()
    doctor.add_arguments(parser)
    words = ["--json", "--job", "--timeout", "300", "-s", "slurm", "--store", str(store)]
    status = doctor.run(parser.parse_args([*words, "--", "dist.ddp", "-j", "1x2", "--script", "train.py"]))
    return status, next(row for row in json.loads(capsys.readouterr().out) if row["check"] == "job")


def test_a_job_tells_what_it_finds(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (workspace / "train.py").touch()
    store = workspace / "store"
    TrialStore(str(store)).add(Trial.completed(workload={}, config={}, tokens_per_second=1.0))
    before = set(store.rglob("*"))
    status, found = job_finding(store, capsys)
    assert (status, found["level"]) == (0, "ok"), found
    assert "loads the recorder and writes the store" in found["found"]
    assert set(store.rglob("*")) == before

    bare = workspace / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    bare.chmod(0o755)
    monkeypatch.setenv("PYTHON_EXEC", str(bare))
    status, found = job_finding(store, capsys)
    assert (status, found["level"]) == (1, "wrong"), found
    assert "No module named 'torchx_cubicml'" in found["found"]
    assert f"install it there: {sys.executable}" in found["cure"]
