"""Mesh hook: sets the sizes and the order of the device mesh that the script makes, for a script without flags for it.

- The mesh gets other sizes for the same axis names. The script must take its groups, ranks and sizes from the mesh, as
  GSPMD-style scripts do; ``MeshSamples`` checks that the samples follow it.
- Another order changes which ranks make up a group; the axes keep their names and positions.
- A mesh of one axis, or without names, stays as it is: torch itself makes such meshes.
- Ranks that make different meshes would deadlock. They compare their meshes through the job's TCPStore first, and
  change nothing unless all are equal.
"""

from __future__ import annotations

import json
from functools import partial
from math import prod
from typing import TYPE_CHECKING

from torchx_cubicml.recorder.apply.hooks import Hook
from torchx_cubicml.records.axis_names import mesh_axis, mesh_text

if TYPE_CHECKING:
    import inspect
    from collections.abc import Mapping, Sequence

    from torchx_cubicml.recorder.apply.hooks import Offer, OfferedProgram
    from torchx_cubicml.recorder.apply.mesh_calls import MeshCall, MeshMaker
    from torchx_cubicml.recorder.apply.wrapped_function import Call
    from torchx_cubicml.records.values import Value

_ORDER = "order"
_REMAINING = ("dp_shard", "dp", "dp_replicate")  # the first of these in a mesh takes the remaining ranks


class MeshHook(Hook):
    """Hook around the functions that make a mesh, until the first step.

    Its value: size by axis, and ``order`` with the axes from the outermost to the innermost, if that is requested.
    """

    name = "mesh"
    sets = "sizes and order of a device mesh"
    takes = "see [a device mesh](../space-file.md#a-device-mesh)"
    parts = "mesh"
    calls = ("init_device_mesh", "DeviceMesh")
    marks = ("mesh",)
    unmet = "the program makes no device mesh of several named axes"

    def _prepare(self, value: Mapping[str, Value]) -> None:
        from torchx_cubicml.recorder.apply.mesh_samples import MeshSamples

        self._sizes = {axis: int(size) for axis, size in value.items() if isinstance(size, int)}
        self._order = tuple(str(value.get(_ORDER, "")).split(",")) if value.get(_ORDER) else ()
        self._samples = MeshSamples(self._peers, self._guard)
        self._guarded_watch = self._guard(self._samples.watch)
        self._own: MeshCall | None = None  # the script's mesh
        self._is_changed = False

    @classmethod
    def offer(cls, program: OfferedProgram) -> Offer:
        """Return the axes of the only mesh of several axes in a source; nothing where names do not tell them."""
        from torchx_cubicml.launch.command_facts.source_literals import call_keywords
        from torchx_cubicml.records.trial import Origin

        found = {given.get("mesh_dim_names") for tree in program.trees for _, given in call_keywords(tree)}
        names = [each for each in found if isinstance(each, tuple) and len(each) > 1]
        axes = [mesh_axis(str(name)) for name in names[0]] if len(names) == 1 else [""]
        is_taken = program.called.isdisjoint(cls.calls) or any(f"{axis}_degree" in program.taken for axis in axes)
        is_clear = "" not in axes and len({*axes}) == len(axes)
        if is_taken or not is_clear or ("dp" in axes and not {*axes}.isdisjoint({*_REMAINING} - {"dp"})):
            return (), []
        rest = next((axis for axis in _REMAINING if axis in axes), "")
        typed = [trial for trial in program.trials if trial.origin is Origin.USER]
        known = {axis: size for trial in typed[-1:] for axis in axes if (size := trial.fact(f"{axis}_degree"))}
        sizes = {axis: known.get(axis, 1) for axis in axes if axis != rest}
        asked = "as recorded" if sizes.keys() <= known.keys() else "write the script's own sizes here"
        default = ", ".join(f"{axis} = {size}" for axis, size in sizes.items())
        return (), [f"mesh = {json.dumps(axes)}", f"default = {{ {default} }} # {asked}"]

    def install(self) -> None:
        """Wrap the functions that make a mesh."""
        from torchx_cubicml.recorder.apply.mesh_calls import METHODS, ByShape

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
        super().release()
        if self._is_changed and not self._refusal:
            self._refusal = self._samples.mismatch()
        self._samples.release()

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
        word = f"{found.text()} {found.order} -> {self._sizes} {self._order}"
        if not self._agree(word, "the ranks do not make the same mesh"):
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
            return f"{mesh_text(axes, requested)} is no mesh of {world_size} processes"
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
            own, other = mesh_text(axes, found.sizes), mesh_text(axes, stated)
            return f"the script makes {own}, and the space file states {other}"
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
