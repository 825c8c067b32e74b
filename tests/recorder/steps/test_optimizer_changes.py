from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn
from torch._dynamo import callback

from tests.recorder.bare import bare
from torchx_cubicml.recorder.steps import optimizer_changes as quiet_steps
from torchx_cubicml.recorder.steps.optimizer_changes import UnhookedOptimizers, UnhookedSteps, on_every_compilation
from torchx_cubicml.recorder.steps.training import Training
from torchx_cubicml.store import TrialStore

if TYPE_CHECKING:
    from tests.shared_results import SharedResults

JOB = Path(__file__).parents[2] / "jobs" / "train_compiled_step.py"


def launch(
    folder: Path, *recorder: str, words: tuple[str, ...] = ("AdamW",), **changes: str
) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "TORCHX_CUBICML_STORE": str(folder / "store"), "OMP_NUM_THREADS": "1", **changes}
    return subprocess.run(
        [sys.executable, *recorder, str(JOB), *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


@pytest.fixture
def plain(shared_results: SharedResults) -> str:
    """Return what the job prints with AdamW and without us."""
    return shared_results.get("compiled step", lambda folder: launch(folder).stdout)


@pytest.mark.launch
@pytest.mark.parametrize("optimizer", ["AdamW", "SGD"], ids=["with state", "without"])
def test_a_compiled_step_is_seen_by_what_it_writes(optimizer: str, tmp_path: Path, plain: str) -> None:
    done = launch(tmp_path, "-m", "torchx_cubicml.recorder", "--", words=(optimizer,))
    assert done.returncode == 0
    assert done.stdout == plain or optimizer == "SGD"
    (trial,) = TrialStore(str(tmp_path / "store"))
    assert trial.observed == {
        **trial.observed,
        "n_params": 90,
        "optimizer": optimizer,
        "compile": True,
        "micro_batch_size": 6,
        "gradient_accumulation_steps": 2,
        "global_batch_size": 12,
    }
    measured = trial.measurement
    assert measured is not None
    assert measured.steps_counted + measured.warmup_steps == 20 - 1  # in the first it was compiled
    assert measured.samples_per_second == pytest.approx(12 / measured.mean_step_time_s)
    assert measured.share_outside_steps is None  # where such a step ends is not seen


@pytest.mark.launch
def test_a_step_compiled_as_a_whole_shows_its_model_and_no_steps(tmp_path: Path) -> None:
    done = launch(tmp_path, "-m", "torchx_cubicml.recorder", "--", words=("SGD", "whole"))
    assert done.returncode == 0
    assert "warning" not in done.stderr.replace("UserWarning", "")
    (trial,) = TrialStore(str(tmp_path / "store"))
    assert trial.observed == {**trial.observed, "n_params": 90, "optimizer": "SGD", "compile": True}
    assert not {"micro_batch_size", "global_batch_size"} & trial.observed.keys()
    assert trial.measurement is None


@pytest.mark.launch
def test_a_compiler_that_tells_its_callbacks_nothing_is_seen(tmp_path: Path, plain: str) -> None:
    """As older torch does."""
    (tmp_path / "sitecustomize.py").write_text(
        "from torch._dynamo.callback import CompilationCallbackHandler as Handler\n"
        "Handler.run_start_callbacks = lambda self, *_: [call() for call in self.start_callbacks]\n"
        "Handler.run_end_callbacks = lambda self, *_: [call() for call in self.end_callbacks]\n"
    )
    paths = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    done = launch(tmp_path, "-m", "torchx_cubicml.recorder", "--", PYTHONPATH=paths)
    assert (done.returncode, done.stdout) == (0, plain), done.stderr
    assert "warning" not in done.stderr
    (trial,) = TrialStore(str(tmp_path / "store"))
    assert trial.measurement is not None
    assert trial.measurement.compile_s


@pytest.mark.launch
def test_a_failure_within_the_compiler_is_reported_and_harmless(tmp_path: Path, plain: str) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "from torchx_cubicml.recorder.steps.training import Training\n"
        "def fail(self):\n    raise RuntimeError('injected')\n"
        "Training.compiled = fail\n"
    )
    done = launch(tmp_path, "-m", "torchx_cubicml.recorder", "--", PYTHONPATH=str(tmp_path))
    assert (done.returncode, done.stdout) == (0, plain)
    assert plain.startswith("20 steps")
    assert done.stderr.count("warning: recording stopped") == 1


def test_a_parameter_that_was_written_shows_once() -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.AdamW(model.parameters())
    quiet = UnhookedSteps(optimizer)
    assert not quiet.has_stepped()
    model(torch.ones(1, 2)).sum().backward()
    assert not quiet.has_stepped()
    optimizer.step()
    assert [quiet.has_stepped(), quiet.has_stepped()] == [True, False]


def test_a_visible_optimizer_is_not_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training(bare, world_size=1)
    model = nn.Linear(8, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    optimizer.state[model.weight] = {"step": torch.zeros(())}  # as a checkpoint has left it
    monkeypatch.setattr("torchx_cubicml.recorder.steps.training.UnhookedOptimizers.find", lambda self: optimizer)
    training.compiled()
    for _ in range(12):
        model(torch.randn(4, 8)).sum().backward()
        optimizer.state.clear()
        optimizer.step()
        training.step(optimizer)
    training.release()
    assert training.steps == 12
    assert training.measurement().share_outside_steps is not None


def test_a_written_parameter_shows_a_stateless_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = nn.Linear(2, 1)
    fresh = torch.optim.SGD(model.parameters(), lr=0.1)
    monkeypatch.setattr(quiet_steps, "live_instances", lambda kind: [fresh])  # none of another test
    quiet = UnhookedOptimizers()
    model(torch.ones(1, 2)).sum().backward()
    assert [quiet.find(), quiet.find()] == [None, None]
    fresh.step()
    assert [quiet.find(), quiet.find()] == [fresh, None]


def test_the_place_of_the_compiler_is_there_and_can_be_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def begin(_event: object) -> None:
        calls.append("begin")

    def end(_event: object) -> None:
        calls.append("end")

    on_every_compilation(begin, end)
    try:
        torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
    finally:
        callback.callback_handler.remove_start_callback(begin)
        callback.callback_handler.remove_end_callback(end)
    assert calls[:2] == ["begin", "end"]
    monkeypatch.delattr(callback, "callback_handler")
    on_every_compilation(begin, end)
