from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import pytest

from torchx_cubicml.errors import SpaceError
from torchx_cubicml.launch import Launch, read_config, write_config
from torchx_cubicml.launch.config_io import checked_hooks, stated_values
from torchx_cubicml.space.toml import parse_space

if TYPE_CHECKING:
    from torchx_cubicml.space import SearchSpace

BY_FLAGS = """
[parameters.mesh]
mesh = ["dp_shard", "tp"]
flags = { dp_shard = "--dp-shard", tp = "--tp" }
most = { tp = 8 }
"""
BY_HOOK = """
[parameters.mesh]
mesh = ["dp_shard", "tp"]
hook = "mesh"
default = { tp = 2 }
"""


def space_of(text: str) -> SearchSpace:
    return parse_space(text, where="space.toml")


def launch_of(*args: str, world_size: int = 12) -> Launch:
    return Launch(program="train.py", script_args=args, world_size=world_size)


def meshes_of(text: str, *args: str, world_size: int = 12) -> list[tuple[object, ...]]:
    """Return the degrees of every legal config, in the order of the file."""
    workload, config = read_config(launch_of(*args, world_size=world_size), space_of(text))
    bound = space_of(text).bind(workload=workload, current=config)
    return [tuple(value for name, value in each.items() if name.endswith("_degree")) for each in bound.configs()]


def test_the_legal_meshes_are_the_factorisations_of_the_world_size() -> None:
    found = meshes_of(BY_FLAGS, "--tp", "2")
    assert sorted(found) == [(2, 6), (3, 4), (4, 3), (6, 2), (12, 1)]


def test_a_mesh_of_three_axes_has_every_factorisation() -> None:
    text = '[parameters.mesh]\nmesh = ["dp_replicate", "dp_shard", "tp"]\nhook = "mesh"\n'
    found = meshes_of(f"{text}default = {{ dp_replicate = 1, tp = 1 }}", world_size=8)
    assert len(found) == len(set(found)) == 10
    assert {prod(each) for each in found} == {8}


@pytest.mark.parametrize("typed", [("--dp-shard", "-1"), ("--dp-shard=0",), ("--dp-shard", "6"), ()])
def test_the_remaining_ranks_may_be_left_to_the_script(typed: tuple[str, ...]) -> None:
    launch, space = launch_of(*typed, "--tp", "2"), space_of(BY_FLAGS)
    _, config = read_config(launch, space)
    assert config == {"dp_shard_degree": 6, "tp_degree": 2}
    assert write_config(launch, space, config) == launch
    written = write_config(launch, space, {"dp_shard_degree": 3, "tp_degree": 4})
    assert read_config(written, space)[1] == {"dp_shard_degree": 3, "tp_degree": 4}


def test_an_earlier_command_states_its_mesh() -> None:
    stated = stated_values(("--tp", "4", "--dp-shard", "-1"), space_of(BY_FLAGS), {})
    assert stated == {"tp_degree": 4, "dp_shard_degree": None}


def test_each_axis_has_a_place_of_the_hook() -> None:
    launch, space = launch_of(world_size=4), space_of(f"{BY_HOOK}order = true")
    own = {"dp_shard_degree": 2, "tp_degree": 2, "mesh_order": "dp_shard,tp"}
    assert read_config(launch, space)[1] == own
    assert checked_hooks(launch, space, own) == {"mesh.dp_shard": 2, "mesh.tp": 2, "mesh.order": "dp_shard,tp"}
    wanted = own | {"dp_shard_degree": 1, "tp_degree": 4}
    written = write_config(launch, space, wanted)
    assert written.hooks == {"mesh.dp_shard": 1, "mesh.tp": 4}
    assert checked_hooks(written, space, wanted) == {"mesh.order": "dp_shard,tp"}
    assert read_config(written, space)[1] == wanted


def test_the_order_counts_if_two_axes_have_several_ranks() -> None:
    workload, config = read_config(launch_of(world_size=4), space := space_of(f"{BY_HOOK}order = true"))
    configs = [*space.bind(workload=workload, current=config).configs()]
    assert [(each["tp_degree"], each["mesh_order"]) for each in configs] == [
        (1, "dp_shard,tp"),
        (2, "dp_shard,tp"),
        (2, "tp,dp_shard"),
        (4, "dp_shard,tp"),
    ]


def test_megatron_computes_data_parallelism_itself() -> None:
    text = 'trainer = "megatron-lm"\n[parameters.mesh]\nmesh = ["dp", "tp", "pp"]\nmost = { dp = 4, tp = 2 }\n'
    typed = "--micro-batch-size 1 --global-batch-size 16 --num-layers 8 --num-attention-heads 8 --seq-length 64"
    launch, space = Launch(program="pretrain_gpt.py", script_args=(*typed.split(),), world_size=8), space_of(text)
    workload, config = read_config(launch, space)
    assert config == {"tp_degree": 1, "pp_degree": 1, "gradient_accumulation_steps": 2}
    bound = space.bind(workload=workload, current=config)
    found = {(each["tp_degree"], each["pp_degree"]) for each in bound.configs()}
    assert found == {(1, 2), (1, 4), (1, 8), (2, 1), (2, 2), (2, 4)}
    written = write_config(launch, space, {"tp_degree": 2, "pp_degree": 2})
    assert written.script_args[-4:] == (
        "--tensor-model-parallel-size",
        "2",
        "--pipeline-model-parallel-size",
        "2",
    )


def test_torchtitan_knows_its_flags() -> None:
    text = 'trainer = "torchtitan"\n[parameters.mesh]\nmesh = ["dp_shard", "cp", "tp"]\n'
    names = ("dp_shard_degree", "cp_degree", "tp_degree")
    by_name = {item.name: item for item in space_of(text).parameters}
    assert [by_name[name].binding.name for name in names if by_name[name].binding] == [
        "--parallelism.data_parallel_shard_degree",
        "--parallelism.context_parallel_degree",
        "--parallelism.tensor_parallel_degree",
    ]
    derive = by_name["dp_shard_degree"].derive
    assert derive is not None
    assert derive.source == "dp_degree / dp_replicate_degree"


def test_a_stated_default_holds_whatever_files_a_trainer_reads() -> None:
    text = 'trainer = "torchtitan"\n[parameters.mesh]\nmesh = ["dp_shard", "tp"]\nflags = { dp_shard = "--shard" }\n'
    shard, tp = space_of(f"{text}default = {{ tp = 2 }}").parameters[:2]
    assert shard.binding is not None
    assert tp.binding is not None
    assert (shard.binding.name, shard.default, shard.binding.implied) == ("--shard", None, True)
    assert (tp.default, tp.binding.unless, tp.binding.file_default) == (2, (), 2)
    unstated = space_of(text).parameters[1]
    assert unstated.binding is not None
    assert (unstated.default, unstated.binding.unless) == (None, ("*",))


def test_a_mesh_without_data_parallelism_has_the_product_as_constraint() -> None:
    text = '[parameters.layout]\nmesh = ["pp", "tp"]\nflags = { pp = "--pp", tp = "--tp" }\n'
    assert sorted(meshes_of(text, "--pp", "3", "--tp", "4")) == [(1, 12), (2, 6), (3, 4), (4, 3), (6, 2), (12, 1)]


def test_a_plain_data_axis_has_a_flag_of_its_own() -> None:
    text = '[parameters.mesh]\nmesh = ["dp", "tp"]\nflags = { dp = "--dp", tp = "--tp" }\n'
    launch, space = launch_of("--tp", "2", world_size=4), space_of(text)
    assert read_config(launch, space)[1] == {"dp_degree": 2, "tp_degree": 2}
    assert write_config(launch, space, {"dp_degree": 4, "tp_degree": 1}).script_args == ("--tp", "1", "--dp", "4")


def test_a_frozen_mesh_is_all_its_degrees() -> None:
    assert space_of(f'{BY_FLAGS}[rewrite]\nfreeze = ["mesh"]').rewrite.freeze == ("dp_shard_degree", "tp_degree")
    assert space_of(f'{BY_FLAGS}[rewrite]\nfreeze = ["tp_degree"]').rewrite.freeze == ("tp_degree",)


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        (
            '"tp"]',
            '"tpp"]',
            r"mesh\.mesh: unknown axis 'tpp'; did you mean 'tp'\? \(choose from dp_replicate, dp_shard",
        ),
        ('"tp"]', '"dp_shard"]', r"mesh\.mesh: must name each axis once"),
        ('"tp"]', '"dp"]', r"must name either dp, or dp_replicate and dp_shard"),
        (', "tp"]', "]", r"must name at least two axes"),
        ("tp = 8", "pp = 8", r"mesh\.most: unknown key 'pp'; choose from dp_shard, tp"),
        ("tp = 8", "tp = 0", r"mesh\.most\.tp: must be a whole number from 1"),
        (', tp = "--tp"', "", r'mesh: axis tp needs a place in the command: flags = \{ tp = "--flag" \}'),
        ('"--tp"', '"tp"', r"mesh\.flags\.tp: must be a flag with its dashes"),
        ("most", 'hook = "mesh"\nmost', r"mesh\.flags: not allowed together with hook"),
        ("most", "order = true\nmost", r"mesh\.order: only allowed together with hook = 'mesh'"),
        ("most", "step = 2\nmost", r"mesh: unknown key 'step'"),
    ],
)
def test_a_mesh_out_of_rule_is_refused(before: str, after: str, why: str) -> None:
    with pytest.raises(SpaceError, match=why):
        space_of(BY_FLAGS.replace(before, after))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (BY_HOOK.replace('hook = "mesh"', 'hook = "fsdp"'), r"mesh\.hook: must be 'mesh'"),
        (BY_HOOK.replace('hook = "mesh"', 'hook = "mesh.tp"'), r"mesh\.hook: must be 'mesh'"),
        (BY_HOOK.replace("{ tp = 2 }", "{}"), r"hook = 'mesh' needs the script's own size of each axis"),
        ('[parameters.x]\nchoices = [1]\nhook = "mesh"', r'x\.hook: only allowed together with mesh = \["dp_shard"'),
        (f'{BY_FLAGS}[parameters.tp_degree]\nchoices = [1]\nflag = "--t"', r"declared more than once: tp_degree"),
    ],
)
def test_a_hook_out_of_rule_is_refused(text: str, why: str) -> None:
    with pytest.raises(SpaceError, match=why):
        space_of(text)
