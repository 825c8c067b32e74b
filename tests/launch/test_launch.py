from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from torchx_cubicml.launch import Launch, workload_of

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("program", "name"),
    [
        ("train.py", "train.py"),
        ("./a/../train.py", "train.py"),
        ("{cwd}/train.py", "train.py"),
        ("{cwd}-other/train.py", "{cwd}-other/train.py"),
        ("../train.py", "../train.py"),
        ("/opt/train.py", "/opt/train.py"),
    ],
)
def test_one_script_has_one_name(program: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    workload = workload_of(Launch(program=program.format(cwd=tmp_path)))
    assert workload == {"program": name.format(cwd=tmp_path)}


def test_a_module_is_named_as_it_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    launch = Launch(program="pkg.train", is_module=True, world_size=8, device="aws_p4d.24xlarge")
    assert workload_of(launch) == {"program": "-m pkg.train", "world_size": 8, "device": "aws_p4d.24xlarge"}


def test_declared_facts_have_the_last_word() -> None:
    launch = Launch(program="t.py", device="aws_p4d.24xlarge")
    assert workload_of(launch, {"device": "NVIDIA A100", "n_layers": 2}) == {
        "program": "t.py",
        "device": "NVIDIA A100",
        "n_layers": 2,
    }
