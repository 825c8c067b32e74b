"""Device meshes of a live model: their axes, and the degrees of tensor, context and expert parallelism."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from torchx_cubicml.recorder.model.context_parallel import context_meshes, context_method
from torchx_cubicml.recorder.model.expert_placement import expert_degree, expert_groups, expert_tensor_degree
from torchx_cubicml.recorder.model.live_objects import live_instances_of
from torchx_cubicml.recorder.model.mesh_axes import (
    KnownUses,
    PlacedParameter,
    axes_of,
    axes_of_group,
    find_roles,
    is_in_use,
    is_same,
    mesh_of,
    names_of,
    role_by_name,
    shard_dim,
    sizes_of,
)
from torchx_cubicml.recorder.model.pipeline import stage_groups
from torchx_cubicml.recorder.model.rank_order import axis_order, flat
from torchx_cubicml.records.axis_names import AXIS_NAMES, mesh_axis, mesh_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torch import nn

    from torchx_cubicml.recorder.model.experts import ExpertLayer
    from torchx_cubicml.recorder.model.mesh_axes import Axis, AxisRoles, Role
    from torchx_cubicml.records.values import Value

_MAX_PLAN = 64  # kinds of distributed parameters
_MAX_PLAN_TEXT = 2000  # characters
_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")  # number of a layer, between dots
_SHARED = frozenset({"tensor", "expert_tensor"})
_WRAPPERS = re.compile(r"\b(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module|module)\.")


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshLayout:
    """Layout of ranks, read from device meshes and from the parameters on them.

    Args:
        axes: names of the axes of the widest mesh, outermost first; empty without a mesh or without names.
        sizes: of these axes; empty without a mesh.
        order: these axes by the ranks on them, outermost first; empty unless two of them have several ranks each.
        tp_degree: ranks that share the work on one sample; ``None`` if the purpose of an axis is unknown.
        cp_degree: ranks that share one sequence, 1 without such an axis.
        cp_method: how these exchange keys and values; empty if unknown.
        ep_degree: groups of ranks that share a layer's experts; ``None`` if layers of experts disagree.
        expert_tp_degree: ranks that share each expert; ``None`` without experts, or if layers disagree.
        has_unknown_batches: whether ranks may share a batch although no dense layer is shared.
        plan: tensor-parallel placement of each kind of parameter, such as ``layers.*.wq.weight Shard(0)``.
    """

    axes: tuple[str, ...] = ()
    sizes: tuple[int, ...] = ()
    order: tuple[str, ...] = ()
    tp_degree: int | None = 1
    cp_degree: int = 1
    cp_method: str = ""
    ep_degree: int | None = 1
    expert_tp_degree: int | None = None
    has_unknown_batches: bool = False
    plan: tuple[str, ...] = ()

    def data_parallel(self, world_size: int, *, pp_degree: int = 1) -> int | None:
        """Return the degree of data parallelism: ranks, or groups, with batches of their own; ``None`` if unknown."""
        if self.tp_degree is None or self.has_unknown_batches:
            return None
        others = self.tp_degree * self.cp_degree * pp_degree
        return world_size // others if world_size % others == 0 else None

    def facts(self) -> dict[str, Value]:
        """Return the known facts under their standard names."""
        is_known = self.tp_degree is not None
        known: dict[str, Value | None] = {
            "mesh": mesh_text(self.axes, self.sizes) or None,
            "mesh_axes": self.axes or None,
            "mesh_sizes": self.sizes or None,
            "mesh_order": ",".join(self.order) or None,
            "tp_degree": self.tp_degree,
            "cp_degree": self.cp_degree if is_known else None,
            "cp_method": self.cp_method or None,
            "ep_degree": self.ep_degree if is_known or self.expert_tp_degree is not None else None,
            "expert_tp_degree": self.expert_tp_degree,
            "tp_plan": "; ".join(self.plan)[:_MAX_PLAN_TEXT]
            or None,  # one text, as a predictor gains little from its parts
        }
        return {name: value for name, value in known.items() if value is not None}


def read_layout(
    root: nn.Module,
    *,
    data_meshes: Iterable[object] = (),
    other_meshes: Iterable[object] = (),
    data_axes: Mapping[int, frozenset[Axis]] | None = None,
    data_groups: Iterable[object] = (),
    layers: Sequence[ExpertLayer] = (),
) -> MeshLayout:
    """Read the layout of a model's parameters on the device meshes of this process.

    Args:
        root: the model, or this rank's part of it.
        data_meshes: meshes that ``fully_shard`` uses, whose axes are for data parallelism.
        other_meshes: meshes with axes of ``fully_shard`` and others.
        data_axes: axes of ``fully_shard`` for each parameter that it manages, by the parameter's id.
        data_groups: process groups of other data-parallel wrappers.
        layers: layers of experts of the model.
    """
    data = list(data_meshes)
    placed = _placed_parameters(root, data, data_axes or {}, layers)
    meshes = [*{id(each.mesh): each.mesh for each in placed}.values()]
    live = [mesh for mesh in live_instances_of("torch.distributed.device_mesh", "DeviceMesh") if is_in_use(mesh)]
    named_meshes = (*meshes, *data, *other_meshes)
    known = [*{id(mesh): mesh for mesh in (*map(_root_of, named_meshes), *named_meshes, *live)}.values()]
    contexts = [mesh for mesh in context_meshes(root) if is_in_use(mesh)]
    uses = KnownUses(
        data=frozenset(axis for mesh in data for axis in axes_of(mesh)) | _axes_of_groups(data_groups, known),
        context=frozenset(axis for mesh in contexts for axis in axes_of(mesh)),
        pipeline=_axes_of_groups(stage_groups(), known),
        expert=_axes_of_groups(expert_groups(layers), known),
    )
    roles = find_roles(placed, uses)
    named = {axis: size for mesh in known for axis, size in zip(axes_of(mesh), sizes_of(mesh), strict=False)}
    widest = max(known, key=lambda mesh: (len(sizes_of(mesh)), prod(sizes_of(mesh))), default=None)
    return MeshLayout(
        axes=names_of(widest),
        sizes=sizes_of(widest),
        order=_order(widest),
        tp_degree=_tensor_degree(placed, roles, named, uses),
        cp_degree=prod(size for mesh in contexts[:1] for size in sizes_of(mesh))
        if contexts
        else _named_degree(named, AXIS_NAMES["cp"], _other_uses(roles, uses, "context")),
        cp_method=context_method(root) if contexts else "",
        ep_degree=expert_degree(layers, placed, roles)
        if layers
        else _named_degree(named, AXIS_NAMES["ep"], _other_uses(roles, uses, "expert")),
        expert_tp_degree=expert_tensor_degree(layers, placed, roles) if layers else None,
        has_unknown_batches=_has_unknown_batches(placed, roles),
        plan=_plan(placed, roles),
    )


def _placed_parameters(
    root: nn.Module,
    data: Sequence[object],
    data_axes: Mapping[int, frozenset[Axis]],
    layers: Sequence[ExpertLayer],
) -> list[PlacedParameter]:
    """Return the distributed parameters of a model, with their use."""
    grouped = {id(each) for layer in layers if layer.is_grouped for each in layer.parameters()}
    listed = {id(each) for layer in layers if not layer.is_grouped for each in layer.parameters()}
    norms = {
        id(parameter)
        for module in root.modules()
        if "norm" in type(module).__name__.lower()
        and all(parameter.dim() < 2 for parameter in module.parameters(recurse=False))
        for parameter in module.parameters(recurse=False)
    }
    placed = []
    for name, parameter in root.named_parameters():
        mesh = mesh_of(parameter)
        if mesh is None:
            continue
        own = data_axes.get(id(parameter), frozenset())
        is_whole = not data_axes and any(is_same(other, mesh) for other in data)
        placed.append(
            PlacedParameter(
                name=name,
                value=parameter,
                is_expert=id(parameter) in grouped | listed,
                is_grouped=id(parameter) in grouped,
                is_norm=id(parameter) in norms,
                data_axes=frozenset(axes_of(mesh)) if is_whole else own,
            )
        )
    return placed


def _tensor_degree(
    placed: Sequence[PlacedParameter], roles: AxisRoles, named: Mapping[Axis, int], uses: KnownUses
) -> int | None:
    degrees = {1}
    for parameter in placed:
        if parameter.is_expert:
            continue
        size_of = dict(zip(axes_of(parameter.mesh), sizes_of(parameter.mesh), strict=False))
        role_of = roles.of(parameter)
        if any(role == "unknown" and size_of[axis] > 1 for axis, role in role_of.items()):
            return None
        degrees.add(prod(size_of[axis] for axis, role in role_of.items() if role == "tensor"))
    return max(*degrees, _named_degree(named, AXIS_NAMES["tp"], _other_uses(roles, uses, "tensor") | uses.data))


def _other_uses(roles: AxisRoles, uses: KnownUses, role: Role) -> frozenset[Axis]:
    """Return the axes whose use excludes a role that their name may say."""
    kinds: dict[Role, frozenset[Axis]] = {"context": uses.context, "pipeline": uses.pipeline, "expert": uses.expert}
    excluded = {axis for kind, axes in kinds.items() if kind != role for axis in axes}
    # Gradients are also averaged over the ranks that share a sequence or experts.
    compatible = {role, "unknown", "expert_tensor", *(() if role == "tensor" else ("data",))}
    for known in (roles.dense, roles.experts):
        excluded |= {axis for axis, other in known.items() if other not in compatible}
    return frozenset(excluded)


def _has_unknown_batches(placed: Sequence[PlacedParameter], roles: AxisRoles) -> bool:
    """Return whether ranks share experts in parts, but no other layer: they may work on one batch or on several."""
    shared = {
        axis for each in placed if each.is_expert for axis, role in roles.of(each).items() if role == "expert_tensor"
    }
    return any(
        roles.dense.get(axis, "unknown") in {"unknown", "expert_tensor"} and role_by_name(axis) != "tensor"
        for axis in shared
    )


def _plan(placed: Sequence[PlacedParameter], roles: AxisRoles) -> tuple[str, ...]:
    plan: dict[str, None] = {}
    for parameter in placed:
        role_of, placements = roles.of(parameter), parameter.placements()
        texts = [
            _placement(placements[axis]) for axis, role in role_of.items() if role in _SHARED and axis in placements
        ]
        if texts:
            plan[f"{_NUMBER.sub('*', _WRAPPERS.sub('', parameter.name))} {' '.join(texts)}"] = None
    return tuple(plan)[:_MAX_PLAN]


def _placement(placement: object) -> str:
    dim = shard_dim(placement)
    return type(placement).__name__ if dim is None else f"{type(placement).__name__}({dim})"


def _order(mesh: Any) -> tuple[str, ...]:
    """Return the axes of a mesh outermost first, under the names of a space file where it has one for them."""
    names, (sizes, ranks) = names_of(mesh), flat(getattr(mesh, "mesh", ()))
    if sum(size > 1 for size in sizes) < 2 or len(names) != len(sizes):
        return ()
    return tuple(mesh_axis(names[axis]) or names[axis] for axis in axis_order(sizes, ranks))


def _axes_of_groups(groups: Iterable[object], meshes: Sequence[object]) -> frozenset[Axis]:
    return frozenset(axis for group in groups for axis in axes_of_group(group, meshes))


def _named_degree(named: Mapping[Axis, int], names: frozenset[str], excluded: frozenset[Axis]) -> int:
    return max((size for axis, size in named.items() if axis in names and axis not in excluded), default=1)


def _root_of(mesh: Any) -> Any:
    """Return the root mesh that a mesh was sliced from; the mesh itself if this torch has no such method."""
    root = getattr(mesh, "_get_root_mesh", None)
    return root() if root is not None else mesh
