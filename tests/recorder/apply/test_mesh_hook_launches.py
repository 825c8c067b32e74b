"""The hooks of meshes and plans in real launches of one job, whose loss is the same under each mesh and plan.

Two processes serve where they show the same as four.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.recorder.apply.hooked_launch import PLACED, HookedLaunch, launch_hooked

if TYPE_CHECKING:
    from pathlib import Path

    from torchx_cubicml.records.values import Value

pytestmark = pytest.mark.launch

OWN: dict[str, Value] = {"mesh.dp_shard": 2, "mesh.tp": 2}


def launched(store: Path, how: str = "plain", *, n_ranks: int = 4, **contract: dict[str, Value]) -> HookedLaunch:
    return launch_hooked("train_mesh.py", how, store=store, n_ranks=n_ranks, by_torchrun=n_ranks == 2, **contract)


def placed(*placements: Value) -> dict[str, Value]:
    """Return hooks that place the modules of the plan so."""
    return {f"parallelize_module.{name}": placement for name, placement in zip(PLACED, placements, strict=True)}


def printed(ended: HookedLaunch) -> tuple[str, str]:
    """Return the mesh and the length of the sequences between layers, as the job printed them."""
    mesh, sequence = (line for line in ended.lines if line.startswith(("mesh ", "sequence ")))
    return mesh, sequence


def test_a_launch_with_the_own_values_is_as_it_was(own_mesh: HookedLaunch) -> None:
    assert printed(own_mesh) == ("mesh 2 2 [0, 1]", "sequence 4")
    assert len(own_mesh.losses) == 10
    observed = own_mesh.trial.observed
    assert observed["sequence_parallel"] is True
    assert observed["mesh_order"] == "dp_shard,tp"
    assert not {"mesh_hook", "sequence_parallel_hook", "parallelize_module_hook"} & observed.keys()
    assert "layers.*.up.weight Shard(0)" in str(observed["tp_plan"])
    assert own_mesh.warnings == []


@pytest.mark.parametrize(
    ("how", "n_ranks", "hooks", "mesh", "sequence", "placements"),
    [
        (
            "plain",
            4,
            {"mesh.dp_shard": 1, "mesh.tp": 4, **placed("rowwise", "replicated", "replicated")},
            "mesh 1 4 [0, 1, 2, 3]",
            2,
            ("Shard(1)", "Shard(1)", "Replicate", "Replicate"),
        ),
        (
            "by-ranks",
            4,
            {
                **OWN,
                "mesh.order": "tp,dp_shard",
                "sequence_parallel": False,
                **placed("replicated", "colwise", "rowwise"),
            },
            "mesh 2 2 [0, 2]",
            8,
            ("Replicate", "Replicate", "Shard(1)", "Shard(1)"),
        ),
        ("unflattened", 2, {"mesh.dp_shard": 2, "mesh.tp": 1}, "mesh 2 1 [0]", 8, ()),
    ],
    ids=["more tensor parallel", "by ranks, another order, whole sequences", "unflattened, more data parallel"],
)
def test_a_launch_has_the_requested_mesh_and_plan_and_the_same_loss(
    how: str,
    n_ranks: int,
    hooks: dict[str, Value],
    mesh: str,
    sequence: int,
    placements: tuple[str, ...],
    tmp_path: Path,
    own_mesh: HookedLaunch,
) -> None:
    ended = launched(tmp_path, how, n_ranks=n_ranks, hooks=hooks)
    observed = ended.trial.observed
    assert printed(ended) == (mesh, f"sequence {sequence}")
    assert ended.losses == pytest.approx(own_mesh.losses, abs=2e-6)
    assert (observed["dp_shard_degree"], observed["tp_degree"]) == (hooks["mesh.dp_shard"], hooks["mesh.tp"])
    assert observed.get("mesh_order") == hooks.get("mesh.order", observed.get("mesh_order"))
    assert "sequence_parallel" not in hooks or observed["sequence_parallel"] is False
    modules = ("layers.*.up", "layers.*.down", "embedding", "head")
    for module, placement in zip(modules, placements, strict=bool(placements)):
        assert f"{module}.weight {placement}" in str(observed["tp_plan"])
    assert not {"mesh_hook", "sequence_parallel_hook", "parallelize_module_hook"} & observed.keys()
    assert ended.warnings == []


def test_a_launch_whose_samples_do_not_follow_the_mesh_says_so(tmp_path: Path) -> None:
    """``test_mesh_samples.py`` has the other cases, and ``test_mesh_hook.py`` what is refused before a change."""
    ended = launched(tmp_path, "ranks-by-hand", hooks={"mesh.dp_shard": 4, "mesh.tp": 1})
    why = "data-parallel ranks train on the same samples"
    assert f"refused: after the change, {why}" in str(ended.trial.observed["mesh_hook"])
    assert why in " ".join(ended.warnings)
