"""Names under which scripts make the axes of a device mesh."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

AXIS_NAMES: dict[str, frozenset[str]] = {
    "dp_replicate": frozenset({"dp_replicate", "replicate", "ddp"}),
    "dp_shard": frozenset({"dp_shard", "shard", "fsdp", "dp_shard_cp"}),
    "dp": frozenset({"dp", "data", "data_parallel"}),
    "tp": frozenset({"tp", "tensor", "tensor_parallel", "model", "model_parallel", "mp"}),
    "pp": frozenset({"pp", "pipe", "pipeline", "pipeline_parallel"}),
    "cp": frozenset({"cp", "context", "context_parallel"}),
    "ep": frozenset({"ep", "expert", "expert_parallel"}),
    "etp": frozenset({"etp", "expert_tensor_parallel"}),
}
"""Axis of a device mesh -> its names in torch's examples and in the trainers built on them."""

MESH_AXES = ("dp_replicate", "dp_shard", "dp", "tp", "pp", "cp")
"""Axes that a space file can declare; the size of each is ``tp_degree`` and so on."""


def mesh_axis(name: str) -> str:
    """Return the axis of a space file that has a name in a script; empty if the name tells none.

    >>> [mesh_axis(name) for name in ("fsdp", "TP", "x")]
    ['dp_shard', 'tp', '']
    """
    return next((axis for axis in MESH_AXES if name.lower() in AXIS_NAMES[axis]), "")


def mesh_text(axes: Sequence[str], sizes: Sequence[int]) -> str:
    """Return shape and order of a mesh; sizes alone without names.

    >>> mesh_text(["dp", "tp"], [4, 2]), mesh_text([], [4, 2])
    ('dp=4,tp=2', '4,2')
    """
    named = (f"{axis}={size}" for axis, size in zip(axes, sizes, strict=True))
    return ",".join(named if axes else map(str, sizes))
