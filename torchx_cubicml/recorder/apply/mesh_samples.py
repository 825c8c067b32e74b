"""Check that the samples of a launch follow its device mesh: ranks of one data-parallel coordinate share theirs.

A script that calculates its data-parallel rank by itself, as ``rank // 2``, would train on the wrong samples under
another mesh. The ranks post a digest of the first training input, and the leading rank compares them.
"""

from __future__ import annotations

import hashlib
import time
from typing import TYPE_CHECKING, Any

from torchx_cubicml.facts.hook_registry import CHANGED
from torchx_cubicml.records.axis_names import mesh_axis

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import nn

    from torchx_cubicml.recorder.ranks.peers import Peers

_DATA = ("dp_replicate", "dp_shard", "dp")
_WITH_OWN_INPUTS = ("cp", "pp")  # axes whose ranks may see other parts of one sample
_MAX_RANKS = 64  # compared
_MAX_ELEMENTS = 65_536  # of an input
_WAIT_S = 2.0  # for all posts together; the ranks have passed a step by then


class MeshSamples:
    """Samples of the ranks of one mesh.

    Args:
        peers: the other ranks.
        guard: wraps code that runs within the program's calls.
    """

    def __init__(self, peers: Peers, guard: Callable[[Callable[..., object]], Callable[..., None]]) -> None:
        self._peers = peers
        self._guarded_post = guard(self._post)
        self._coordinate = ""
        self._remove: Callable[[], None] | None = None

    def watch(self, mesh: Any) -> None:
        """Post the digest of the next training input, if the ranks of a mesh that share samples see whole ones."""
        names = [mesh_axis(name) for name in mesh.mesh_dim_names]
        sizes, position = dict(zip(names, mesh.shape, strict=True)), mesh.get_coordinate()
        if self._remove is not None or not position or any(sizes.get(axis, 1) > 1 for axis in _WITH_OWN_INPUTS):
            return
        from torch.nn.modules.module import register_module_forward_pre_hook

        self._coordinate = ",".join(str(place) for name, place in zip(names, position, strict=True) if name in _DATA)
        self._remove = register_module_forward_pre_hook(self._guarded_post).remove

    def release(self) -> None:
        """Stop watching."""
        if self._remove is not None:
            self._remove()

    def mismatch(self) -> str:
        """Return in words how the samples of the ranks do not follow the mesh; empty if they do, or nothing tells."""
        if self._remove is None or self._peers.rank:
            return ""
        end = time.monotonic() + _WAIT_S
        posts = [
            self._peers.ask(f"mesh_samples/{rank}", within_s=max(end - time.monotonic(), 0.0))
            for rank in range(min(self._peers.world_size, _MAX_RANKS))
        ]
        if not all(posts):
            return ""
        return mismatch(tuple(post.split(" ", 1)) for post in posts)  # type: ignore[misc] # each has one space

    def _post(self, module: nn.Module, args: tuple[object, ...]) -> None:
        import torch

        inputs = [each for each in args if isinstance(each, torch.Tensor)]
        if not inputs or not module.training or not torch.is_grad_enabled():
            return
        self.release()
        with torch.no_grad():
            values = inputs[0].detach().flatten()[:_MAX_ELEMENTS].to("cpu", torch.float64)
        digest = hashlib.sha256(repr(tuple(inputs[0].shape)).encode() + values.numpy().tobytes()).hexdigest()
        self._peers.post(f"mesh_samples/{self._peers.rank}", f"{self._coordinate} {digest}")


def mismatch(posts: Iterable[tuple[str, str]]) -> str:
    """Return in words how samples do not follow the mesh; empty if they do, or if all ranks have the same samples.

    Args:
        posts: data-parallel coordinate and digest of the samples of each rank.

    >>> mismatch([("0", "a"), ("0", "a"), ("1", "b"), ("1", "b")])
    ''
    >>> mismatch([("0", "a"), ("0", "b")]).removeprefix(CHANGED)
    'ranks of one data-parallel coordinate train on different samples: the script does not take them from the mesh'
    """
    pairs = set(posts)
    coordinates, digests = {place for place, _ in pairs}, {digest for _, digest in pairs}
    if len(pairs) > len(coordinates):
        wrong = "ranks of one data-parallel coordinate train on different samples"
    elif 1 < len(digests) < len(coordinates):
        wrong = "data-parallel ranks train on the same samples"
    else:
        return ""
    return f"{CHANGED}{wrong}: the script does not take them from the mesh"
