"""Binding to the size of a job in torchrun's own options: nodes, and processes per node."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from torchx_cubicml.errors import LaunchError

if TYPE_CHECKING:
    from torchx_cubicml.launch.bindings.base import BindingQuery
    from torchx_cubicml.launch.launch import Launch
    from torchx_cubicml.records.values import Value
    from torchx_cubicml.space import Binding


class TorchrunSizeBinding:
    """Binding to ``--nproc_per_node`` or ``--nnodes`` of torchrun, which a TorchX component sets by ``-j``."""

    def says(self, launch: Launch, binding: Binding, query: BindingQuery) -> bool:
        """Return whether the size is known before the job starts."""
        return self._sizes(launch).get(binding.name) is not None

    def read(self, launch: Launch, binding: Binding, query: BindingQuery) -> Value:
        """Return the size."""
        size = self._sizes(launch).get(binding.name)
        if size is None:
            raise LaunchError(f"--{binding.name} of {query.owner} is known only when the job starts")
        return size

    def write(self, launch: Launch, binding: Binding, query: BindingQuery, value: Value) -> Launch:
        """Return the launch with another size, and the world size that follows."""
        if binding.name not in launch.resizable:
            legal = ", ".join(f"--{name}" for name in sorted(launch.resizable)) or "none"
            raise LaunchError(f"--{binding.name} of {query.owner} cannot be changed here; sizes that can: {legal}")
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise LaunchError(f"--{binding.name} of {query.owner} must be a whole number >= 1, got {value!r:.60}")
        sizes = {**self._sizes(launch), binding.name: value}
        nnodes, nproc = sizes["nnodes"], sizes["nproc_per_node"]
        return replace(
            launch, nnodes=nnodes, nproc_per_node=nproc, world_size=nnodes * nproc if nnodes and nproc else None
        )

    def _sizes(self, launch: Launch) -> dict[str, int | None]:
        return {"nnodes": launch.nnodes, "nproc_per_node": launch.nproc_per_node}
