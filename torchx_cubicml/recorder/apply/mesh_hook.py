"""Mesh hook: sets the sizes and the order of the device mesh that the script makes, for a script without flags for it.

- ``init_device_mesh`` gets other sizes for the same axis names. The script must take its groups, ranks and sizes from
  the mesh, as GSPMD-style scripts do; ``MeshSamples`` checks that the samples follow it.
- Another order changes which ranks make up a group; the axes keep their names and positions.
- A mesh of one axis, or without names, stays as it is: torch itself makes such meshes.
- Ranks that make different meshes would deadlock. They compare their meshes through the job's TCPStore first, and
  change nothing unless all are equal.
"""

from __future__ import annotations

import functools
import inspect
import sys
from math import prod
from typing import TYPE_CHECKING

from torchx_cubicml.recorder.apply.mesh_samples import MeshSamples
from torchx_cubicml.records.axis_names import mesh_axis

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torchx_cubicml.recorder.ranks.peers import Peers
    from torchx_cubicml.records.trial import Value

_AGREE_S = 30.0  # time for the other ranks to reach their first mesh
_DISAGREE = "the ranks do not make the same mesh"
_ORDER = "order"


class MeshHook:
    """Hook around ``init_device_mesh``, until the first step.

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
        self._guarded_change = guard(self._change)
        self._samples = MeshSamples(peers, guard)
        self._guarded_watch = guard(self._samples.watch)
        self._refusal = "the program makes no device mesh of several named axes by init_device_mesh"
        self._own: tuple[tuple[str, ...], tuple[int, ...]] | None = None  # names and sizes of the script's mesh
        self._is_changed = self._is_released = False
        self._undo: list[Callable[[], None]] = []

    def install(self) -> None:
        """Wrap ``init_device_mesh``."""
        try:
            from torch.distributed import device_mesh
        except ImportError as error:  # a torch built without it
            self._refusal = f"this torch has no device mesh: {error}"
            return
        function = getattr(device_mesh, "init_device_mesh", None)
        if function is None:
            self._refusal = "this torch has no device mesh"
            return
        for holder in [module for module in list(sys.modules.values()) if _is_holder(module, function)]:
            self._wrap(holder)

    def release(self) -> None:
        """Restore ``init_device_mesh``; meshes that are already made stay as they are."""
        for undo in self._undo:
            undo()
        self._undo.clear()
        self._is_released = True
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

    def _wrap(self, holder: object) -> None:
        original = vars(holder)["init_device_mesh"]
        signature = inspect.signature(original)

        @functools.wraps(original)
        def hooked(*args: object, **kwargs: object) -> object:
            if self._is_released:  # called by a module that took it meanwhile
                return original(*args, **kwargs)
            calls: list[Callable[[], object]] = []
            self._guarded_change(calls, original, functools.partial(signature.bind, *args, **kwargs))
            mesh = calls[0]() if calls else original(*args, **kwargs)
            if calls:
                self._guarded_watch(mesh)
            return mesh

        holder.init_device_mesh = hooked  # type: ignore[attr-defined]
        self._undo.append(
            lambda: (
                setattr(holder, "init_device_mesh", original)
                if vars(holder).get("init_device_mesh") is hooked
                else None
            )
        )

    def _change(
        self,
        calls: list[Callable[[], object]],
        original: Callable[..., object],
        bind: Callable[[], inspect.BoundArguments],
    ) -> None:
        """Append to ``calls`` the call that replaces the program's own, if it makes the mesh of the request."""
        try:
            call = bind()
            names = tuple(map(str, call.arguments.get("mesh_dim_names") or ()))
            sizes = tuple(map(int, call.arguments["mesh_shape"]))
        except (TypeError, ValueError, KeyError):  # torch itself raises this
            return
        if len(names) < 2 or len(names) != len(sizes):
            return
        if self._own is not None:
            self._repeat(calls, original, call, (names, sizes))
            return
        self._own = (names, sizes)
        self._refusal = self._problem(names, sizes, call)
        if self._only_checks:
            return
        word = "" if self._refusal else f"{_text(names, sizes)} -> {self._sizes} {self._order}"
        if not self._peers.agree("mesh", word, within_s=_AGREE_S) or self._refusal:
            self._refusal = self._refusal or _DISAGREE
            return
        self._is_changed = True
        calls.append(functools.partial(self._make, original, call, names))

    def _repeat(
        self,
        calls: list[Callable[[], object]],
        original: Callable[..., object],
        call: inspect.BoundArguments,
        own: tuple[tuple[str, ...], tuple[int, ...]],
    ) -> None:
        """Change a further mesh like the first; refuse where it is another one."""
        if own != self._own:
            first = _text(*self._own) if self._own is not None else ""
            done = "; the first was changed before that was known" if self._is_changed else ""
            self._refusal = f"the script makes several meshes, {first} and {_text(*own)}{done}"
        elif self._is_changed:
            calls.append(functools.partial(self._make, original, call, own[0]))

    def _problem(self, names: Sequence[str], sizes: Sequence[int], call: inspect.BoundArguments) -> str:
        """Return the reason why the request cannot be met in a call; empty if it can."""
        axes, world_size = [*map(mesh_axis, names)], self._peers.world_size
        if sorted(axes) != sorted(self._sizes):
            return f"the script's mesh has the axes {', '.join(names)}, and the space file {', '.join(self._sizes)}"
        if prod(sizes) != world_size:
            return f"the script's mesh {_text(names, sizes)} is not of all {world_size} processes"
        requested = tuple(self._sizes[axis] for axis in axes)
        if prod(requested) != world_size:
            return f"{_text(axes, requested)} is no mesh of {world_size} processes"
        if self._order and call.arguments.get("backend_override"):
            return "the order of a mesh with backends of its own cannot be changed"
        return self._other_own_mesh(axes, sizes) if self._only_checks else ""

    def _other_own_mesh(self, axes: Sequence[str], sizes: Sequence[int]) -> str:
        """Return the difference of the script's mesh from what the space file states of it; empty if there is none."""
        stated = tuple(self._sizes[axis] for axis in axes)
        if stated != tuple(sizes):
            return f"the script makes {_text(axes, sizes)}, and the space file states {_text(axes, stated)}"
        if self._order and tuple(axes) != self._order:
            return f"the script makes {_text(axes, sizes)}, and the space file lists {', '.join(self._order)}"
        return ""

    def _make(self, original: Callable[..., object], call: inspect.BoundArguments, names: Sequence[str]) -> object:
        """Return the requested mesh."""
        axes = [*map(mesh_axis, names)]
        shape = tuple(self._sizes[axis] for axis in axes)
        if not self._order or self._order == tuple(axes):
            call.arguments["mesh_shape"] = shape
            return original(*call.args, **call.kwargs)
        import torch
        from torch.distributed.device_mesh import DeviceMesh

        with torch.device("cpu"):
            ranks = torch.arange(prod(shape), dtype=torch.int).view([self._sizes[axis] for axis in self._order])
        ranks = ranks.permute([self._order.index(axis) for axis in axes]).contiguous()
        return DeviceMesh(str(call.arguments["device_type"]), ranks, mesh_dim_names=tuple(names))


hook = MeshHook


def _is_holder(module: object, function: object) -> bool:
    return getattr(module, "__name__", "").startswith("torch.") and vars(module).get("init_device_mesh") is function


def _text(names: Sequence[str], sizes: Sequence[int]) -> str:
    """Return a mesh as text.

    >>> _text(["dp", "tp"], [4, 2])
    'dp=4,tp=2'
    """
    return ",".join(f"{name}={size}" for name, size in zip(names, sizes, strict=True))
