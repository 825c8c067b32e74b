from __future__ import annotations

import pytest

from torchx_cubicml.errors import LaunchError, SpaceError
from torchx_cubicml.history.same_training import can_change_batch, with_fixed_batch
from torchx_cubicml.launch import ComponentLaunch, Launch, TorchrunLaunch, read_config, write_config
from torchx_cubicml.launch.torchrun_command import with_option
from torchx_cubicml.records.contract import Contract
from torchx_cubicml.space import SearchSpace, computed_global_batch_size
from torchx_cubicml.space.toml import parse_space

SIZES = """
[parameters.nproc_per_node]
choices = [1, 2, 4, 8]
torchrun = "--nproc_per_node"
[parameters.nnodes]
choices = [1, 2]
torchrun = "--nnodes"
[[constraints]]
require = "world_size <= 8"
"""
BATCH = """
[parameters.micro_batch_size]
choices = [1, 2, 4]
flag = "--batch"
[parameters.gradient_accumulation_steps]
flag = "--accumulate"
"""
SCRIPT = ("--batch", "2", "--accumulate", "4", "a b")


def space(*, derived: bool = True) -> SearchSpace:
    accumulation = 'derive = "global_batch_size / (micro_batch_size * dp_degree)"' if derived else "choices = [1, 2, 4]"
    return parse_space(f"{SIZES}{BATCH}{accumulation}", where="x.toml")


def component(*options: str) -> ComponentLaunch:
    return ComponentLaunch.parse("dist.ddp", [*options, "--script", "train.py", "--", *SCRIPT])


@pytest.mark.parametrize("options", [("-j", "2x2"), ("--env", "A=1", "-j=2x2")], ids=["separate", "joined"])
def test_a_component_is_made_for_another_size(options: tuple[str, ...]) -> None:
    typed, sizes = component(*options), space()
    workload, own = read_config(typed.launch, sizes)
    assert "world_size" not in workload
    assert (own["nnodes"], own["nproc_per_node"], own["world_size"]) == (2, 2, 4)
    assert write_config(typed.launch, sizes, own) == typed.launch
    bound = sizes.bind(workload=workload, current=own)
    assert own in bound
    batch = computed_global_batch_size(workload=workload, current=own)
    assert batch == 2 * 4 * 4
    configs = list(bound.configs())
    assert {config["world_size"] for config in configs} == {1, 2, 4, 8}
    for config in configs:
        written = write_config(typed.launch, sizes, config)
        assert written.world_size == config["world_size"]
        assert read_config(written, sizes)[1] == config
        assert computed_global_batch_size(workload=workload, current=config) == batch
    written = write_config(typed.launch, sizes, {**own, **_one_node_of_eight()})
    app = typed.build(written, Contract(store="/tmp/store"))
    (role,) = app.roles
    line = " ".join(role.args)
    assert role.num_replicas == 1
    assert line.count("--nnodes 1") == 2
    assert line.count("--nproc_per_node 8") == 2  # recorded, and as the job would run it without a recorder
    assert line.count("--batch 4 --accumulate 1") == 2  # on one node in place of two, the global batch must stay
    text = " ".join(typed.arguments(written))
    assert text == " ".join([*options, "--script train.py -- --batch 4 --accumulate 1", "a b"]).replace("2x2", "1x8")


def test_the_fallback_starts_the_typed_processes() -> None:
    typed, sizes = component("-j", "1x2"), space()
    own = read_config(typed.launch, sizes)[1]
    changed = {**own, "nproc_per_node": 8, "world_size": 8, "gradient_accumulation_steps": 1}
    app = typed.build(write_config(typed.launch, sizes, changed), Contract(store="/tmp/store"))
    line = " ".join(app.roles[0].args)
    recorded, _, otherwise = line.partition("fi; printf")
    assert "--nproc_per_node 8" in recorded
    assert "--accumulate 1" in recorded
    assert "--nproc_per_node 2" in otherwise
    assert "--batch 2 --accumulate 4" in otherwise


def _one_node_of_eight() -> dict[str, int]:
    return {
        "nnodes": 1,
        "nproc_per_node": 8,
        "world_size": 8,
        "micro_batch_size": 4,
        "gradient_accumulation_steps": 1,
    }


def test_a_component_without_a_size_gets_one() -> None:
    typed = component()
    written = write_config(typed.launch, space(), {"nproc_per_node": 4, "world_size": 4})
    assert typed.arguments(written)[:4] == ("--script", "train.py", "-j", "1x4")


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["--nproc_per_node", "2", "train.py"], ["--nproc_per_node", "8"]),
        (["--nproc-per-node=2", "--tee", "3", "train.py"], ["--nproc-per-node=8", "--tee", "3"]),
        (["--standalone", "--nproc", "2", "train.py"], ["--standalone", "--nproc", "8"]),
        (["--standalone", "train.py"], ["--nproc_per_node=8", "--standalone"]),
        (["-m", "train"], ["--nproc_per_node=8", "--"]),
    ],
    ids=["separate", "joined", "short", "absent", "module"],
)
def test_cubicrun_starts_as_many_processes(args: list[str], expected: list[str]) -> None:
    command = TorchrunLaunch.parse([*args, *SCRIPT], env={})
    text = f"{SIZES}".replace('[parameters.nnodes]\nchoices = [1, 2]\ntorchrun = "--nnodes"\n', "")
    sizes = parse_space(text, where="x.toml")
    own = read_config(command.launch, sizes)[1]
    assert own == {"nproc_per_node": own["nproc_per_node"], "world_size": own["nproc_per_node"]}
    written = write_config(command.launch, sizes, {"nproc_per_node": 8, "world_size": 8})
    wrapped = command.with_launcher_of(written).wrapped(written.script_args, recorder="recorder")
    assert wrapped[: len(expected)] == expected
    as_typed = command.with_launcher_of(command.launch).wrapped(SCRIPT, recorder="recorder")
    assert as_typed == command.wrapped(SCRIPT, recorder="recorder")


@pytest.mark.parametrize(
    ("launch", "message"),
    [
        (
            TorchrunLaunch.parse(["--nnodes", "2", "--nproc_per_node", "2", "x.py"], env={}).launch,
            "sizes that can: none",
        ),
        (TorchrunLaunch.parse(["--nproc_per_node", "2", "x.py"], env={}).launch, "sizes that can: --nproc_per_node"),
        (Launch(program="x.py", world_size=2, nnodes=1, nproc_per_node=2), "sizes that can: none"),
    ],
    ids=["several nodes", "nodes of one", "no torchrun"],
)
def test_a_fixed_size_is_reported(launch: Launch, message: str) -> None:
    sizes = parse_space(SIZES, where="x.toml")
    with pytest.raises(LaunchError, match=message):
        write_config(launch, sizes, {"nnodes": 1 if launch.nnodes == 2 else 2})


def test_a_size_known_only_in_the_job_is_reported() -> None:
    launch = TorchrunLaunch.parse(["--nproc_per_node", "gpu", "x.py"], env={}).launch
    with pytest.raises(LaunchError, match="nproc_per_node of parameter nproc_per_node is known only when"):
        read_config(launch, parse_space(SIZES, where="x.toml"))


def test_fixed_accumulation_keeps_the_global_batch() -> None:
    launch, sizes = component("-j", "1x2").launch, space(derived=False)
    workload, own = read_config(launch, sizes)
    assert can_change_batch(sizes, workload=workload, current=own)
    kept = with_fixed_batch(sizes, workload=workload, current=own).bind(workload=workload, current=own)
    batches = {computed_global_batch_size(workload=workload, current=config) for config in kept.configs()}
    assert batches == {16}
    assert {config["world_size"] for config in kept.configs()} == {1, 2, 4, 8}


@pytest.mark.parametrize("name", ["processes", "nnodes"])
def test_a_size_needs_its_standard_name(name: str) -> None:
    text = f'[parameters.{name}]\nchoices = [1]\ntorchrun = "--nproc-per-node"'
    with pytest.raises(SpaceError, match=f"parameters.{name}.torchrun: must be '--nnodes' for the parameter nnodes"):
        parse_space(text, where="x.toml")


def test_options_of_one_command() -> None:
    assert with_option(["--a"][:0], 0, "nproc_per_node", "2") == ("--nproc_per_node=2",)
