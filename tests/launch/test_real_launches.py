"""Real launches of rewritten and guarded commands through TorchX's ``local_cwd``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from torchx.runner import get_runner
from torchx.specs import AppState

from torchx_cubicml.launch import ComponentLaunch, read_config
from torchx_cubicml.launch.place_config import place_config
from torchx_cubicml.records.trial import Origin
from torchx_cubicml.space import Binding, BindingKind, Parameter, SearchSpace
from torchx_cubicml.space.toml import parse_space
from torchx_cubicml.store import TrialStore

pytestmark = pytest.mark.launch

SHOW = """
import json, os, sys
place = os.path.join(os.environ["SHOWN"], os.environ.get("RANK", "0"))
with open(place, "w") as file:
    json.dump({"argv": sys.argv, "name": __name__, "text": os.environ.get("TEXT")}, file)
"""
HOSTILE = 'it\'s "$HOME" $(id) `id` ${app_id} $$ \\ ; rm -rf / # é\n\t* ~ !x %d {a,b}'
SPACE = SearchSpace(
    parameters=(
        Parameter(name="text", choices=("plain", HOSTILE), binding=Binding(kind=BindingKind.FLAG, name="--text")),
        Parameter(name="variable", choices=("plain", HOSTILE), binding=Binding(kind=BindingKind.ENV, name="TEXT")),
    )
)
COMMAND = ["-j", "1x2", "--env", "TEXT=plain", "--script", "show.py", "--", "--text=plain", "--other", "a b"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make the working directory of a job, with a script that writes down what reached it."""
    (tmp_path / "show.py").write_text(SHOW)
    (tmp_path / "shown").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SHOWN", str(tmp_path / "shown"))
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=":")
    return tmp_path


def launch_rewritten(folder: Path) -> str:
    """Launch the command with hostile values in the place of plain ones, and return what the job said on stderr."""
    component = ComponentLaunch.parse("dist.ddp", COMMAND)
    config = {"text": HOSTILE, "variable": HOSTILE}
    placed = place_config(component.launch, SPACE, config, store=str(folder / "store"), origin=Origin.TUNE)
    app = component.build(placed.launch, placed.contract)
    with get_runner() as runner:
        handle = runner.run(app, "local_cwd", cfg={"log_dir": str(folder / "logs")})
        status = runner.wait(handle, wait_interval=0.1)
    (log,) = folder.glob("logs/torchx/*/show/0/stderr.log")
    said = log.read_text()
    assert status is not None
    assert status.state == AppState.SUCCEEDED, said
    return said


def shown(folder: Path) -> list[dict[str, object]]:
    return [json.loads(path.read_text()) for path in sorted((folder / "shown").iterdir())]


def as_seen(text: str) -> list[dict[str, object]]:
    one = {"argv": ["show.py", f"--text={text}", "--other", "a b"], "name": "__main__", "text": text}
    return [one, one]


def test_hostile_values_reach_the_script_unharmed(folder: Path) -> None:
    launch_rewritten(folder)
    assert shown(folder) == as_seen(HOSTILE)
    (trial,) = TrialStore(str(folder / "store"))
    assert trial.config == {"text": HOSTILE, "variable": HOSTILE}
    assert trial.origin is Origin.TUNE


def test_a_job_whose_python_lacks_the_package_runs_as_typed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bare = folder / "bare-python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    bare.chmod(0o755)
    monkeypatch.setenv("PYTHON_EXEC", str(bare))
    said = launch_rewritten(folder)
    assert shown(folder) == as_seen("plain")
    assert said.count("torchx-cubicml") == 1
    assert "cannot load the recorder: No module named 'torchx_cubicml'\n" in said


def test_a_job_of_another_contract_version_runs_as_typed(
    folder: Path, package_of_another_version: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(package_of_another_version))
    said = launch_rewritten(folder)
    assert shown(folder) == as_seen("plain")
    assert said.count("torchx-cubicml") == 1
    assert "its recorder reads contract version 999, this launch wrote 1\n" in said


EVERY_PLACE = f"""
[parameters.nproc_per_node]
choices = [1, 2]
torchrun = "--nproc_per_node"
[parameters.separate]
choices = ["plain", {json.dumps(HOSTILE)}]
flag = "--separate"
[parameters.joined]
choices = [1, 2]
flag = "--joined"
[parameters.short]
choices = [1, 2]
flag = "-s"
[parameters.switch]
choices = [false, true]
flag = "--switch"
[parameters.negated]
choices = [false, true]
flag = "--negated"
default = true
[parameters.layers]
choices = ["FULL_SHARD", "NO_SHARD"]
per_layer = 3
flag = "--layers"
[parameters.hydra]
choices = [1, 2]
flag = "model.depth="
[parameters.section]
choices = [1, 2]
flag = "--training.steps"
[parameters.variable]
choices = ["plain", {json.dumps(HOSTILE)}]
env = "TEXT"
[parameters.in_json]
choices = [2, 3]
file = "--deepspeed"
key = "zero_optimization.stage"
[parameters.in_yaml]
choices = ["plain", {json.dumps(HOSTILE)}]
file = "fsdp.yaml"
key = "fsdp_config.text"
[parameters.in_toml]
choices = [false, true]
file = "$CONFIG"
key = "compile.enable"
"""
EVERY_FORM = (
    "-j 1x1 --env TEXT=plain,CONFIG=c.toml --script {job} -- --separate plain --joined=1 -s 1 --negated "
    "--layers FULL_SHARD,NO_SHARD,FULL_SHARD model.depth=1 --training.steps 1 --deepspeed ds.json fsdp.yaml"
)


def test_every_landing_place_reaches_the_process(folder: Path) -> None:
    job = Path(__file__).parents[1] / "jobs" / "shows_config.py"
    (folder / "ds.json").write_text('{"zero_optimization": {"stage": 2}}')
    (folder / "fsdp.yaml").write_text("fsdp_config:\n  text: plain # why\n")
    (folder / "c.toml").write_text("[compile]\nenable = false\n")
    component = ComponentLaunch.parse("dist.ddp", EVERY_FORM.format(job=job).split())
    space = parse_space(EVERY_PLACE, where="x.toml")
    workload, own = read_config(component.launch, space)
    (config,) = [
        config
        for config in space.bind(workload=workload, current=own).configs()
        if all(config[name] != own[name] for name in own if name != "layers") and set(config["layers"]) == {"NO_SHARD"}
    ]
    placed = place_config(component.launch, space, config, store=str(folder / "store"), origin=Origin.TUNE)
    with get_runner() as runner:
        app = component.build(placed.launch, placed.contract)
        status = runner.wait(runner.run(app, "local_cwd", cfg={"log_dir": str(folder / "logs")}), wait_interval=0.1)
    assert status is not None
    assert status.state == AppState.SUCCEEDED, [
        path.read_text() for path in folder.glob("logs/torchx/*/*/0/stderr.log")
    ]
    seen = shown(folder)
    assert len(seen) == 2  # of one as typed
    for one in seen:
        copies = one["paths"]
        assert one["argv"] == [
            *("--separate", HOSTILE, "--joined=2", "-s", "2", "--no-negated"),
            *("--layers", "NO_SHARD,NO_SHARD,NO_SHARD", "model.depth=2"),
            *("--training.steps", "2", "--deepspeed", copies["ds.json"], copies["fsdp.yaml"], "--switch"),
        ]
        assert one["env"] == HOSTILE
        assert one["files"] == {
            "ds.json": {"zero_optimization": {"stage": 3}},
            "fsdp.yaml": {"fsdp_config": {"text": HOSTILE}},
            "c.toml": {"compile": {"enable": True}},
        }
    assert (folder / "c.toml").read_text() == "[compile]\nenable = false\n"
    (trial,) = TrialStore(str(folder / "store"))
    assert trial.config == {**config, "layers": ("NO_SHARD",) * 3}
