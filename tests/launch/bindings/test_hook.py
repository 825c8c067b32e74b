from __future__ import annotations

import pytest

from torchx_cubicml.errors import SpaceError
from torchx_cubicml.launch import Launch, read_config, write_config
from torchx_cubicml.launch.place_config import place_config
from torchx_cubicml.records.contract import decode_contract, encode_contract
from torchx_cubicml.records.trial import Origin
from torchx_cubicml.space.toml import parse_space

SPACE = """
[workload]
n_layers = { flag = "--layers" }
[parameters.sharding_strategy]
choices = ["FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"]
per_layer = "n_layers"
hook = "fsdp"
"""
LAUNCH = Launch(program="train.py", script_args=("--layers", "3"), world_size=2)
MIXED = ("NO_SHARD", "FULL_SHARD", "SHARD_GRAD_OP")


def test_an_undeclared_default_is_that_of_torch() -> None:
    _, config = read_config(LAUNCH, parse_space(SPACE, where="space.toml"))
    assert config == {"sharding_strategy": ("FULL_SHARD",) * 3}


def test_the_file_states_what_another_script_does() -> None:
    space = parse_space(f'{SPACE}default = "SHARD_GRAD_OP"', where="space.toml")
    assert read_config(LAUNCH, space)[1] == {"sharding_strategy": ("SHARD_GRAD_OP",) * 3}


def test_written_values_are_read_back_and_defaults_need_no_hook() -> None:
    space = parse_space(SPACE, where="space.toml")
    written = write_config(LAUNCH, space, {"sharding_strategy": MIXED})
    assert written.script_args == LAUNCH.script_args
    assert read_config(written, space)[1] == {"sharding_strategy": MIXED}
    assert write_config(written, space, read_config(LAUNCH, space)[1]) == LAUNCH


def test_the_contract_takes_it_to_the_job() -> None:
    space = parse_space(SPACE, where="space.toml")
    config = {"sharding_strategy": MIXED}
    placed = place_config(LAUNCH, space, config, store="/tmp/store", origin=Origin.TUNE)
    assert placed.contract is not None
    assert decode_contract(encode_contract(placed.contract)).hooks == {"fsdp": MIXED}


def test_the_contract_takes_every_axis_of_a_mesh_to_the_job() -> None:
    text = '[parameters.mesh]\nmesh = ["dp_shard", "tp"]\nhook = "mesh"\ndefault = { tp = 2 }\norder = true'
    space, launch = parse_space(text, where="space.toml"), Launch(program="train.py", world_size=4)
    config = read_config(launch, space)[1] | {"dp_shard_degree": 4, "tp_degree": 1}
    placed = place_config(launch, space, config, store="/tmp/store", origin=Origin.TUNE)
    assert placed.contract is not None
    sent = decode_contract(encode_contract(placed.contract))
    assert sent.hooks == {"mesh.dp_shard": 4, "mesh.tp": 1}
    assert sent.checked_hooks == {"mesh.order": "dp_shard,tp"}


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        (
            '"fsdp"',
            '"ddp"',
            r"sharding_strategy\.hook: unknown hook 'ddp'; (did you mean 'fsdp'\? \()?choose from activation_",
        ),
        (
            '"NO_SHARD"',
            '"HYBRID_SHARD"',
            "needs choices from FULL_SHARD, SHARD_GRAD_OP, NO_SHARD, .*FULL_SHARD_64, or from HYBRID_SHARD",
        ),
        (
            'hook = "fsdp"',
            'hook = "fsdp"\nflag = "--sharding"',
            "needs exactly one of flag, env, hook",
        ),
        ('flag = "--layers"', 'hook = "fsdp"', r"workload\.n_layers.*hook"),
        (
            'choices = ["FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"]\nper_layer = "n_layers"',
            'derive = "1"',
            "needs choices",
        ),
        ('hook = "fsdp"', 'hook = "fsdp"\n[parameters.b]\nchoices = ["NO_SHARD"]\nhook = "fsdp"', "both bound to hook"),
    ],
    ids=["unknown-hook", "mixed-families", "two-places", "a-fact", "derived", "twice"],
)
def test_mistakes_in_the_file_are_reported(before: str, after: str, why: str) -> None:
    with pytest.raises(SpaceError, match=why):
        parse_space(SPACE.replace(before, after), where="space.toml")
