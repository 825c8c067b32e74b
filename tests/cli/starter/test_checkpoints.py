"""Trainings that write checkpoints, told by the text of the script and by earlier launches."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from torchx_cubicml.cli.starter import is_redirected, recorded_saving, saving_call
from torchx_cubicml.launch import Launch
from torchx_cubicml.records.trial import State, Trial
from torchx_cubicml.space.toml import parse_space

if TYPE_CHECKING:
    from pathlib import Path

SAVES = {
    "import torch\ntorch.save(model, path)": "torch.save",
    "from torch import save\nsave(model, path)": "save",
    "import torch.distributed.checkpoint as dcp\ndcp.save(state)": "dcp.save",
    "from torch.distributed import checkpoint as dcp\ndcp.async_save(state)": "dcp.async_save",
    "from torch.distributed.checkpoint.state_dict_saver import save as write\nwrite(state)": "write",
    "model.module.save_pretrained(path)": "model.module.save_pretrained",
    "engine().save_checkpoint(path)": "engine().save_checkpoint",
    "accelerator.save_state(path)": "accelerator.save_state",
}
DOES_NOT = [
    "image.save(path)",
    "import torch\ntorch.load(path)",
    "# torch.save(model)",
    "def save(x): ...\nsave(3)",
    "x =",
]


@pytest.mark.parametrize(("text", "call"), SAVES.items())
def test_a_saving_call_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, call: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(text)
    assert saving_call(Launch(program="train.py")) == f"{call} in train.py"
    assert saving_call(Launch(program="train", is_module=True)) == f"{call} in train.py"


@pytest.mark.parametrize("text", DOES_NOT)
def test_another_call_is_no_saving(tmp_path: Path, text: str) -> None:
    (tmp_path / "train.py").write_text(text)
    assert saving_call(Launch(program=str(tmp_path / "train.py"))) == ""


def test_modules_beside_the_script_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    package = tmp_path / "team" / "inner"
    package.mkdir(parents=True)
    (tmp_path / "train.py").write_text("from team import inner\nimport numpy")
    (tmp_path / "team" / "__init__.py").write_text("")
    (package / "__init__.py").write_text("from . import trainer, train\n")
    (package / "trainer.py").write_text("from ..writer import write\nfrom . import trainer")
    (tmp_path / "team" / "writer.py").write_text("import torch\ndef write(x): torch.save(x, 'a')")
    assert saving_call(Launch(program="train.py")) == "torch.save in team/writer.py"
    (package / "__main__.py").write_text("from .trainer import it")
    assert saving_call(Launch(program="team.inner", is_module=True)) == "torch.save in team/writer.py"


@pytest.mark.parametrize(
    ("tune", "redirected"),
    [
        ("", False),
        ('env = { WANDB_MODE = "offline" }', False),
        ('env = { OUT = "{scratch}/{launch_id}" }', True),
        ('args = { "--out" = "{scratch}" }', True),
    ],
)
def test_a_redirection_is_one_of_outputs(tune: str, *, redirected: bool) -> None:
    space = parse_space(f'[parameters.a]\nchoices = [1]\nenv = "A"\n[tune]\n{tune}\n', where="x")
    assert is_redirected(space) == redirected


def test_an_earlier_launch_of_the_program_tells() -> None:
    saved = Trial(
        trial_id="a",
        workload={"program": "a.py"},
        config={},
        state=State.COMPLETED,
        observed={"saves_checkpoints": True},
    )
    assert recorded_saving([saved], {"program": "a.py", "project": "gpt"})
    assert not recorded_saving([saved], {"program": "b.py"})
    assert not recorded_saving([], {"program": "a.py"})
    of_project = replace(saved, workload={"program": "a.py", "project": "gpt"})
    assert recorded_saving([of_project], {"program": "a.py", "project": "gpt"})
    assert not recorded_saving([of_project], {"program": "a.py", "project": "vision"})
