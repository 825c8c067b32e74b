"""Hooks that no call in a program's source leads to; a program that a hook serves is never among them."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchx_cubicml.advisor.hook_check import rival_doubts, uncalled_hooks
from torchx_cubicml.facts.hook_registry import hook_names, hook_spec
from torchx_cubicml.launch import Launch
from torchx_cubicml.launch.program_source import ProgramSource

JOBS = Path(__file__).parents[1] / "jobs"
FSDP, MESH, PLANS = "fsdp", "mesh", {"parallelize_module", "sequence_parallel"}


def source_of(script: Path, scheduler: str = "local_cwd") -> ProgramSource:
    return ProgramSource.of(Launch(program=str(script), scheduler=scheduler))


def refused(script: Path) -> set[str]:
    """Return the hooks that certainly do not serve a script."""
    source = source_of(script)
    return set() if source.doubt else {*uncalled_hooks(source, {name: name for name in hook_names()})}


@pytest.mark.parametrize("hook", hook_names())
def test_a_mark_of_each_hook_stands_in_the_name_of_each_call(hook: str) -> None:
    spec = hook_spec(hook)
    named = "from torchrec.distributed import " if hook.startswith("torchrec") else ""
    for name in spec.calls:
        assert any(mark in f"{named}{name}".lower() for mark in spec.marks)
    assert all(mark == mark.lower() for mark in spec.marks)


@pytest.mark.parametrize(
    ("job", "served"),
    [
        ("train_fsdp1.py", {FSDP}),
        ("train_auto_wrapped.py", {FSDP}),
        ("train_wrapped.py", {FSDP}),
        ("train_fsdp2.py", {FSDP, MESH}),
        ("train_hsdp.py", {FSDP, MESH}),
        ("train_mesh.py", {MESH, *PLANS}),
        ("train_tensor_parallel.py", {MESH, *PLANS}),
        ("train_fsdp_tp.py", {FSDP, MESH, *PLANS}),
    ],
)
def test_a_hook_that_serves_is_not_refused(job: str, served: set[str]) -> None:
    assert not served & refused(JOBS / job)


def test_a_program_under_ddp_has_nothing_for_these_hooks() -> None:
    assert refused(JOBS / "train_ddp.py") == {*hook_names()} - {"activation_checkpointing"}


@pytest.mark.parametrize(
    "text",
    [
        "from torch.distributed.fsdp import FullyShardedDataParallel as Wrapped\n",
        "from torch.distributed.fsdp import *\n",
        "import torch.distributed.fsdp as sharding\n",
        "from torch.distributed._composable import fully_shard as shard\n",
        "STRATEGY = 'FSDP'\n",
        "# wrapped in FullyShardedDataParallel elsewhere\n",
    ],
)
def test_any_mention_of_a_call_is_enough(text: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch\nimport beside\n")
    (tmp_path / "beside.py").write_text(text)
    assert FSDP not in refused(tmp_path / "train.py")
    (tmp_path / "beside.py").write_text("")
    assert FSDP in refused(tmp_path / "train.py")


def test_the_reason_names_the_calls_and_the_files(tmp_path: Path) -> None:
    names = ["a", "b", "c"]
    (tmp_path / "train.py").write_text("".join(f"import {name}\n" for name in names))
    for name in names:
        (tmp_path / f"{name}.py").write_text("")
    source = source_of(tmp_path / "train.py", "slurm")
    calls = "the program calls neither FullyShardedDataParallel nor fully_shard"
    files = ", ".join(str(tmp_path / f"{name}.py") for name in ("train", "a", "b"))
    assert uncalled_hooks(source, {"sharding": FSDP}) == {"sharding": f"{calls} (read: {files} and 1 more)"}
    assert source.doubt == ""


def test_a_plan_without_sequence_parallel_modules_is_none_to_switch_off(tmp_path: Path) -> None:
    text = "from torch.distributed.tensor.parallel import {}, parallelize_module\n"
    for style, is_served in (("SequenceParallel", True), ("ColwiseParallel", False)):
        (tmp_path / "train.py").write_text(text.format(style))
        found = refused(tmp_path / "train.py")
        assert "parallelize_module" not in found
        assert ("sequence_parallel" not in found) is is_served


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("model = torch.compile(model)\n", {"torch.compile"}),
        ("from torch.utils.checkpoint import checkpoint\n", {"utils.checkpoint"}),
        ("with torch.autocast('cuda'):\n    pass\n", {"autocast"}),
        ("step.compile()\n", set()),
    ],
)
def test_names_that_speak_against_a_hook_are_doubts(text: str, named: set[str], tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(text)
    hooks = {name: name for name in ("activation_checkpointing", "fsdp_precision", FSDP)}
    doubts = rival_doubts(source_of(tmp_path / "train.py"), hooks)
    assert {doubt.split()[3].rstrip(":") for doubt in doubts} == named
