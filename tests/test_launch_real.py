"""Real launches of rewritten and guarded commands through TorchX's ``local_cwd``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from torchx.runner import get_runner
from torchx.specs import AppState

from torchx_cubicml.launch import ComponentLaunch
from torchx_cubicml.rewriter import place_config
from torchx_cubicml.space import Landing, LandingKind, Parameter, SearchSpace
from torchx_cubicml.store import TrialStore
from torchx_cubicml.trial import Origin

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
        Parameter(name="text", choices=("plain", HOSTILE), landing=Landing(kind=LandingKind.FLAG, name="--text")),
        Parameter(name="variable", choices=("plain", HOSTILE), landing=Landing(kind=LandingKind.ENV, name="TEXT")),
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


def test_hostile_values_reach_the_script_unharmed_and_the_launch_is_recorded(folder: Path) -> None:
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


def test_a_job_of_another_contract_version_runs_as_typed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = folder / "other" / "torchx_cubicml"
    (package / "recorder").mkdir(parents=True)
    for module, text in [("__init__", ""), ("recorder/__init__", ""), ("contract", "CONTRACT_VERSION = 999\n")]:
        (package / f"{module}.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    said = launch_rewritten(folder)
    assert shown(folder) == as_seen("plain")
    assert said.count("torchx-cubicml") == 1
    assert "its recorder reads contract version 999, this launch wrote 1\n" in said
