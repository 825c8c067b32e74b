"""The job of ``doctor``: a small one in place of the training, whose report is read from its log."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from torchx.specs.api import macros

from torchx_cubicml.cli.checks.job_environment import job_probe, job_report
from torchx_cubicml.errors import LaunchError
from torchx_cubicml.launch import ComponentLaunch
from torchx_cubicml.store.probe import StoreProbe

if TYPE_CHECKING:
    from pathlib import Path

REPORT = {"python": "3.11.7", "executable": "/usr/bin/python3", "time": 1.5, "contract": 1}


def line(**changes: object) -> str:
    return f"[0]:CUBICML_DOCTOR {json.dumps(REPORT | changes)}"


def test_a_small_job_takes_the_place_of_a_large_one() -> None:
    words = ["-j", "4x8", "--cpu", "64", "--gpu", "8", "--memMB", "500000", "--max_retries", "3", "-m", "train"]
    component = ComponentLaunch.parse("dist.ddp", [*words, "--env", "A=1", "--image", "mine:2"])
    (role,) = job_probe(component, store="/data/cubicml", writes=True).roles
    assert (role.num_replicas, role.min_replicas, role.max_retries) == (1, None, 0)
    assert (role.resource.cpu, role.resource.gpu, role.resource.memMB) == (1, 0, 1024)
    assert (role.image, role.env["A"], role.env["TORCHX_CUBICML_STORE"]) == ("mine:2", "1", "/data/cubicml")
    (typed,) = component.source.app.roles
    assert (typed.num_replicas, typed.resource.gpu) == (4, 8), "the app of the launch stays as it is"


@pytest.mark.parametrize("component", ["none", "dist.ddp", "utils.python"])
def test_the_job_reports_what_its_python_finds(component: str, tmp_path: Path) -> None:
    (tmp_path / "events").mkdir()
    made = None
    if component == "dist.ddp":
        made = ComponentLaunch.parse("dist.ddp", ["-j", "1x2", "--script", "train.py"])
    elif component == "utils.python":
        made = ComponentLaunch.parse("utils.python", ["--script", "train.py"])
    app = job_probe(made, store=str(tmp_path), writes=True)
    role = macros.Values(img_root="", app_id="a", replica_id="0", rank0_env="R").apply(app.roles[0])
    environment = {
        "PATH": f"{sys.prefix}/bin:/usr/bin:/bin",
        "PYTHONPATH": ":".join(filter(None, sys.path)),
        **role.env,
    }
    done = subprocess.run(
        [role.entrypoint, *role.args], env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    report = job_report(done.stderr.splitlines())
    assert report is not None, done.stderr
    assert (report.contract, report.error) == (1, "")
    assert report.store is not None
    assert report.store.is_written
    assert list((tmp_path / "events").iterdir()) == []


def test_a_component_of_no_training_has_no_job() -> None:
    with pytest.raises(LaunchError, match=r"utils\.echo cannot be recorded"):
        job_probe(ComponentLaunch.parse("utils.echo", []), store="/data", writes=False)


def test_a_report_is_read() -> None:
    store = {"presence": "store", "obstacle": "", "is_written": True}
    report = job_report(["noise", line(versions={"torch": "2.5.0"}, store=store), "more"])
    assert report is not None
    assert (report.time, report.versions, report.contract) == (1.5, {"torch": "2.5.0"}, 1)
    assert report.store == StoreProbe(presence="store", is_written=True)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "CUBICML_DOCTOR ",
        "CUBICML_DOCTOR []",
        line()[:-9],
        line(time=None),
        line(time=float("nan")),
        line(store="late"),
        line(store={"presence": "store", "age": 1}),
        line(unknown=1),
    ],
)
def test_what_is_no_report(text: str) -> None:
    assert job_report([text]) is None
