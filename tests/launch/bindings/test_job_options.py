from __future__ import annotations

from dataclasses import replace

import pytest

from torchx_cubicml.errors import LaunchError, SpaceError
from torchx_cubicml.launch import ComponentLaunch, Launch, read_config, write_config
from torchx_cubicml.launch.launch import changed_scheduler_options
from torchx_cubicml.launch.place_config import second_attempt
from torchx_cubicml.records.contract import Contract
from torchx_cubicml.space.toml import parse_space

SPACE = """
[parameters.nproc_per_node]
choices = [1, 2]
component = "-j"
[parameters.gpu]
choices = [0, 1]
component = "--gpu"
[parameters.partition]
choices = ["fast", "slow"]
scheduler = "partition"
"""
HOST = """
[parameters.host]
choices = ["gpu.small", "gpu.medium"]
component = "--h"
"""


def component(*options: str) -> ComponentLaunch:
    return ComponentLaunch.parse("dist.ddp", [*options, "--script", "train.py", "--", "--lr", "1"])


def submitted(found: ComponentLaunch) -> Launch:
    return replace(found.launch, scheduler_options={"partition": "slow", "time": "10"}, submits=True)


def test_a_config_lands_in_the_component_and_in_the_scheduler() -> None:
    typed, space = component("-j", "1x2", "--gpu=1"), parse_space(SPACE, where="x.toml")
    launch = submitted(typed)
    workload, own = read_config(launch, space)
    assert own == {"nproc_per_node": 2, "gpu": 1, "partition": "slow", "world_size": 2}
    assert "world_size" not in workload
    assert write_config(launch, space, own) == launch
    wanted = write_config(launch, space, {"nproc_per_node": 1, "gpu": 0, "partition": "fast"})
    assert read_config(wanted, space)[1] == {"nproc_per_node": 1, "gpu": 0, "partition": "fast", "world_size": 1}
    assert changed_scheduler_options(wanted, launch) == {"partition": "fast"}
    assert typed.arguments(wanted) == ("-j", "1x1", "--gpu=0", "--script", "train.py", "--", "--lr", "1")
    app = typed.build(wanted, Contract(store="file:///tmp/store"))
    assert app.roles[0].resource.gpu == 0
    assert "--nproc_per_node 1" in app.roles[0].args[1]


def test_a_host_that_a_parameter_chooses_is_no_fact_of_the_workload() -> None:
    typed = component("-h", "gpu.small")
    assert read_config(typed.launch, parse_space(SPACE.partition("[parameters.p")[0], where="x.toml"))[0]["device"]
    space = parse_space(HOST, where="x.toml")
    workload, own = read_config(typed.launch, space)
    assert "device" not in workload
    wanted = write_config(typed.launch, space, {"host": "gpu.medium"})
    assert typed.arguments(wanted)[:2] == ("-h", "gpu.medium")
    assert own == {"host": "gpu.small"}


def test_another_resource_has_no_second_attempt_as_typed() -> None:
    typed, space = component("-j", "1x2", "--gpu", "1"), parse_space(SPACE, where="x.toml")
    launch, contract = submitted(typed), Contract(store="file:///tmp/store")
    fewer = write_config(launch, space, {"nproc_per_node": 1})
    assert second_attempt(contract, typed=launch, wanted=fewer) is not None
    less = write_config(launch, space, {"gpu": 0})
    assert second_attempt(contract, typed=launch, wanted=less) is None


def test_an_ordinary_launch_cannot_set_the_option_of_a_scheduler() -> None:
    launch = replace(submitted(component()), submits=False)
    with pytest.raises(LaunchError, match="the scheduler's, which only a tune can change"):
        write_config(launch, parse_space(SPACE, where="x.toml"), {"partition": "fast"})


@pytest.mark.parametrize("value", ["a,b", "a;b", "a=b"])
def test_a_value_that_cfg_cannot_hold_is_refused(value: str) -> None:
    space = parse_space(SPACE.replace('"fast"', f'"{value}"'), where="x.toml")
    with pytest.raises(LaunchError, match="it has one of , ; ="):
        write_config(submitted(component()), space, {"partition": value})


def test_what_the_command_lacks_is_named() -> None:
    space = parse_space(SPACE, where="x.toml")
    with pytest.raises(LaunchError, match=r"option partition of the scheduler \(-cfg partition=VALUE\) is not stated"):
        read_config(component().launch, space)
    with pytest.raises(LaunchError, match=r"has no option --gpus; options there: .*--gpu, "):
        read_config(submitted(component()), parse_space(SPACE.replace("--gpu", "--gpus"), where="x.toml"))
    plain = Launch(program="train.py", world_size=2, nnodes=1, nproc_per_node=2)
    with pytest.raises(LaunchError, match="none, as no component starts this command"):
        read_config(plain, space)


@pytest.mark.parametrize(
    ("old", "new", "rule"),
    [
        ("--gpu", "gpu", "must be an option of the component with its dashes"),
        ('scheduler = "partition"', 'scheduler = "--partition"', "without dashes"),
        ('scheduler = "partition"', 'scheduler = "api_token"', "secrets are never recorded"),
        ("nproc_per_node", "processes", "bind the parameters nnodes and nproc_per_node to it"),
        ("choices = [0, 1]", "choices = [0, 1]\nper_layer = 4", "which takes one value"),
    ],
)
def test_an_illegal_place_is_one_sentence(old: str, new: str, rule: str) -> None:
    with pytest.raises(SpaceError, match=rule):
        parse_space(SPACE.replace(old, new), where="x.toml")
