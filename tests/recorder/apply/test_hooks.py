"""All hooks: a program that none of them serves is told so in one record, and a tune of it ends with its own config."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from torchx_cubicml.facts.hook_registry import REFUSED, hook_fact, hook_names
from torchx_cubicml.recorder.apply.hooks import hook_facts, installed
from torchx_cubicml.recorder.ranks.peers import Peers
from torchx_cubicml.settings import read_job_environment
from torchx_cubicml.store import TrialStore

if TYPE_CHECKING:
    from torchx_cubicml.records.values import Value

JOB = Path(__file__).parents[2] / "jobs" / "train_ddp.py"
OWN: dict[str, Value] = {
    "fsdp": "FULL_SHARD",
    "fsdp_precision": "fp32",
    "activation_checkpointing": "none",
    "torchrec": "planner",
    "torchrec_kernel": "planner",
    "torchrec_reserved": 0.15,
    "sequence_parallel": True,
    "mesh.tp": 1,
    "parallelize_module.up,down": "plan",
}
SPACE = """
[workload]
seq_len = 1
n_embedding_tables = 2
[parameters.sharding_strategy]
choices = ["FULL_SHARD", "SHARD_GRAD_OP"]
per_layer = 3
hook = "fsdp"
[parameters.precision]
choices = ["fp32", "bf16"]
per_layer = 3
hook = "fsdp_precision"
[parameters.activation_checkpointing]
choices = ["none", "full"]
per_layer = 4
hook = "activation_checkpointing"
[parameters.embedding_sharding]
choices = ["planner", "table_wise"]
per_table = "n_embedding_tables"
hook = "torchrec"
[parameters.embedding_kernel]
choices = ["planner", "fused"]
per_table = "n_embedding_tables"
hook = "torchrec_kernel"
[parameters.reserved_share]
choices = [0.15, 0.3]
hook = "torchrec_reserved"
[parameters.sequence_parallel]
choices = [true, false]
hook = "sequence_parallel"
[parameters.mesh]
mesh = ["dp_shard", "tp"]
hook = "mesh"
default = { tp = 1 }
[parameters.mlp_placement]
choices = ["plan", "replicated"]
modules = ["up", "down"]
hook = "parallelize_module"
"""


@pytest.mark.parametrize("only_checks", [True, False])
def test_each_hook_gives_a_reason_where_the_program_has_no_place_for_it(only_checks: bool) -> None:
    requested, checked = ({}, OWN) if only_checks else (OWN, {})
    hooks = installed(requested, checked, peers=Peers(read_job_environment({})), guard=lambda call: call)
    assert tuple(hooks) == hook_names()
    for hook in reversed(hooks.values()):
        hook.release()
    for name, hook in hooks.items():
        assert str(hook_facts(name, hook)[hook_fact(name)]).startswith(REFUSED), name


@pytest.mark.launch
def test_a_tune_whose_hooks_cannot_serve_ends_with_the_own_config(tmp_path: Path) -> None:
    text = JOB.read_text().replace("= 6, 2, 20", "= 6, 2, 60").replace("480", "4800")
    assert "= 6, 2, 60" in text
    text += "try:\n    import a_library_that_might_wrap\nexcept ImportError:\n    pass\n"
    (tmp_path / "train.py").write_text(text)
    (tmp_path / "space.toml").write_text(SPACE)
    options = ["--space", "space.toml", "--store", "store", "--budget", "5 launches"]
    ended = subprocess.run(
        ["torchx", "cubicml", "tune", *options, "--", "dist.ddp", "-j", "1x2", "--script", "train.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    refused = {line.partition(" ")[0] for line in ended.stdout.splitlines() if "its hook cannot set it: " in line}
    assert refused == {
        *("sharding_strategy", "precision", "activation_checkpointing", "embedding_sharding", "embedding_kernel"),
        *("reserved_share", "sequence_parallel", "tp_degree", "mlp_placement"),
    }
    (trial,) = TrialStore(str(tmp_path / "store"))
    assert trial.measurement is not None
    assert "no legal config is left to try" in ended.stdout + ended.stderr
