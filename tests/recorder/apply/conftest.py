"""Launches that the tests of several hooks compare theirs with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.recorder.apply.hooked_launch import PLACED, HookedLaunch, launch_hooked, unhooked_losses

if TYPE_CHECKING:
    from tests.shared_results import SharedResults


@pytest.fixture(scope="session")
def unhooked(shared_results: SharedResults) -> list[float]:
    """Return the losses of two ranks without us; every way to wrap trains the same model on the same batches."""
    return shared_results.get("unhooked", lambda _: unhooked_losses("train_wrapped.py", "ddp"))


@pytest.fixture(scope="session")
def unhooked_on_four(shared_results: SharedResults) -> list[float]:
    """Return the losses of four ranks without us."""
    return shared_results.get("unhooked_on_four", lambda _: unhooked_losses("train_wrapped.py", "ddp", n_ranks=4))


@pytest.fixture(scope="session")
def own_mesh(shared_results: SharedResults) -> HookedLaunch:
    """Launch a job with its own mesh and plan, which the hooks of both only check."""
    own = {"mesh.dp_shard": 2, "mesh.tp": 2, "sequence_parallel": True}
    plan = {f"parallelize_module.{name}": "plan" for name in PLACED}
    return shared_results.get(
        "own_mesh",
        lambda folder: launch_hooked("train_mesh.py", store=folder / "store", n_ranks=4, checked_hooks={**own, **plan}),
    )
