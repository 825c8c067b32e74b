"""Offers of hooks for the mesh and the plans that a script makes."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchx_cubicml.cli.starter import starter_space
from torchx_cubicml.launch import Launch, read_config
from torchx_cubicml.space.toml import parse_space

IMPORT = "from torch.distributed.device_mesh import DeviceMesh, init_device_mesh as make\n"
JOB = Path(__file__).parents[2] / "jobs" / "train_fsdp_tp.py"


def offered(program: Path, *args: str) -> list[str]:
    """Return the lines of the offer, uncommented."""
    launch = Launch(program=str(program), script_args=args, world_size=4)
    _, _, offer = starter_space(launch, "").partition("# No flag sets these.")
    return [line.removeprefix("# ") for line in offer.split("\n\n")[0].splitlines()[1:]]


def test_the_offer_is_a_space_once_it_is_uncommented() -> None:
    lines = offered(JOB)
    space = parse_space("\n".join(lines), where="space.toml")
    _, config = read_config(Launch(program=str(JOB), world_size=4), space)
    assert (config["tp_degree"], config["dp_degree"]) == (2, 2)
    assert config["layers_placement"] == "plan"
    assert config["sequence_parallel"] is True
    assert 'modules = ["layers.*.up", "layers.*.down"]' in lines


@pytest.mark.parametrize(
    ("source", "mesh"),
    [
        ('m = make("cpu", (4, 2), mesh_dim_names=("fsdp", "TP"))', ('["dp_shard", "tp"]', "{ tp = 2 } # as in the sc")),
        ('n = ["dp", "cp"]\nm = make("cpu", (-1, n_cp), mesh_dim_names=n)', ('["dp", "cp"]', "{ cp = 1 } # write the")),
        ('m = DeviceMesh("cpu", ranks, mesh_dim_names=("shard", "pp"))', ('["dp_shard", "pp"]', "{ pp = 1 } # write")),
        ('x = f(x)\nm = make("cpu", (2, 2), mesh_dim_names=("dp", "tp"))', ('["dp", "tp"]', "{ tp = 2 } # as in")),
        ('m = w()._unflatten(0, (2, 2), ("dp", "tp"))', ('["dp", "tp"]', "{ tp = 2 } # as in")),
    ],
)
def test_the_mesh_of_the_source_is_offered(source: str, mesh: tuple[str, str], tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(IMPORT + source + "\n")
    lines = offered(script)
    assert (lines[1], lines[2]) == (f"mesh = {mesh[0]}", 'hook = "mesh"')
    assert lines[3].startswith(f"default = {mesh[1]}")
    assert parse_space("\n".join(lines), where="space.toml").parameters


@pytest.mark.parametrize(
    "source",
    [
        'make("cpu", (4,), mesh_dim_names=("tp",))',
        'make("cpu", (2, 2))',
        'make("cpu", (2, 2), mesh_dim_names=names)',
        'make("cpu", (2, 2), mesh_dim_names=("x", "tp"))',
        'make("cpu", (2, 2), mesh_dim_names=("tp", "model"))',
        'make("cpu", (2, 2), mesh_dim_names=("dp", "fsdp"))',
        'make("cpu", (2, 2), mesh_dim_names=("dp", "tp"))\nmake("cpu", (2, 2), mesh_dim_names=("dp", "cp"))',
        'make("cpu", (2, 2), mesh_dim_names=("dp", "tp")',
    ],
)
def test_another_mesh_is_not_offered(source: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(IMPORT + source + "\n")
    assert offered(script) == []


def test_what_a_flag_sets_is_not_offered(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(IMPORT + 'm = make("cpu", (2, 2), mesh_dim_names=("dp", "tp"))\n')
    assert offered(script)
    assert offered(script, "--tensor-model-parallel-size", "2") == []
