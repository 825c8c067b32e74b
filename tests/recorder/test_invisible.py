from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from torchx_cubicml.recorder.steps import torch_hooks as scripting
from torchx_cubicml.recorder.steps.torch_hooks import ModuleHook
from torchx_cubicml.records.trial import State
from torchx_cubicml.store import TrialStore

SCRIPT = Path(__file__).parents[1] / "jobs" / "looks_at_itself.py"
# After the first step all candidates are hooked, in the second the layers too; the hooks of the last only note.
MOMENTS = ("1", "-2", "14")


@pytest.mark.launch
def test_a_script_sees_its_model_unchanged(tmp_path: Path) -> None:
    environment = {**os.environ, "TORCHX_CUBICML_STORE": str(tmp_path / "store"), "OMP_NUM_THREADS": "1"}
    started = [
        subprocess.Popen(
            [sys.executable, *recorder, str(SCRIPT), *MOMENTS],
            env=environment,
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for recorder in ((), ("-m", "torchx_cubicml.recorder", "--"))
    ]
    (plain, _), (recorded, stderr) = (process.communicate(timeout=600) for process in started)
    assert [process.returncode for process in started] == [0, 0], stderr
    assert recorded.splitlines() == plain.splitlines()
    assert "after step 14 func" in plain
    assert "warning" not in stderr
    (trial,) = TrialStore(str(tmp_path / "store"))
    assert trial.state is State.COMPLETED
    assert trial.measurement.steps_counted + trial.measurement.warmup_steps == 14


def test_hooks_keep_their_order_after_compilation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.jit._recursive, "get_hook_stubs", torch.jit._recursive.get_hook_stubs)  # pins the name
    scripting.hide_hooks_from_torchscript()
    model = nn.Linear(2, 1)
    hooks = [model.register_forward_pre_hook(ModuleHook(lambda *_: None), with_kwargs=True)]
    before = list(model._forward_pre_hooks.items())
    with pytest.warns(DeprecationWarning, match=r"jit.script"):
        scripted = torch.jit.script(model)
    assert scripted(torch.ones(3, 2)).shape == (3, 1)
    assert list(model._forward_pre_hooks.items()) == before
    hooks[0].remove()
    assert not model._forward_pre_hooks


def test_a_torch_without_that_place_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.jit._recursive, "get_hook_stubs")
    scripting.hide_hooks_from_torchscript()
    assert not hasattr(torch.jit._recursive, "get_hook_stubs")
