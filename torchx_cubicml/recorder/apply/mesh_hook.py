"""Mesh hook: sets the sizes and the order of the device mesh that the script makes, for a script without flags for it.

- The mesh gets other sizes for the same axis names. The script must take its groups, ranks and sizes from the mesh, as
  GSPMD-style scripts do; ``MeshSamples`` checks that the samples follow it.
- Another order changes which ranks make up a group; the axes keep their names and positions.
- A mesh of one axis, or without names, stays as it is: torch itself makes such meshes.
- Ranks that make different meshes would deadlock. They compare their meshes through the job's TCPStore first, and
  change nothing unless all are equal.
"""

from __future__ import annotations

from functools import partial
from math import prod
from typing import TYPE_CHECKING

from torchx_cubicml.recorder.apply.mesh_calls import METHODS, ByShape
from torchx_cubicml.recorder.apply.mesh_samples import MeshSamples
from torchx_cubicml.recorder.apply.wrapped_function import WrappedFunctions
from torchx_cubicml.records.axis_names import mesh_axis

if TYPE_CHECKING:
    import inspect
    from collections.abc import Callable, Mapping, Sequence

    from torchx_cubicml.recorder.apply.mesh_calls import MeshCall, MeshMaker
    from torchx_cubicml.recorder.apply.wrapped_function import Call
    from torchx_cubicml.recorder.ranks.peers import Peers
    from torchx_cubicml.records.values import Value

_AGREE_S = 30.0  # time for the other ranks to reach their first mesh
_DISAGREE = "the ranks do not make the same mesh"
_ORDER = "order"


class MeshHook:
    """Hook around the functions that make a mesh, until the first step.

    Args:
        value: size by axis, and ``order`` with the axes from the outermost to the innermost, if that is requested.
        peers: the other ranks.
        guard: wraps code that runs within the program's calls.
        only_checks: whether nothing is changed: ``value`` is what the script is thought to make.
    """

    def __init__(
        self,
        value: Mapping[str, Value],
        *,
        peers: Peers,
        guard: Callable[[Callable[..., object]], Callable[..., None]],
        only_checks: bool = False,
    ) -> None:
        self._sizes = {axis: int(size) for axis, size in value.items() if isinstance(size, int)}
        self._order = tuple(str(value.get(_ORDER, "")).split(",")) if value.get(_ORDER) else ()
        self._peers = peers
        self._only_checks = only_checks
        self._samples = MeshSamples(peers, guard)
        self._guarded_watch = guard(self._samples.watch)
        self._wrapped = WrappedFunctions(guard)
        self._refusal = "the program makes no device mesh of several named axes"
        self._own: MeshCall | None = None  # the script's mesh
        self._is_changed = False

    def install(self) -> None:
        """Wrap the functions that make a mesh."""
        try:
            from torch.distributed import device_mesh
        except ImportError as error:  # a torch built without it
            self._refusal = f"this torch has no device mesh: {error}"
            return
        if not hasattr(device_mesh, "init_device_mesh"):
            self._refusal = "this torch has no device mesh"
            return
        self._wrapped.wrap(device_mesh.init_device_mesh, partial(self._replaced, ByShape()))
        for maker in METHODS:
            self._wrapped.wrap_method(device_mesh.DeviceMesh, maker.name, partial(self._replaced, maker))

    def release(self) -> None:
        """Restore the functions; meshes that are already made stay as they are."""
        self._wrapped.release()
        if self._is_changed and not self._refusal:
            self._refusal = self._samples.mismatch()
        self._samples.release()

    def refusal(self) -> str:
        """Return the reason why the mesh is not the requested one, in words; empty if it is."""
        return self._refusal

    def refuses_values(self) -> bool:
        """Return that a refusal is not told apart by values: it holds for the program."""
        return False

    def illegal_values(self) -> tuple[str, ...]:
        """Return nothing: a size is not legal or illegal without the others."""
        return ()

    def _replaced(self, maker: MeshMaker, make: Call, call: inspect.BoundArguments) -> Call | None:
        """Return the call that replaces the program's own, if that makes the mesh of the request."""
        found = maker.read(call)
        if found is None:
            return None
        if len(found.names) < 2:
            self._note_unserved(found)
            return None
        if self._own is not None:
            return self._repeated(found, maker, make, call)
        self._own = found
        self._refusal = self._problem(found)
        if self._only_checks:
            return None
        word = "" if self._refusal else f"{found.text()} {found.order} -> {self._sizes} {self._order}"
        if not self._peers.agree("mesh", word, within_s=_AGREE_S) or self._refusal:
            self._refusal = self._refusal or _DISAGREE
            return None
        self._is_changed = True
        return self._made(found, maker, make, call)

    def _note_unserved(self, found: MeshCall) -> None:
        """Name a mesh that stays as it is, unless another one is served."""
        if self._own is None and len(found.sizes) > 1:
            self._refusal = (
                f"the script's mesh of {' x '.join(map(str, found.sizes))} processes has no names for its axes"
            )

    def _repeated(self, found: MeshCall, maker: MeshMaker, make: Call, call: inspect.BoundArguments) -> Call | None:
        """Change a further mesh like the first; refuse where it is another one."""
        own = self._own
        if own is None or (found.names, found.sizes, found.order) != (own.names, own.sizes, own.order):
            done = "; the first was changed before that was known" if self._is_changed else ""
            first = own.text() if own is not None else ""
            self._refusal = f"the script makes several meshes, {first} and {found.text()}{done}"
        elif self._is_changed:
            return self._made(found, maker, make, call)
        return None

    def _problem(self, found: MeshCall) -> str:
        """Return the reason why the request cannot be met in a call; empty if it can."""
        axes, world_size = [*map(mesh_axis, found.names)], self._peers.world_size
        if found.problem:
            return found.problem
        if sorted(axes) != sorted(self._sizes):
            own, stated = ", ".join(found.names), ", ".join(self._sizes)
            return f"the script's mesh has the axes {own}, and the space file {stated}"
        requested = tuple(self._sizes[axis] for axis in axes)
        if prod(requested) != world_size:
            return f"{_text(axes, requested)} is no mesh of {world_size} processes"
        if prod(found.sizes) != world_size:
            return f"the script's mesh {found.text()} is not of all {world_size} processes"
        return self._order_problem(found) or (self._other_own_mesh(axes, found) if self._only_checks else "")

    def _order_problem(self, found: MeshCall) -> str:
        if not found.order:
            return f"the ranks of the script's mesh {found.text()} are in no order of its axes"
        return found.fixed_order if self._order else ""

    def _other_own_mesh(self, axes: Sequence[str], found: MeshCall) -> str:
        """Return the difference of the script's mesh from what the space file states of it; empty if there is none."""
        stated = tuple(self._sizes[axis] for axis in axes)
        if stated != found.sizes:
            return f"the script makes {_text(axes, found.sizes)}, and the space file states {_text(axes, stated)}"
        order = tuple(map(mesh_axis, found.order))
        if self._order and order != self._order:
            own, listed = ", ".join(order), ", ".join(self._order)
            return f"the ranks of the script's mesh are in the order {own}, and the space file lists {listed}"
        return ""

    def _made(self, found: MeshCall, maker: MeshMaker, make: Call, call: inspect.BoundArguments) -> Call:
        """Return the call that makes the requested mesh, in the script's own order unless another one is requested."""
        axes = [*map(mesh_axis, found.names)]
        shape = tuple(self._sizes[axis] for axis in axes)
        order = tuple(axes.index(axis) for axis in self._order or map(mesh_axis, found.order))
        prepared = maker.prepared(make, call, shape, order)  # now, under the guard

        def changed() -> object:
            mesh = prepared()
            self._guarded_watch(mesh)
            return mesh if maker.returns_mesh else None

        return changed


hook = MeshHook


def _text(names: Sequence[str], sizes: Sequence[int]) -> str:
    """Return a mesh as text.

    >>> _text(["dp", "tp"], [4, 2])
    'dp=4,tp=2'
    """
    return ",".join(f"{name}={size}" for name, size in zip(names, sizes, strict=True))
