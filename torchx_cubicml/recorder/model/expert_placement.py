"""Expert and expert-tensor parallelism: placement of a model's experts on ranks.

Distributed weights of experts tell both degrees by their placements: a shard of the first dimension of grouped experts
is a share of the experts, and another shard is a share of each expert. Plain weights tell the first by the number of
experts that a rank holds, against the scores of the router.
"""

from __future__ import annotations

from contextlib import suppress
from math import prod
from typing import TYPE_CHECKING, Any

from torchx_cubicml.recorder.model.mesh_axes import axes_of, shard_dim, sizes_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchx_cubicml.recorder.model.experts import ExpertLayer
    from torchx_cubicml.recorder.model.mesh_axes import AxisRoles, PlacedParameter, Role


def expert_degree(layers: Sequence[ExpertLayer], placed: Sequence[PlacedParameter], roles: AxisRoles) -> int | None:
    """Return the groups of ranks that hold different experts of a layer; ``None`` if layers disagree.

    Args:
        layers: layers of experts of a model, at least one.
        placed: distributed parameters of the model.
        roles: of their axes.
    """
    degrees = {layer.degree * _sharded(layer, placed, roles, "expert") for layer in layers}
    return degrees.pop() if len(degrees) == 1 else None


def expert_tensor_degree(
    layers: Sequence[ExpertLayer], placed: Sequence[PlacedParameter], roles: AxisRoles
) -> int | None:
    """Return the ranks that share each expert; ``None`` if layers disagree, or have plain weights, which may be parts.

    The arguments are those above.
    """
    distributed = {id(each.value) for each in placed}
    if not all(id(parameter) in distributed for layer in layers for parameter in layer.parameters()):
        return None
    degrees = {
        _sharded(layer, placed, roles, "expert_tensor") * _sharded(layer, placed, roles, "tensor") for layer in layers
    }
    return degrees.pop() if len(degrees) == 1 else None


def _sharded(layer: ExpertLayer, placed: Sequence[PlacedParameter], roles: AxisRoles, role: Role) -> int:
    """Return the product of the axes of one role, largest over the weights of a layer."""
    own = {id(parameter) for parameter in layer.parameters()}
    degrees = [1]
    for parameter in placed:
        if id(parameter.value) not in own:
            continue
        size_of = dict(zip(axes_of(parameter.mesh), sizes_of(parameter.mesh), strict=False))
        shards = {axis for axis, placement in parameter.placements().items() if shard_dim(placement) is not None}
        degrees.append(
            prod(size_of[axis] for axis, known in roles.of(parameter).items() if known == role and axis in shards)
        )
    return max(degrees)


def hidden_parameters(layers: Sequence[ExpertLayer]) -> tuple[int, int]:
    """Return the parameters, and the trainable ones, of experts that only other ranks hold as plain weights."""
    weights = [(layer.degree - 1, parameter) for layer in layers for parameter in layer.parameters()]
    return (
        sum(others * parameter.numel() for others, parameter in weights),
        sum(others * parameter.numel() for others, parameter in weights if parameter.requires_grad),
    )


def expert_groups(layers: Sequence[ExpertLayer]) -> list[object]:
    """Return the process groups that layers of experts hold, of the size by which their experts are shared."""
    found: dict[int, object] = {}
    for layer in layers:
        for module in layer.holders():
            for value in list(vars(module).values()):
                group = _group_of(value)
                if group is not None and layer.degree > 1 and _size(group) == layer.degree:
                    found[id(group)] = group
    return [*found.values()]


def _group_of(value: Any) -> object | None:
    """Return a process group, or that of a mesh of one dimension; ``None`` for anything else."""
    kinds = {kind.__name__ for kind in type(value).__mro__}
    group: object = value if "ProcessGroup" in kinds else None
    if "DeviceMesh" in kinds and len(sizes_of(value)) == 1:
        with suppress(RuntimeError):  # a mesh without process groups
            group = value.get_group()
    return group


def _size(group: Any) -> int | None:
    try:
        return int(group.size())
    except (RuntimeError, TypeError, ValueError):
        return None
