"""Axes of device meshes and their roles, told by the use of each axis; its name counts where the use says nothing.

The use of an axis is what lies on it: the process group of a wrapper, a pipeline or an API of torch, or a placement of
parameters. FSDP shards every kind of parameter, norms included. Tensor parallelism replicates norms and shards linear
layers, one of two along their input.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from torchx_cubicml.records.axis_names import AXIS_NAMES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torch import nn

Axis: TypeAlias = "str | tuple[int, int]"  # its name; mesh and position without one
Role: TypeAlias = Literal["data", "tensor", "context", "expert", "expert_tensor", "pipeline", "unknown"]

_ROLES: dict[str, Role] = {
    "dp_replicate": "data",
    "dp_shard": "data",
    "dp": "data",
    "tp": "tensor",
    "pp": "pipeline",
    "cp": "context",
    "ep": "expert",
    "etp": "expert_tensor",
}
_ROLE_BY_NAME = {name: _ROLES[axis] for axis, names in AXIS_NAMES.items() for name in names}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedParameter:
    """Distributed parameter, with what is known of its use.

    Args:
        name: path in the model.
        value: the parameter, a DTensor.
        is_expert: whether it belongs to experts.
        is_grouped: whether its first dimension counts experts.
        is_norm: whether it is a vector of a norm.
        data_axes: axes that ``fully_shard`` lays it out on.
    """

    name: str
    value: nn.Parameter
    is_expert: bool = False
    is_grouped: bool = False
    is_norm: bool = False
    data_axes: frozenset[Axis] = frozenset()

    @property
    def mesh(self) -> object:
        """Device mesh that it lies on."""
        return mesh_of(self.value)

    def placements(self) -> dict[Axis, object]:
        """Return its placement on each axis of its mesh."""
        return dict(zip(axes_of(self.mesh), getattr(self.value, "placements", ()), strict=False))


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownUses:
    """Axes whose use is known without the placements.

    Args:
        data: axes of ``fully_shard``, DDP and FSDP1.
        context: axes of torch's context-parallel API.
        pipeline: axes of pipeline stages.
        expert: axes whose process group a layer of experts holds.
    """

    data: frozenset[Axis] = frozenset()
    context: frozenset[Axis] = frozenset()
    pipeline: frozenset[Axis] = frozenset()
    expert: frozenset[Axis] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisRoles:
    """Roles of axes for parameters.

    Args:
        dense: axis -> role for parameters outside experts.
        experts: axis -> role for those of experts.
    """

    dense: Mapping[Axis, Role] = field(default_factory=dict)
    experts: Mapping[Axis, Role] = field(default_factory=dict)

    def of(self, parameter: PlacedParameter) -> dict[Axis, Role]:
        """Return the role of each axis that a parameter lies on."""
        known = self.experts if parameter.is_expert else self.dense
        return {
            axis: "data" if axis in parameter.data_axes else known.get(axis, role_by_name(axis))
            for axis in axes_of(parameter.mesh)
        }


def find_roles(parameters: Iterable[PlacedParameter], uses: KnownUses) -> AxisRoles:
    """Return the roles of the axes that parameters lie on.

    Args:
        parameters: all distributed ones of a model.
        uses: what is known beside their placements.
    """
    on_axis: dict[Axis, list[tuple[PlacedParameter, object]]] = defaultdict(list)
    for parameter in parameters:
        for axis, placement in parameter.placements().items():
            if axis not in parameter.data_axes:
                on_axis[axis].append((parameter, placement))
    dense: dict[Axis, Role] = {}
    experts: dict[Axis, Role] = {}
    for axis, placed in on_axis.items():
        others = [(each, placement) for each, placement in placed if not each.is_expert]
        of_experts = [(each, placement) for each, placement in placed if each.is_expert]
        dense[axis] = _dense_role(axis, others, uses)
        if not _is_sharded(others) and axis in uses.expert:
            dense[axis] = "expert"
        experts[axis] = _expert_role(axis, of_experts, dense[axis] if _is_sharded(others) else None, uses)
        if experts[axis] in {"expert", "expert_tensor"} and (not others or dense[axis] == "unknown"):
            dense[axis] = experts[axis]  # of the other parameters, each of its ranks has a copy
    return AxisRoles(dense=dense, experts=experts)


def _dense_role(axis: Axis, placed: list[tuple[PlacedParameter, object]], uses: KnownUses) -> Role:
    known: tuple[tuple[Role, bool], ...] = (
        ("data", axis in uses.data),
        ("context", axis in uses.context),
        ("pipeline", axis in uses.pipeline),
        ("data", any(each.is_norm and shard_dim(placement) is not None for each, placement in placed)),
    )
    role = next((role for role, is_used in known if is_used), None)
    return role if role is not None else _role_of_shards(axis, placed)


def _role_of_shards(axis: Axis, placed: list[tuple[PlacedParameter, object]]) -> Role:
    """Return the role of an axis by its shards of weights; where all are of the first dimension, its name counts."""
    dims = {shard_dim(placement) for _, placement in placed} - {None}
    has_copied_norm = any(each.is_norm and shard_dim(placement) is None for each, placement in placed)
    if dims - {0} or (dims and has_copied_norm):
        return "tensor"
    named = role_by_name(axis)
    if named != "unknown" or not dims:
        return named
    is_only = all(len(sizes_of(each.mesh)) == 1 for each, _ in placed)
    return "tensor" if is_only or isinstance(axis, str) else "unknown"


def _expert_role(axis: Axis, placed: list[tuple[PlacedParameter, object]], dense: Role | None, uses: KnownUses) -> Role:
    """Return the role for experts; ``dense`` is that for the other parameters if any of them is sharded there."""
    if dense == "data":
        return "data"
    grouped = {shard_dim(placement) for each, placement in placed if each.is_grouped}
    listed = {shard_dim(placement) for each, placement in placed if not each.is_grouped}
    if 0 in grouped:
        return "expert"
    if (grouped | listed) - {None, 0}:
        return "expert_tensor"
    named = role_by_name(axis)
    if 0 in listed:
        return named if named != "unknown" else "expert_tensor"
    if axis in uses.expert:
        return "expert"
    return "data" if axis in uses.data else dense or named


def _is_sharded(placed: Iterable[tuple[PlacedParameter, object]]) -> bool:
    return any(shard_dim(placement) is not None for _, placement in placed)


def shard_dim(placement: object) -> int | None:
    """Return the dimension that a placement shards; ``None`` if each rank has a copy."""
    dim = getattr(placement, "dim", None)
    return dim if isinstance(dim, int) else None


def role_by_name(axis: Axis) -> Role:
    """Return the usual role of an axis by its name."""
    return _ROLE_BY_NAME.get(axis, "unknown") if isinstance(axis, str) else "unknown"


def axes_of(mesh: object) -> tuple[Axis, ...]:
    """Return the axes of a mesh, outermost first; empty for ``None``."""
    names = names_of(mesh)
    return names or tuple((id(mesh), index) for index in range(len(sizes_of(mesh))))


def axes_of_group(group: object, meshes: Iterable[Any]) -> frozenset[Axis]:
    """Return the axes whose process group is ``group``."""
    name = getattr(group, "group_name", None)
    found: set[Axis] = set()
    for mesh in meshes:
        for index, axis in enumerate(axes_of(mesh)):
            if name is not None and _group_name(mesh, index) == name:
                found.add(axis)
    return frozenset(found)


def is_in_use(mesh: Any) -> bool:
    """Return whether no process group of a mesh was destroyed, as by a program that set up its ranks anew."""
    get_group = getattr(mesh, "get_group", None)
    if get_group is None:
        return True
    try:
        return all(get_group(index).size() == size for index, size in enumerate(sizes_of(mesh)))
    except RuntimeError:  # torch finds no group of that name
        return False


def _group_name(mesh: Any, index: int) -> object:
    try:
        return getattr(mesh.get_group(index), "group_name", None)
    except (AttributeError, KeyError, RuntimeError, ValueError):  # a mesh without process groups
        return None


def is_same(mesh: object, other: object) -> bool:
    """Return whether two meshes are the same one or equal; ``None`` is no mesh."""
    return mesh is not None and (mesh is other or mesh == other)


def mesh_of(parameter: object) -> object | None:
    """Return the device mesh of a parameter; ``None`` if it is not distributed."""
    return getattr(parameter, "device_mesh", None)


def names_of(mesh: object) -> tuple[str, ...]:
    """Return the names of a mesh's axes; empty without names."""
    return tuple(getattr(mesh, "mesh_dim_names", None) or ())


def sizes_of(mesh: Any) -> tuple[int, ...]:
    """Return the sizes of a mesh's axes, in ranks."""
    return tuple(int(size) for size in getattr(mesh, "shape", ()))
