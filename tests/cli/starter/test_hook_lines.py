"""The one commented block of hooks, for FSDP, recomputation, meshes, plans and embedding tables."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from torchx_cubicml.cli.starter import RecordedLaunches, starter_space
from torchx_cubicml.launch import Launch, read_config
from torchx_cubicml.records.trial import Origin, Trial
from torchx_cubicml.space.toml import parse_space

if TYPE_CHECKING:
    from torchx_cubicml.records.values import Config
    from torchx_cubicml.space import SearchSpace

FSDP1 = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\nmodel = FSDP(model)\n"
FSDP2 = "from torch.distributed.fsdp import fully_shard\nfully_shard(model)\n"
OWN = "from torch.utils.checkpoint import checkpoint\n"
COMPILED = "import torch\nmodel = torch.compile(model)\n"
MESH = "from torch.distributed.device_mesh import DeviceMesh, init_device_mesh as make\n"
PLAN = "from torch.distributed.tensor.parallel import SequenceParallel, parallelize_module\n"
TABLES = "import torchrec\n"
JOB = Path(__file__).parents[2] / "jobs" / "train_fsdp_tp.py"


def offered(program: Path, *args: str, trials: tuple[Trial, ...] = (), help_text: str = "") -> str:
    """Return the block, uncommented; empty where nothing is offered."""
    launch = Launch(program=str(program), script_args=args, world_size=4)
    text = starter_space(launch, help_text, RecordedLaunches(trials=trials))
    block = text.partition("# What no flag sets, a hook can set inside the job")[2].split("\n\n")[0]
    return "\n".join(line.removeprefix("# ") for line in block.splitlines()[1:])


def offered_to(folder: Path, source: str, *args: str, help_text: str = "") -> str:
    (folder / "train.py").write_text(source)
    return offered(folder / "train.py", *args, help_text=help_text)


def read(block: str, *args: str, facts: str = "") -> tuple[SearchSpace, Config]:
    space = parse_space(facts + block, where="starter.toml")
    return space, read_config(Launch(program="x.py", script_args=args, world_size=4), space)[1]


@pytest.mark.parametrize("source", [FSDP1, FSDP2], ids=["FSDP1", "FSDP2"])
@pytest.mark.parametrize("args", [(), ("--n_layers", "3")], ids=["unknown layers", "layers"])
def test_layers_have_a_value_each_where_a_fact_counts_them(source: str, args: tuple[str, ...], tmp_path: Path) -> None:
    block = offered_to(tmp_path, source, *args)
    _, config = read(block, *args, facts='[workload]\nn_layers = { flag = "--n_layers" }\n' if args else "")
    own = {"sharding_strategy": "FULL_SHARD", "activation_checkpointing": "none"}
    assert config == {name: (value,) * 3 if args else value for name, value in own.items()}
    assert ("NO_SHARD" in block) == (source == FSDP1)


@pytest.mark.parametrize(
    ("source", "args", "hooks"),
    [
        ("import torch\n", (), []),
        (FSDP1 + OWN, (), ["fsdp"]),
        (FSDP2 + COMPILED, (), ["fsdp"]),
        (FSDP2 + "import torch\ntorch.compiler.disable(f)\n", (), ["activation_checkpointing", "fsdp"]),
        (FSDP1, ("--sharding", "FULL_SHARD"), ["activation_checkpointing"]),
        (FSDP1 + OWN, ("--sharding", "FULL_SHARD"), []),
        (PLAN, (), ["sequence_parallel"]),
        (
            PLAN + "parallelize_module(m, mesh, {'a': ColwiseParallel()})\n",
            (),
            ["parallelize_module", "sequence_parallel"],
        ),
        (TABLES, (), ["torchrec"]),
        ("from .torchrec import x\nimport torchrecords\n", (), []),
    ],
)
def test_a_hook_is_offered_for_the_calls_that_it_changes_and_no_flag_sets(
    source: str, args: tuple[str, ...], hooks: list[str], tmp_path: Path
) -> None:
    block = offered_to(tmp_path, source, *args)
    assert [line.split('"')[1] for line in block.splitlines() if line.startswith("hook = ")] == hooks
    assert bool(block) == bool(hooks)


def test_all_hooks_of_a_script_with_mesh_and_plans_make_a_space() -> None:
    block = offered(JOB)
    _, config = read(block)
    assert (config["tp_degree"], config["dp_degree"]) == (1, 4)
    assert (config["parallelize_module"], config["sequence_parallel"]) == ("plan", True)
    assert "write the script's own sizes here" in block
    assert 'modules = ["embedding", "layers.*.up", "layers.*.down", "head"] # keep those that go together' in block


def test_a_plan_is_told_from_a_table_of_styles(tmp_path: Path) -> None:
    styles = "STYLES = {'col': ColwiseParallel, 'row': RowwiseParallel, 'x': ColwiseParallel}\n"
    plan = "parallelize_module(m, mesh, {'': ColwiseParallel(), 'a.w1': ColwiseParallel()})\n"
    assert 'modules = ["a.w1"]' in offered_to(tmp_path, PLAN + styles + plan)


@pytest.mark.parametrize(
    ("source", "mesh"),
    [
        ('m = make("cpu", (4, 2), mesh_dim_names=("fsdp", "TP"))', ('["dp_shard", "tp"]', "{ tp = 1 }")),
        ('n = ["dp", "cp"]\nm = make("cpu", (-1, n_cp), mesh_dim_names=n)', ('["dp", "cp"]', "{ cp = 1 }")),
        ('m = DeviceMesh("cpu", ranks, mesh_dim_names=("pp", "shard"))', ('["pp", "dp_shard"]', "{ pp = 1 }")),
        (
            'm = make("cpu", s, mesh_dim_names=("ddp", "fsdp"))',
            ('["dp_replicate", "dp_shard"]', "{ dp_replicate = 1 }"),
        ),
    ],
)
def test_a_mesh_has_the_axes_of_the_source(source: str, mesh: tuple[str, str], tmp_path: Path) -> None:
    block = offered_to(tmp_path, f"{MESH}{source}\n")
    assert f"mesh = {mesh[0]}\n" in block
    assert f"default = {mesh[1]} # write" in block
    assert read(block)[0].parameters


@pytest.mark.parametrize(
    "source",
    [
        'make("cpu", (4,), mesh_dim_names=("tp",))',
        'make("cpu", (2, 2))',
        'make("cpu", (2, 2), mesh_dim_names=names)',
        'make("cpu", (2, 2), mesh_dim_names=("x", "tp"))',
        'make("cpu", (2, 2), mesh_dim_names=("tp", "model"))',
        'make("cpu", (2, 2), mesh_dim_names=("dp", "tp"))\nmake("cpu", (2, 2), mesh_dim_names=("dp", "cp"))',
        'make("cpu", (2, 2), mesh_dim_names=("dp", "fsdp"))',  # two names for one axis
        'make("cpu", (2, 2), mesh_dim_names=("dp", "tp")',
    ],
)
def test_a_mesh_of_unknown_axes_is_not_offered(source: str, tmp_path: Path) -> None:
    assert not offered_to(tmp_path, f"{MESH}{source}\n")


def test_a_recorded_launch_tells_the_sizes_of_a_mesh(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(f'{MESH}make("cpu", sizes(), mesh_dim_names=("dp", "tp"))\n')
    first = Trial.completed(workload={}, config={}, tokens_per_second=1.0)
    trials = tuple(replace(first, observed={"tp_degree": size}, origin=Origin.USER) for size in (4, 2))
    trials = (*trials, replace(first, observed={"tp_degree": 8}, origin=Origin.TUNE))  # set by a hook, perhaps
    block = offered(tmp_path / "train.py", trials=trials)
    assert "default = { tp = 2 } # as recorded" in block
    assert read(block)[1]["tp_degree"] == 2


def test_a_mesh_with_a_flag_for_an_axis_is_not_offered(tmp_path: Path) -> None:
    source = f'{MESH}make("cpu", (2, 2), mesh_dim_names=("dp", "tp"))\n'
    assert offered_to(tmp_path, source)
    assert not offered_to(tmp_path, source, "--tensor-model-parallel-size", "2")


@pytest.mark.parametrize("source", [TABLES, "import torchrec.distributed as t\n", "from torchrec.modules import x\n"])
def test_each_embedding_table_has_a_choice(source: str, tmp_path: Path) -> None:
    space, config = read(offered_to(tmp_path, source))
    assert config == {"embedding_sharding": ("planner",)}
    (parameter,) = space.parameters
    assert parameter.choices == ("planner", "data_parallel", "table_wise", "row_wise", "column_wise")
    assert (parameter.binding and parameter.binding.name, parameter.per_table) == ("torchrec", 1)


def test_a_flag_of_the_script_for_its_tables_is_used(tmp_path: Path) -> None:
    described = "options:\n  --sharding KIND  how tables are sharded (default: planner)\n"
    block = offered_to(tmp_path, TABLES, help_text=described)
    assert 'flag = "--sharding"' in block
    assert "hook = " not in block
    assert read(block)[1] == {"embedding_sharding": ("planner",)}
    assert read(block, "--sharding", "row_wise")[1] == {"embedding_sharding": ("row_wise",)}
    assert "hook = " in offered_to(tmp_path, TABLES, help_text=described.replace("planner", "FULL_SHARD"))
    listed = described.replace("KIND ", "{planner,row_wise} ")
    assert 'choices = ["planner", "row_wise"]' in offered_to(tmp_path, TABLES, help_text=listed)
    assert "hook = " not in offered_to(tmp_path, TABLES, "--sharding", "row_wise,planner", help_text=described)


def test_a_recorded_launch_counts_the_tables(tmp_path: Path) -> None:
    first = Trial.completed(workload={}, config={}, tokens_per_second=1.0)
    counted = (first, replace(first, observed={"n_embedding_tables": 26}))
    block = offered(tmp_path / "elsewhere.py", trials=counted)
    assert "per_table = 26 # number of tables;" in block
    assert not offered(tmp_path / "elsewhere.py", trials=(first,))


def test_a_module_beside_the_script_counts(tmp_path: Path) -> None:
    (tmp_path / "tables.py").write_text("from torchrec import EmbeddingBagCollection\n")
    assert "torchrec" in offered_to(tmp_path, "import tables\n")
