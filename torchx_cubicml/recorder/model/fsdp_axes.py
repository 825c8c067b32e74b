"""Axes of device meshes that ``fully_shard`` (FSDP2) lays each parameter out on.

They come from private attributes of its states. A parameter whose attributes are missing is left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchx_cubicml.recorder.model.mesh_axes import axes_of, is_same, mesh_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn

    from torchx_cubicml.recorder.model.mesh_axes import Axis


def fsdp_axes(root: nn.Module) -> dict[int, frozenset[Axis]]:
    """Return the axes of ``fully_shard`` for each parameter that it manages, by the parameter's id."""
    found: dict[int, frozenset[Axis]] = {}
    for module in root.modules():
        # Looked up on the class: wrappers forward missing attributes.
        get_state = getattr(type(module), "_get_fsdp_state", None)
        for group in fsdp_groups(get_state(module)) if get_state is not None else ():
            for managed in getattr(group, "fsdp_params", ()):
                parameter = _parameter_of(managed)
                if parameter is not None:
                    info = getattr(managed, "mesh_info", None) or getattr(group, "mesh_info", None)
                    found[id(parameter)] = _axes_of_info(info, parameter)
    return found


def fsdp_groups(state: object) -> list[object]:
    """Return the groups of parameters that one state shards together."""
    groups = getattr(state, "_fsdp_param_groups", None)  # torch before 2.12 has only one group
    if groups is None:
        one = getattr(state, "_fsdp_param_group", None)
        return [one] if one is not None else []
    return list(groups)


def _parameter_of(managed: object) -> object | None:
    """Return the parameter as its module holds it."""
    info: Any = getattr(managed, "_module_info", None)
    module, name = getattr(info, "module", None), getattr(info, "param_name", None)
    return getattr(module, name, None) if module is not None and isinstance(name, str) else None


def _axes_of_info(info: object, parameter: object) -> frozenset[Axis]:
    mesh = getattr(info, "mesh", None)
    if is_same(mesh, mesh_of(parameter)):
        return frozenset(axes_of(mesh_of(parameter)))
    return frozenset([*axes_of(mesh), *_named_dims(getattr(info, "dp_mesh_dims", None))])


def _named_dims(dims: object) -> Iterator[str]:
    """Yield the names by which the program chose axes of a mesh that holds other axes too."""
    for kind in ("shard_names", "replicate_names"):
        yield from getattr(dims, kind, ())
