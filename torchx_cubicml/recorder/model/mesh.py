"""Device mesh of a live model: its axes, and the degrees of tensor, context and expert parallelism."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from torchx_cubicml.recorder.model.live_objects import live_instances_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import nn

    from torchx_cubicml.records.trial import Value

# Names of the axes in torch's own examples and in the trainers that are built on them.
_TENSOR = frozenset({"tp", "tensor", "tensor_parallel", "model", "model_parallel", "mp"})
_CONTEXT = frozenset({"cp", "context", "context_parallel"})
_EXPERT = frozenset({"ep", "expert", "expert_parallel"})
_DATA = frozenset(
    {"dp", "data", "data_parallel", "ddp", "fsdp", "dp_replicate", "dp_shard", "replicate", "shard", "dp_shard_cp"}
)
_MAX_PLAN = 64  # kinds of distributed parameters
_MAX_PLAN_TEXT = 2000  # characters
_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")  # number of a layer, between dots
_WRAPPERS = re.compile(r"\b(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module|module)\.")


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshLayout:
    """Layout of ranks, read from device meshes.

    Args:
        axes: names of the axes of the widest mesh, outermost first; empty without a mesh or without names.
        sizes: of these axes; empty without a mesh.
        tp_degree: ranks that share the work on one sample; ``None`` if the purpose of an axis is unknown.
        cp_degree: ranks that share one sequence, 1 without such an axis.
        ep_degree: ranks that share a layer's experts, likewise.
        plan: tensor-parallel placement of each kind of parameter, such as ``layers.*.wq.weight Shard(0)``.
    """

    axes: tuple[str, ...] = ()
    sizes: tuple[int, ...] = ()
    tp_degree: int | None = 1
    cp_degree: int = 1
    ep_degree: int = 1
    plan: tuple[str, ...] = ()

    def data_parallel(self, world_size: int, *, pp_degree: int = 1) -> int | None:
        """Return the degree of data parallelism: ranks, or groups, with batches of their own; ``None`` if unknown."""
        if self.tp_degree is None:
            return None
        others = self.tp_degree * self.cp_degree * pp_degree
        return world_size // others if world_size % others == 0 else None

    def facts(self) -> dict[str, Value]:
        """Return the known facts under their standard names."""
        known: dict[str, Value | None] = {
            "mesh_axes": self.axes or None,
            "mesh_sizes": self.sizes or None,
            "tp_degree": self.tp_degree,
            "cp_degree": self.cp_degree if self.tp_degree is not None else None,
            "ep_degree": self.ep_degree if self.tp_degree is not None else None,
            "tp_plan": "; ".join(self.plan)[:_MAX_PLAN_TEXT]
            or None,  # one text, as a predictor gains little from its parts
        }
        return {name: value for name, value in known.items() if value is not None}


def read_layout(root: nn.Module, *, data_meshes: Iterable[object] = ()) -> MeshLayout:
    """Read the layout of a model's parameters on the device meshes of this process.

    Args:
        root: the model, or this rank's part of it.
        data_meshes: meshes that ``fully_shard`` uses, whose axes are for data parallelism.
    """
    distributed = [(name, parameter) for name, parameter in root.named_parameters() if _mesh_of(parameter) is not None]
    data = list(data_meshes)
    meshes = [*{id(mesh): mesh for mesh in map(_mesh_of, (parameter for _, parameter in distributed))}.values()]
    live = live_instances_of("torch.distributed.device_mesh", "DeviceMesh")
    named = _named_sizes([_root_of(mesh) for mesh in (*meshes, *data)] + live)
    widest = max(map(_root_of, (*meshes, *data, *live)), key=_ndim, default=None)
    tensor_axes = [_tensor_axes(mesh, data) for mesh in meshes]
    return MeshLayout(
        axes=_names(widest),
        sizes=_sizes(widest),
        tp_degree=None if None in tensor_axes else _tensor_degree(meshes, tensor_axes, named),
        cp_degree=_named_degree(named, _CONTEXT),
        ep_degree=_named_degree(named, _EXPERT),
        plan=_plan(distributed, {id(mesh): axes or () for mesh, axes in zip(meshes, tensor_axes, strict=True)}),
    )


def _tensor_axes(mesh: object, data: Sequence[object]) -> tuple[int, ...] | None:
    """Return the tensor-parallel axes of a parameter's mesh; ``None`` if their purpose is unknown."""
    names = _names(mesh)
    if any(other is mesh or other == mesh for other in data):
        return ()
    if not names:
        return (0,) if _ndim(mesh) == 1 else None
    data_names = _DATA.union(*map(_names, data))
    return tuple(index for index, name in enumerate(names) if name not in data_names | _EXPERT | _CONTEXT)


def _tensor_degree(
    meshes: Sequence[object], axes: Sequence[tuple[int, ...] | None], named: Sequence[tuple[str, int]]
) -> int:
    degrees = [
        prod(_sizes(mesh)[axis] for axis in mesh_axes or ()) for mesh, mesh_axes in zip(meshes, axes, strict=True)
    ]
    return max(*degrees, _named_degree(named, _TENSOR), 1) if degrees else _named_degree(named, _TENSOR)


def _plan(distributed: Sequence[tuple[str, nn.Parameter]], axes: dict[int, tuple[int, ...]]) -> tuple[str, ...]:
    plan: dict[str, None] = {}
    for name, parameter in distributed:
        placements = getattr(parameter, "placements", ())
        texts = [_placement(placements[axis]) for axis in axes[id(_mesh_of(parameter))] if axis < len(placements)]
        if texts:
            plan[f"{_NUMBER.sub('*', _WRAPPERS.sub('', name))} {' '.join(texts)}"] = None
    return tuple(plan)[:_MAX_PLAN]


def _placement(placement: object) -> str:
    dim = getattr(placement, "dim", None)
    return type(placement).__name__ if dim is None else f"{type(placement).__name__}({dim})"


def _named_sizes(meshes: Iterable[object]) -> list[tuple[str, int]]:
    return [pair for mesh in meshes for pair in zip(_names(mesh), _sizes(mesh), strict=False)]


def _named_degree(named: Iterable[tuple[str, int]], names: frozenset[str]) -> int:
    return max((size for name, size in named if name in names), default=1)


def _mesh_of(parameter: object) -> object | None:
    return getattr(parameter, "device_mesh", None)


def _root_of(mesh: Any) -> Any:
    """Return the root mesh that a mesh was sliced from; the mesh itself if this torch has no such method."""
    root = getattr(mesh, "_get_root_mesh", None)
    return root() if root is not None else mesh


def _names(mesh: object) -> tuple[str, ...]:
    return tuple(getattr(mesh, "mesh_dim_names", None) or ())


def _ndim(mesh: object) -> int:
    return len(_sizes(mesh))


def _sizes(mesh: Any) -> tuple[int, ...]:
    return tuple(int(size) for size in getattr(mesh, "shape", ()))
