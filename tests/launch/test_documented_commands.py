"""The trainers' tables, against whole commands in the form in which each trainer documents them."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from torchx_cubicml.errors import CubicMLError
from torchx_cubicml.launch import Launch, read_config, write_config
from torchx_cubicml.launch.torchrun_command import parse_command
from torchx_cubicml.launch.trainer_of_command import detect_trainer
from torchx_cubicml.space.toml import parse_space
from torchx_cubicml.space.trainers import TRAINERS

COMMANDS = json.loads((Path(__file__).parents[1] / "data" / "documented_commands.json").read_text())


def launch_of(command: str) -> Launch:
    words = shlex.split(command)
    parts = parse_command(words)
    assert parts.nnodes is not None or not parts.is_torchrun
    return Launch(
        program=parts.program,
        is_module=parts.is_module,
        script_args=tuple(words[parts.args_start :]),
        world_size=(parts.nnodes or 1) * (parts.nproc_per_node or 1),
    )


def test_every_trainer_that_takes_flags_is_here() -> None:
    assert {case["trainer"] for case in COMMANDS.values()} == TRAINERS.keys() - {"accelerate"}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_documented_command_is_recognised_and_read(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = COMMANDS[name]
    monkeypatch.chdir(tmp_path)
    for file, text in case.get("files", {}).items():
        Path(file).parent.mkdir(parents=True, exist_ok=True)
        Path(file).write_text(text)
    launch = launch_of(case["command"])
    trainer = detect_trainer(launch, case.get("source", ""))
    assert trainer is not None
    assert trainer.name == case["trainer"]
    wanted = case.get("parameters", ["activation_checkpointing"])
    lines = [line if "=" in line else f'{line} = "auto"' for line in wanted]
    space = parse_space("\n".join([f'trainer = "{trainer.name}"', "[parameters]", *lines]), where="s.toml")
    if case["read"] is None:
        with pytest.raises(CubicMLError, match=case["why"]):
            space.bind(**dict(zip(("workload", "current"), read_config(launch, space), strict=True)))
        return
    workload, config = read_config(launch, space)
    assert config == case["read"]
    assert write_config(launch, space, config) == launch
    bound = space.bind(workload=workload, current=config)
    for other in list(bound.configs())[:50]:
        assert read_config(write_config(launch, space, other), space) == (workload, other)
