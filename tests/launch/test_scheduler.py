from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from torchx.schedulers import get_default_scheduler_name

from torchx_cubicml.launch.launch import Launch
from torchx_cubicml.launch.scheduler import (
    is_dry_run,
    is_dry_run_of,
    program_environment,
    scheduler_of,
    scheduler_of_process,
)
from torchx_cubicml.rewrite.rewriter import Options, rewrite

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def project_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / ".torchxconfig"
    path.touch()
    monkeypatch.setenv("TORCHXCONFIG", str(path))
    return path


@pytest.mark.parametrize(
    ("typed", "scheduler"),
    [
        ("-s slurm cubicml dist.ddp", "slurm"),
        ("--scheduler=kubernetes cubicml dist.ddp", "kubernetes"),
        ("-cfg a=b,c=d --dryrun -slocal_cwd cubicml dist.ddp", "local_cwd"),
        ("--workspace file:///w -s slurm cubicml dist.ddp -- -s 3 --scheduler cosine", "slurm"),
        ("-s slurm --an_option_of_tomorrow cubicml", "slurm"),
        ("cubicml dist.ddp -- -s 3", get_default_scheduler_name()),
        ("-s", ""),
    ],
)
def test_the_scheduler_is_what_torchx_reads(typed: str, scheduler: str) -> None:
    assert scheduler_of(typed.split()) == scheduler


def test_a_project_names_its_scheduler(project_settings: Path) -> None:
    project_settings.write_text("[cli:run]\nscheduler = slurm\n")
    assert scheduler_of(["cubicml", "dist.ddp"]) == "slurm"
    assert scheduler_of(["-s", "local_cwd", "cubicml", "dist.ddp"]) == "local_cwd"


def test_outside_of_torchx_run_the_scheduler_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["mine.py", "run", "-s", "slurm", "cubicml"]
    monkeypatch.setattr(sys, "argv", words)
    monkeypatch.delitem(sys.modules, "torchx.cli.cmd_run", raising=False)
    assert scheduler_of_process() == ""
    monkeypatch.setitem(sys.modules, "torchx.cli.cmd_run", sys)
    assert scheduler_of_process() == "slurm"
    monkeypatch.setattr(sys, "argv", ["torchx", "cubicml", "tune"])
    assert scheduler_of_process() == ""


@pytest.mark.parametrize(
    ("typed", "is_dry"),
    [
        ("--dryrun -s slurm cubicml dist.ddp", True),
        ("-cfg a=b,c=d --dryrun -slocal_cwd cubicml dist.ddp", True),
        ("-s slurm cubicml dist.ddp -- --dryrun", False),
        ("-s slurm cubicml --dryrun", False),
        ("-s", False),
    ],
)
def test_a_dry_run_is_what_torchx_takes_for_one(monkeypatch: pytest.MonkeyPatch, typed: str, *, is_dry: bool) -> None:
    assert is_dry_run_of(typed.split()) is is_dry
    monkeypatch.setattr(sys, "argv", ["torchx", "run", *typed.split()])
    monkeypatch.setitem(sys.modules, "torchx.cli.cmd_run", sys)
    assert is_dry_run() is is_dry
    monkeypatch.delitem(sys.modules, "torchx.cli.cmd_run")
    assert not is_dry_run()


@pytest.mark.parametrize(
    ("scheduler", "threads"), [("local_cwd", "3"), ("local", "3"), ("slurm", None), ("local_docker", None), ("", None)]
)
def test_a_program_on_this_machine_has_the_variables_of_the_shell(
    monkeypatch: pytest.MonkeyPatch, scheduler: str, threads: str | None
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    launch = Launch(program="train.py", scheduler=scheduler)
    assert program_environment(launch).get("OMP_NUM_THREADS") == threads
    assert program_environment(replace(launch, env={"OMP_NUM_THREADS": "5"}))["OMP_NUM_THREADS"] == "5"


def test_a_variable_of_the_shell_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A launch by TorchX on this machine and one by ``cubicrun`` record the same variables."""
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    contract = rewrite(Launch(program="train.py", scheduler="local_cwd"), Options(store=str(tmp_path))).contract
    assert contract is not None
    assert "OMP_NUM_THREADS" in contract.variables
