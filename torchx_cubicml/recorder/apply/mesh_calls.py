"""Calls by which a script makes a device mesh: axes, sizes and order of it, and the same call for another one.

``init_device_mesh``, the constructor ``DeviceMesh(...)`` and ``_unflatten`` of a mesh of one axis (as in torchtitan)
can make another mesh. ``DeviceMesh.from_group`` cannot: the script has made the process groups.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

from torchx_cubicml.recorder.model.rank_order import axis_order, flat
from torchx_cubicml.records.axis_names import mesh_text

if TYPE_CHECKING:
    import inspect
    from collections.abc import Sequence

    import torch

    from torchx_cubicml.recorder.apply.wrapped_function import Call

_FROM_GROUPS = (
    "the script makes its mesh from process groups of its own (DeviceMesh.from_group), which stay as they are"
)
_OF_SEVERAL = "the script unflattens an axis of a mesh of several axes, which stays as it is"
_UNFLATTENED = "the order of a mesh that the script unflattens (DeviceMesh._unflatten) cannot be changed"
_OWN_BACKENDS = "the order of a mesh with backends of its own cannot be changed"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshCall:
    """Device mesh that a call makes.

    Args:
        names: of its axes; empty without names.
        sizes: of its axes, in ranks.
        order: names of its axes by the ranks on them, outermost first; empty if the ranks are in no such order.
        problem: reason why the call can make no other mesh; empty if it can.
        fixed_order: reason why it can make no other order; empty if it can.
    """

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    order: tuple[str, ...]
    problem: str = ""
    fixed_order: str = ""

    def text(self) -> str:
        """Return the mesh as text, such as ``dp=4,tp=2``."""
        return mesh_text(self.names, self.sizes)


class MeshMaker:
    """Function of torch that makes a mesh."""

    name = ""
    """Name of the function."""

    returns_mesh = True
    """True if it returns the mesh; a constructor does not."""

    def read(self, call: inspect.BoundArguments) -> MeshCall | None:
        """Return the mesh that a call of the program makes; ``None`` for torch's own calls, and where torch raises."""
        raise NotImplementedError

    def prepared(self, make: Call, call: inspect.BoundArguments, shape: Sequence[int], order: Sequence[int]) -> Call:
        """Return a call of torch alone that makes another mesh of the same axes, and returns it.

        Args:
            make: makes the program's call with the arguments as they are then.
            call: arguments of the program's call.
            shape: size of each axis.
            order: positions of the axes, outermost first.
        """
        return make


class ByShape(MeshMaker):
    """``init_device_mesh``."""

    name = "init_device_mesh"

    def read(self, call: inspect.BoundArguments) -> MeshCall | None:
        """Return the mesh of a call."""
        fixed = _OWN_BACKENDS if call.arguments.get("backend_override") else ""
        return _named(call, call.arguments.get("mesh_shape"), fixed_order=fixed)

    def prepared(self, make: Call, call: inspect.BoundArguments, shape: Sequence[int], order: Sequence[int]) -> Call:
        """Return the call for another shape; that of the constructor for another order."""
        call.arguments["mesh_shape"] = tuple(shape)
        if list(order) == sorted(order):
            return make
        from torch.distributed.device_mesh import DeviceMesh

        names, device = tuple(call.arguments["mesh_dim_names"]), str(call.arguments["device_type"])
        return partial(DeviceMesh, device, _ranks(shape, order), mesh_dim_names=names)


class ByRanks(MeshMaker):
    """Constructor ``DeviceMesh(device_type, ranks)``."""

    name = "__init__"
    returns_mesh = False

    def read(self, call: inspect.BoundArguments) -> MeshCall | None:
        """Return the mesh of a call; ``None`` for the parts of a mesh, which torch makes without process groups."""
        given = call.arguments.get("mesh")
        if given is None or not call.arguments.get("_init_backend", True):
            return None
        sizes, ranks = flat(given)
        return _named(call, sizes, ranks=ranks)

    def prepared(self, make: Call, call: inspect.BoundArguments, shape: Sequence[int], order: Sequence[int]) -> Call:
        """Return the call that constructs the mesh of other ranks."""
        call.arguments["mesh"], mesh = _ranks(shape, order), call.arguments["self"]

        def constructed() -> object:
            make()
            return mesh

        return constructed


class ByUnflattening(MeshMaker):
    """Method ``_unflatten`` of a mesh of one axis."""

    name = "_unflatten"

    def read(self, call: inspect.BoundArguments) -> MeshCall | None:
        """Return the mesh of a call."""
        sizes, ranks = flat(call.arguments["self"].mesh)
        problem = _OF_SEVERAL if len(sizes) != 1 else ""
        return _named(
            call,
            call.arguments.get("mesh_sizes"),
            ranks=ranks if len(sizes) == 1 else None,
            problem=problem,
            fixed_order=_UNFLATTENED,
        )

    def prepared(self, make: Call, call: inspect.BoundArguments, shape: Sequence[int], order: Sequence[int]) -> Call:
        """Return the call for another shape."""
        call.arguments["mesh_sizes"] = tuple(shape)
        return make


class ByGroups(MeshMaker):
    """Static method ``DeviceMesh.from_group``."""

    name = "from_group"

    def read(self, call: inspect.BoundArguments) -> MeshCall | None:
        """Return the mesh of a call, which stays as it is."""
        sizes, ranks = flat(call.arguments.get("mesh"))
        return _named(call, sizes, ranks=ranks, problem=_FROM_GROUPS)


METHODS: tuple[MeshMaker, ...] = (ByRanks(), ByUnflattening(), ByGroups())
"""Methods of ``DeviceMesh`` that make a mesh."""


def _named(
    call: inspect.BoundArguments,
    sizes: Any,
    *,
    ranks: Sequence[int] | None = None,
    problem: str = "",
    fixed_order: str = "",
) -> MeshCall | None:
    """Return the mesh of sizes and ranks, in row-major order without ranks; ``None`` where torch raises."""
    try:
        shape = tuple(map(int, sizes))
        names = tuple(map(str, call.arguments.get("mesh_dim_names") or ()))
    except (TypeError, ValueError):
        return None
    if names and len(names) != len(shape):
        return None
    order = axis_order(shape, range(prod(shape)) if ranks is None else ranks)
    named = tuple(names[axis] for axis in order) if names else ()
    return MeshCall(names=names, sizes=shape, order=named, problem=problem, fixed_order=fixed_order)


def _ranks(shape: Sequence[int], order: Sequence[int]) -> torch.Tensor:
    """Return the ranks of a mesh as a tensor: those along the last axis of ``order`` are neighbours."""
    import torch

    with torch.device("cpu"):
        ranks = torch.arange(prod(shape), dtype=torch.int).view([shape[axis] for axis in order])
    return ranks.permute([order.index(axis) for axis in range(len(shape))]).contiguous()
