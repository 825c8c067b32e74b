"""The FSDP hook in real launches, together with the hook of activation checkpointing, which changes no loss."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest
import torch

from tests.recorder.apply.hooked_launch import HookedLaunch, launch_hooked
from torchx_cubicml.recorder.apply.fsdp_hook import FsdpHook
from torchx_cubicml.recorder.apply.hooks import hook_facts
from torchx_cubicml.recorder.ranks.peers import Peers
from torchx_cubicml.settings import read_job_environment

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.launch

JOB = "train_wrapped.py"
HYBRID = ("HYBRID_SHARD", "_HYBRID_SHARD_ZERO2", "_HYBRID_SHARD_ZERO2", "HYBRID_SHARD")
MIXED = ("NO_SHARD", "FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD")
RECOMPUTED = ("full", "none", "full", "none")


def hooked(
    how: str, strategies: str | tuple[str, ...], store: Path, *, n_ranks: int = 2, **hooks: tuple[str, ...]
) -> HookedLaunch:
    return launch_hooked(JOB, how, store=store, n_ranks=n_ranks, hooks={"fsdp": strategies, **hooks})


def test_a_torch_without_fsdp_refuses_and_is_still_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.distributed.fsdp", None)
    monkeypatch.delattr(torch.distributed, "fsdp", raising=False)
    hook = FsdpHook("FULL_SHARD", peers=Peers(read_job_environment({})), guard=lambda call: call)
    hook.install()
    assert hook_facts("fsdp", hook)["fsdp_hook"].startswith("refused: this torch has no FSDP")
    hook.release()


@pytest.mark.parametrize(
    ("how", "strategies"),
    [
        ("fsdp1-by-hand", MIXED),
        ("fsdp1-in-constructor", MIXED),
        ("fsdp2", ("SHARD_GRAD_OP", "FULL_SHARD", "SHARD_GRAD_OP", "FULL_SHARD")),
    ],
)
def test_each_layer_is_sharded_and_recomputed_as_asked_and_the_loss_is_the_same(
    how: str, strategies: tuple[str, ...], tmp_path: Path, unhooked: list[float]
) -> None:
    """``test_fsdp_precision_hook.py`` has other ways to wrap."""
    ended = hooked(how, strategies, tmp_path, activation_checkpointing=RECOMPUTED)
    observed = ended.trial.observed
    assert observed["sharding_strategy"] == strategies
    assert (observed["activation_checkpointing"], observed["checkpointed_modules"]) == (RECOMPUTED, 2)
    assert not {"fsdp_hook", "activation_checkpointing_hook"} & observed.keys()
    assert ("NO_SHARD" in observed["fsdp_hook_illegal"]) == how.startswith("fsdp2")
    assert ended.warnings == []
    assert len(ended.losses) == 9
    assert ended.losses == pytest.approx(unhooked, abs=2e-6)


@pytest.mark.parametrize(
    ("how", "strategies", "legal"),
    [
        ("fsdp1-hybrid", HYBRID, set(HYBRID)),
        ("fsdp2-hybrid", "_HYBRID_SHARD_ZERO2", set(HYBRID)),  # one word for every layer
        (
            "fsdp2-in-order",
            ("FULL_SHARD_2", "FULL_SHARD", "SHARD_GRAD_OP", "FULL_SHARD_2"),
            {"FULL_SHARD_2", "FULL_SHARD", "SHARD_GRAD_OP"},
        ),
    ],
)
def test_groups_of_ranks_are_sharded_as_asked(
    how: str, strategies: str | tuple[str, ...], legal: set[str], tmp_path: Path, unhooked_on_four: list[float]
) -> None:
    ended = hooked(how, strategies, tmp_path, n_ranks=4)
    assert ended.warnings == []
    expected = (strategies,) * 4 if isinstance(strategies, str) else strategies
    observed, copies = ended.trial.observed, 2 if how.endswith("hybrid") else 1
    assert observed == {
        **observed,
        "sharding_strategy": expected,
        "dp_degree": 4,
        "dp_replicate_degree": copies,
        "dp_shard_degree": 4 // copies,
        "n_params": 40 * 16 + 4 * (16 * 32 + 32 + 32 * 16 + 16) + 16 * 40 + 40,
        "global_batch_size": 4 * 2,
        **({"mesh_axes": ("dp_replicate", "dp_shard"), "mesh_sizes": (2, 2), "tp_degree": 1} if copies > 1 else {}),
    }
    assert legal.isdisjoint(observed["fsdp_hook_illegal"])
    assert ended.losses == pytest.approx(unhooked_on_four, abs=2e-6)


def test_ranks_that_wrap_in_different_orders_make_no_groups(tmp_path: Path) -> None:
    ended = hooked("fsdp2", ("FULL_SHARD_2",) * 4, tmp_path, n_ranks=4)
    (warning,) = ended.warnings
    assert "the ranks do not wrap the layers in the same order, so groups of ranks cannot be made" in warning
    assert ended.trial.observed["sharding_strategy"] == ("FULL_SHARD",) * 4
    assert len(ended.losses) == 9


def test_an_unsettable_strategy_runs_as_written(tmp_path: Path, unhooked: list[float]) -> None:
    """``test_fsdp_hook_calls.py`` has the other reasons."""
    why = "3 layers were requested, but the model repeats 4"
    ended = hooked("fsdp1-policy", ("NO_SHARD",) * 3, tmp_path)
    (warning,) = ended.warnings
    assert why in warning
    assert ended.trial.observed["fsdp_hook"] == f"refused: {why}"
    assert ended.trial.observed["sharding_strategy"] == ("FULL_SHARD",) * 4
    assert ended.losses == pytest.approx(unhooked, abs=2e-6)


def test_ranks_that_wrap_different_layers_run_as_written(tmp_path: Path) -> None:
    (warning,) = hooked("ranks-differ", MIXED[1:3] * 2, tmp_path).warnings
    assert "the ranks do not wrap the same layers in the same way" in warning
