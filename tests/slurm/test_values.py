"""Values of every kind of place on a real Slurm: they reach each process of two nodes as they are."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

from torchx_cubicml.launch import ComponentLaunch, read_config
from torchx_cubicml.launch.place_config import place_config
from torchx_cubicml.records.trial import Origin
from torchx_cubicml.space.toml import parse_space
from torchx_cubicml.store import TrialStore
from torchx_cubicml.tuner.scheduler.job_state import JobEnd, JobPhase
from torchx_cubicml.tuner.scheduler.jobs import JobRunner

if TYPE_CHECKING:
    import pytest

JOB = Path(__file__).resolve().parent.parent / "jobs" / "shows_config.py"
HOSTILE = 'it\'s "$HOME" $(id) `id` ${app_id} $$ \\ ; rm -rf / # é,b=c\n\t* ~ !x %d {a,b}'
SPACE = f"""
[parameters.flag]
choices = ["plain", {json.dumps(HOSTILE)}]
flag = "--flag"
[parameters.pair]
choices = ["plain", {json.dumps(HOSTILE)}]
flag = "run.text="
[parameters.variable]
choices = ["plain", {json.dumps(HOSTILE)}]
env = "TEXT"
[parameters.in_json]
choices = [2, 3]
file = "--deepspeed"
key = "zero_optimization.stage"
[parameters.in_yaml]
choices = ["plain", {json.dumps(HOSTILE)}]
file = "$CONFIG"
key = "fsdp_config.text"
"""
COMMAND = (
    "-j 2x1 --rdzv_port {port} --env TEXT=plain,CONFIG=fsdp.yaml --script {job} "
    "-- --flag plain run.text=plain --deepspeed ds.json -x"
)


def test_every_value_reaches_every_process(workspace: Path, monkeypatch: pytest.MonkeyPatch, free_port: int) -> None:
    (workspace / "ds.json").write_text('{"zero_optimization": {"stage": 2}}')
    (workspace / "fsdp.yaml").write_text("fsdp_config: {text: plain} # why\n")
    (workspace / "shown").mkdir()
    monkeypatch.setenv("SHOWN", str(workspace / "shown"))
    component = ComponentLaunch.parse("dist.ddp", COMMAND.format(job=JOB, port=free_port).split())
    space = parse_space(SPACE, where="x.toml")
    own = read_config(component.launch, space)[1]
    config = {name: 3 if name == "in_json" else HOSTILE for name in own}
    placed = place_config(component.launch, space, config, store=str(workspace / "store"), origin=Origin.TUNE)
    with JobRunner("slurm") as jobs:
        handle = jobs.submit(component.build(placed.launch, placed.contract), launch_id="launch-values-1")
        state = jobs.look(handle)
        for _ in range(900):
            if state.phase is JobPhase.ENDED:
                break
            time.sleep(0.1)
            state = jobs.look(handle)
    logs = "\n".join(path.read_text() for path in workspace.glob("slurm-*.err"))
    assert state.end is JobEnd.SUCCEEDED, logs
    seen = [json.loads(path.read_text()) for path in sorted((workspace / "shown").iterdir())]
    assert len(seen) == 2
    for one in seen:
        copy = one["paths"]["ds.json"]
        assert one["argv"] == ["--flag", HOSTILE, f"run.text={HOSTILE}", "--deepspeed", copy, "-x"]
        assert one["env"] == HOSTILE
        assert one["files"] == {
            "ds.json": {"zero_optimization": {"stage": 3}},
            "fsdp.yaml": {"fsdp_config": {"text": HOSTILE}},
        }
    (trial,) = TrialStore(str(workspace / "store"))
    assert trial.config == config
