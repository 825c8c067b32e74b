"""A rewritten launch of two nodes that fails early goes on as typed, in the same allocation of a real Slurm."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spaces import BATCH_SIZES
from torchx_cubicml.records.trial import Origin, State, Trial
from torchx_cubicml.rewrite.rewriter import Options, rewrite_component
from torchx_cubicml.store import TrialStore
from torchx_cubicml.tuner.scheduler.job_state import JobEnd, JobPhase
from torchx_cubicml.tuner.scheduler.jobs import JobRunner

if TYPE_CHECKING:
    from torchx_cubicml.tuner.scheduler.job_state import JobState

SCRIPT = Path(__file__).resolve().parent.parent / "jobs" / "fails_early.py"
COMMAND = "dist.ddp -j 2x1 --rdzv_port {port} --script train.py -- --batch_size 2 --accumulate 8 --fail {fail}"


def run_rewritten(workspace: Path, fail: str, port: int) -> JobState:
    """Launch the command with a store in which a larger batch is fastest, and wait for the end of its job."""
    shutil.copy(SCRIPT, workspace / "train.py")
    (workspace / "space.toml").write_text(BATCH_SIZES)
    (workspace / "shown").touch()
    store = TrialStore(str(workspace / "store"))
    for batch in (1, 2, 4, 8):
        store.add(
            Trial.completed(
                workload={"program": "train.py", "world_size": 2},
                config={"micro_batch_size": batch, "gradient_accumulation_steps": 16 // batch},
                tokens_per_second=9000.0 if batch == 8 else 1000.0 + batch,
            )
        )
    options = Options(space="space.toml", store=str(workspace / "store"))
    app = rewrite_component(COMMAND.format(fail=fail, port=port).split(), options)
    with JobRunner("slurm") as jobs:
        handle = jobs.submit(app, launch_id="launch-second-1")
        state = jobs.look(handle)
        for _ in range(1800):
            if state.phase is JobPhase.ENDED:
                break
            time.sleep(0.1)
            state = jobs.look(handle)
    return state


@pytest.mark.parametrize("fail", ["error@node1", "memory@node0"])
def test_two_nodes_go_on_as_typed(workspace: Path, monkeypatch: pytest.MonkeyPatch, free_port: int, fail: str) -> None:
    monkeypatch.setenv("SHOWN", str(workspace / "shown"))
    monkeypatch.setenv("TORCHX_CUBICML_CACHE", "off")
    state = run_rewritten(workspace, fail, free_port)
    logs = "\n".join(path.read_text(errors="replace") for path in workspace.glob("slurm-*.err"))
    assert state.end is JobEnd.SUCCEEDED, logs
    assert logs.count("starting again as you typed it") == 2, logs
    trials = {trial.origin: trial for trial in TrialStore(str(workspace / "store"))}
    assert trials[Origin.REWRITE].state in {State.USER_ERROR, State.OUT_OF_MEMORY}
    assert trials[Origin.USER].state is State.COMPLETED
    assert trials[Origin.USER].trial_id == f"{trials[Origin.REWRITE].trial_id}-as-typed"
    assert (workspace / "runs" / "out" / "lock").exists()
    assert len(list(workspace.glob("runs.failed-*"))) == 1
