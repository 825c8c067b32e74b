from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from torchx.components import dist
from torchx.specs.finder import ComponentValidationException

from torchx_cubicml.launch import materialize
from torchx_cubicml.records.contract import CONTRACT_VARIABLE, decode_contract
from torchx_cubicml.rewrite.trainer_component import component_name, trainer_app

if TYPE_CHECKING:
    from pathlib import Path

NAME = component_name()


@pytest.mark.parametrize(
    ("args", "job", "typed"),
    [
        ([], {}, []),
        (["--lr", "1"], {}, ["--", "--lr", "1"]),
        ([], {"j": "1x2", "name": "n", "h": None}, ["-j", "1x2", "--name", "n"]),
        ([], {"cpu": 3, "env": {"A": "1", "B": "2"}}, ["--cpu", "3", "--env", "A=1,B=2"]),
        (["x"], {"mounts": ["type=bind", "src=/a", "dst=/b"]}, ["--mounts", "type=bind,src=/a,dst=/b", "--", "x"]),
    ],
)
def test_options_of_a_trainer_reach_its_job(args: list[str], job: dict[str, object], typed: list[str]) -> None:
    app = trainer_app(["-m", "pkg"], args, job=job, ours={"space": None, "store": None, "mode": "off"})
    assert app == materialize(NAME, ["-m", "pkg", *typed]).app


def test_our_options_are_those_of_the_trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".torchxconfig").touch()
    monkeypatch.setenv("TORCHXCONFIG", str(tmp_path / ".torchxconfig"))
    monkeypatch.setenv("TORCHX_CUBICML_MODE", "record")
    ours = {"space": None, "store": str(tmp_path / "s"), "mode": None}
    (role,) = trainer_app(["-m", "pkg"], [], job={"j": "1x2"}, ours=ours).roles
    contract = decode_contract(role.env[CONTRACT_VARIABLE])
    assert (contract.store, contract.workload["world_size"]) == (str(tmp_path / "s"), 2)


def test_a_refused_option_is_an_error_of_torchx() -> None:
    with pytest.raises(ComponentValidationException, match="rejects its arguments: Invalid format for -j"):
        trainer_app(["-m", "pkg"], [], job={"j": "1y2"}, ours={"mode": "off"})


def test_the_component_has_the_name_of_its_release(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(dist, "torchrun", raising=False)
    assert component_name() == "dist.ddp"
    monkeypatch.setattr(dist, "torchrun", dist.ddp, raising=False)
    assert component_name() == "dist.torchrun"
