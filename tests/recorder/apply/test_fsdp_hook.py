from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from torchx_cubicml.recorder.apply.fsdp_hook import FsdpHook
from torchx_cubicml.recorder.apply.hooks import hook_facts
from torchx_cubicml.recorder.ranks.peers import Peers
from torchx_cubicml.records.contract import CONTRACT_VARIABLE, Contract, encode_contract
from torchx_cubicml.records.trial import State, Trial
from torchx_cubicml.settings import read_job_environment
from torchx_cubicml.store import TrialStore

pytestmark = pytest.mark.launch

JOB = Path(__file__).parents[2] / "jobs" / "train_wrapped.py"
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node")
HYBRID = ("HYBRID_SHARD", "_HYBRID_SHARD_ZERO2", "_HYBRID_SHARD_ZERO2", "HYBRID_SHARD")
MIXED = ("NO_SHARD", "FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD")


def run(how: str, *recorder: str, n_ranks: int = 2, **changes: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*TORCHRUN, str(n_ranks), *recorder, str(JOB), how],
        env={**os.environ, "OMP_NUM_THREADS": "1", **changes},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def hooked(
    how: str, strategies: str | tuple[str, ...], store: Path, *, n_ranks: int = 2
) -> tuple[Trial, list[str], list[float]]:
    """Return the trial, the warnings and the losses of a launch under the hook."""
    contract = encode_contract(Contract(store=f"file://{store}", hooks={"fsdp": strategies}))
    ended = run(how, "-m", "torchx_cubicml.recorder", "--", n_ranks=n_ranks, **{CONTRACT_VARIABLE: contract})
    assert ended.returncode == 0, ended.stderr
    (trial,) = TrialStore(str(store))
    assert trial.state is State.COMPLETED
    return (
        trial,
        [line for line in ended.stderr.splitlines() if "warning:" in line and "cubicml" in line],
        losses(ended),
    )


def test_a_torch_without_fsdp_refuses_and_is_still_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.distributed.fsdp", None)
    monkeypatch.delattr(torch.distributed, "fsdp", raising=False)
    hook = FsdpHook("FULL_SHARD", peers=Peers(read_job_environment({})), guard=lambda call: call)
    hook.install()
    assert hook_facts("fsdp", hook)["fsdp_hook"].startswith("refused: this torch has no FSDP")
    hook.release()


def losses(ended: subprocess.CompletedProcess[str]) -> list[float]:
    return [float(line.partition(" ")[2]) for line in ended.stdout.splitlines() if line.startswith("loss ")]


@pytest.fixture(scope="module")
def unhooked() -> list[float]:
    """Return the losses without us; every way to wrap trains the same model on the same batches."""
    ended = run("fsdp1-policy")
    assert ended.returncode == 0, ended.stderr
    return losses(ended)


@pytest.mark.parametrize(
    ("how", "strategies"),
    [
        ("fsdp1-policy", MIXED),
        ("fsdp1-by-hand", MIXED),
        ("fsdp1-in-constructor", MIXED),
        ("fsdp2", ("SHARD_GRAD_OP", "FULL_SHARD", "SHARD_GRAD_OP", "FULL_SHARD")),
        ("fsdp2-in-constructor", ("SHARD_GRAD_OP", "FULL_SHARD", "SHARD_GRAD_OP", "FULL_SHARD")),
    ],
)
def test_each_layer_is_sharded_as_asked_and_the_loss_is_the_same(
    how: str, strategies: tuple[str, ...], tmp_path: Path, unhooked: list[float]
) -> None:
    trial, warnings, seen = hooked(how, strategies, tmp_path)
    assert trial.observed["sharding_strategy"] == strategies
    assert "fsdp_hook" not in trial.observed
    assert ("NO_SHARD" in trial.observed["fsdp_hook_illegal"]) == how.startswith("fsdp2")
    assert warnings == []
    assert len(seen) == 9
    assert seen == pytest.approx(unhooked, abs=2e-6)


def test_one_word_counts_for_every_layer_of_a_hybrid_mesh(tmp_path: Path) -> None:
    trial, warnings, _ = hooked("fsdp2-hybrid", "_HYBRID_SHARD_ZERO2", tmp_path)
    assert warnings == []
    assert set(trial.observed["sharding_strategy"]) <= {"_HYBRID_SHARD_ZERO2", "NO_SHARD"}


@pytest.mark.parametrize(
    ("how", "strategies", "legal"),
    [
        ("fsdp1-hybrid", HYBRID, set(HYBRID)),
        ("fsdp2-hybrid", HYBRID, set(HYBRID)),
        (
            "fsdp2-in-order",
            ("FULL_SHARD_2", "FULL_SHARD", "SHARD_GRAD_OP", "FULL_SHARD_2"),
            {"FULL_SHARD_2", "FULL_SHARD", "SHARD_GRAD_OP"},
        ),
    ],
)
def test_groups_of_ranks_are_sharded_as_asked(
    how: str, strategies: tuple[str, ...], legal: set[str], tmp_path: Path
) -> None:
    trial, warnings, seen = hooked(how, strategies, tmp_path, n_ranks=4)
    assert warnings == []
    assert trial.observed["sharding_strategy"] == strategies
    assert trial.observed["dp_degree"] == 4
    assert legal.isdisjoint(trial.observed["fsdp_hook_illegal"])
    unhooked = run(how, n_ranks=4)
    assert unhooked.returncode == 0, unhooked.stderr
    assert seen == pytest.approx(losses(unhooked), abs=2e-6)


def test_ranks_that_wrap_in_different_orders_make_no_groups(tmp_path: Path) -> None:
    trial, (warning,), seen = hooked("fsdp2", ("FULL_SHARD_2",) * 4, tmp_path, n_ranks=4)
    assert "the ranks do not wrap the layers in the same order, so groups of ranks cannot be made" in warning
    assert trial.observed["sharding_strategy"] == ("FULL_SHARD",) * 4
    assert len(seen) == 9


@pytest.mark.parametrize(
    ("how", "strategies", "why"),
    [
        ("fsdp1-policy", ("NO_SHARD",) * 3, "3 layers were requested, but the model repeats 4"),
        ("fsdp2", MIXED, "fully_shard has no NO_SHARD; choose from FULL_SHARD, SHARD_GRAD_OP"),
        (
            "fsdp2-in-constructor",
            ("FULL_SHARD_2",) * 4,
            "FULL_SHARD_2 is illegal here: 2 ranks must be a part of the 2 of one copy",
        ),
        ("ranks-differ", MIXED[1:3] * 2, "the ranks do not wrap the same layers in the same way"),
    ],
)
def test_an_unsettable_strategy_runs_as_written(
    how: str, strategies: tuple[str, ...], why: str, tmp_path: Path, unhooked: list[float]
) -> None:
    trial, (warning,), seen = hooked(how, strategies, tmp_path)
    assert why in warning
    if how != "ranks-differ":
        assert trial.observed["fsdp_hook"] == f"refused: {why}"
        assert trial.observed["sharding_strategy"] == ("FULL_SHARD",) * 4
        assert seen == pytest.approx(unhooked, abs=2e-6)
