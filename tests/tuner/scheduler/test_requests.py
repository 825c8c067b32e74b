"""The request that TorchX makes before a tune plans its first launch, with TorchX's own schedulers."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

from tests.tune.cluster import SimulatedCluster
from tests.tune.draws import go, prepare_in, stored
from torchx_cubicml.errors import LaunchError
from torchx_cubicml.tuner import Budget, tune
from torchx_cubicml.tuner.journal import Journal
from torchx_cubicml.tuner.progress import Notice
from torchx_cubicml.tuner.scheduler.jobs import JobRunner

if TYPE_CHECKING:
    from pathlib import Path

    from torchx_cubicml.tuner import Prepared

needs_kubernetes = pytest.mark.skipif(find_spec("kubernetes") is None, reason="the package kubernetes is not installed")
MISSING = r"TorchX cannot make a request for kubernetes: .*queue"


@pytest.fixture
def prepared(tmp_path: Path) -> Prepared:
    return prepare_in(tmp_path)


@needs_kubernetes
def test_a_tune_without_a_queue_plans_no_launch(prepared: Prepared) -> None:
    on_kubernetes = replace(prepared, request=replace(prepared.request, scheduler="kubernetes"))
    with pytest.raises(LaunchError, match=MISSING):
        list(tune(on_kubernetes))
    assert stored(prepared) == []
    assert Journal(prepared.store_url).read() == []


@needs_kubernetes
def test_a_queue_is_all_that_kubernetes_wants(prepared: Prepared) -> None:
    app = prepared.component.build()
    with pytest.raises(LaunchError, match=MISSING):
        JobRunner("kubernetes").check_request(app)
    JobRunner("kubernetes", scheduler_args="queue=default").check_request(app)


@pytest.mark.parametrize("workspace", ["", "file:///here"])
@pytest.mark.parametrize("scheduler", ["local_cwd", "local_docker", "slurm"])
def test_a_whole_command_passes_and_nothing_is_written(
    prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheduler: str, workspace: str
) -> None:
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    jobs = JobRunner(scheduler, log_dir=str(tmp_path / "logs"), workspace=workspace)
    jobs.check_request(prepared.component.build())
    assert jobs.image == ""
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(("scheduler", "doubts"), [("local_cwd", 0), ("local_docker", 1)])
def test_a_store_that_jobs_may_not_reach_is_doubted_once(prepared: Prepared, scheduler: str, doubts: int) -> None:
    launch = replace(prepared.component.launch, scheduler=scheduler)
    few = replace(prepared.request, budget=Budget(launches=2), parallel=1)
    steps = go(replace(prepared, request=few, component=replace(prepared.component, launch=launch)), SimulatedCluster())
    texts = [step.text for step in steps if isinstance(step, Notice)]
    assert sum(text.startswith(f"{prepared.store_url} may not be visible to jobs on") for text in texts) == doubts
