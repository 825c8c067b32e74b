from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from torchx_cubicml.cli.starter import starter_space
from torchx_cubicml.cli.starter.embedding_tables import table_lines
from torchx_cubicml.cli.starter.script_flag import ScriptFlag
from torchx_cubicml.launch import Launch, read_config
from torchx_cubicml.records.trial import Trial
from torchx_cubicml.space.toml import parse_space

if TYPE_CHECKING:
    from pathlib import Path


def launch(folder: Path, source: str, *args: str) -> Launch:
    (folder / "train.py").write_text(source)
    return Launch(program=str(folder / "train.py"), script_args=args, world_size=2)


SOURCES = ["import torchrec", "import torchrec.distributed as t", "from torchrec.modules import embedding_modules"]


@pytest.mark.parametrize("source", SOURCES)
def test_uncommented_each_table_has_a_choice(tmp_path: Path, source: str) -> None:
    user = launch(tmp_path, source)
    lines = table_lines(user, [])
    assert "\n".join(lines) in starter_space(user, "")
    space = parse_space("\n".join(line.removeprefix("# ") for line in lines[1:]), where="starter.toml")
    _, config = read_config(user, space)
    assert config == {"embedding_sharding": ("planner",)}
    (parameter,) = space.parameters
    assert parameter.choices == ("planner", "data_parallel", "table_wise", "row_wise", "column_wise")
    assert (parameter.binding and parameter.binding.name, parameter.per_table) == ("torchrec", 1)


def test_a_flag_of_the_script_is_used_as_it_is_typed(tmp_path: Path) -> None:
    user = launch(tmp_path, "import torchrec", "--sharding", "mixed,row_wise,row_wise")
    flag = ScriptFlag(name="--sharding", meaning="sharding_strategy", present="mixed,row_wise,row_wise", default="tw")
    space = parse_space("\n".join(line[2:] for line in table_lines(user, [flag])[1:]), where="starter.toml")
    assert read_config(user, space)[1] == {"embedding_sharding": ("mixed", "row_wise", "row_wise")}
    (parameter,) = space.parameters
    assert parameter.choices == ("mixed", "row_wise", "planner", "data_parallel", "table_wise", "column_wise")
    assert (parameter.per_table, parameter.default) == (3, "tw")
    listed = ScriptFlag(name="--sharding", meaning="sharding_strategy", choices=("tw", "rw"))
    assert '# choices = ["tw", "rw"]' in table_lines(user, [listed])


@pytest.mark.parametrize("flag", [{"present": "FULL_SHARD"}, {"choices": ("NO_SHARD", "other")}, {"file": "x.json"}])
def test_a_flag_of_fsdp_says_nothing_of_tables(tmp_path: Path, flag: dict[str, object]) -> None:
    lines = table_lines(
        launch(tmp_path, "import torchrec"), [ScriptFlag(name="--sharding", meaning="sharding_strategy", **flag)]
    )
    assert lines[-1] == '# hook = "torchrec" # the script needs no flag for it'


def test_a_module_beside_the_script_counts(tmp_path: Path) -> None:
    (tmp_path / "tables.py").write_text("from torchrec import EmbeddingBagCollection")
    assert table_lines(launch(tmp_path, "import tables"), [])
    assert not table_lines(launch(tmp_path, "import torch\nfrom .torchrec import x\nimport torchrecords"), [])


def test_a_recorded_launch_counts_the_tables() -> None:
    first = Trial.completed(workload={}, config={}, tokens_per_second=1.0)
    trials = [first, replace(first, observed={"n_embedding_tables": 26})]
    lines = table_lines(Launch(program="elsewhere.py"), [], trials)
    assert lines[0] == "# TorchRec shards the embedding tables of this script. Uncomment this:"
    assert any(line.startswith("# per_table = 26 #") for line in lines)
    assert table_lines(Launch(program="elsewhere.py"), [], [first]) == []
