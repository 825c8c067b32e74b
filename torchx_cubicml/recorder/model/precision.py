"""Looks into the layers during one step: which are recomputed in backward, and in which number format they run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchx_cubicml.recorder.steps.torch_hooks import ModuleHook

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import nn

    from torchx_cubicml.recorder.steps.torch_hooks import Guard


class PrecisionProbe:
    """Hooks on the repeated layers and their children, for one step.

    Activation checkpointing in any spelling shows as a forward within backward: of the layer, or of all its children
    that hold parameters where it recomputes its own forward without being called. Autocast shows within a layer even
    where the trainer turns it on inside of the model's own forward.

    Args:
        blocks: the repeated layers, none of them compiled, >= 1.
        guard: for each hook.
    """

    def __init__(self, blocks: Sequence[nn.Module], guard: Guard) -> None:
        self.autocast_type = ""
        self._n_blocks = len(blocks)
        self._recomputed_blocks: set[int] = set()
        self._parts_run: list[set[int]] = [set() for _ in blocks]
        self._parts_recomputed: list[set[int]] = [set() for _ in blocks]
        self._handles = []
        for index, block in enumerate(blocks):
            self._handles.append(_hook(block, guard(self._seeing_block(index))))
            self._handles += [_hook(child, guard(self._seeing_part(index))) for child in block.children()]

    @property
    def activation_checkpointing(self) -> str:
        """``none``, ``selective`` or ``full``; empty where this torch does not tell."""
        if _graph_task() is None:
            return ""
        if all(map(self._is_recomputed, range(self._n_blocks))):
            return "full"
        return "selective" if self._recomputed_blocks or any(self._parts_recomputed) else "none"

    @property
    def n_checkpointed(self) -> int | None:
        """Layers that were recomputed, in whole or in part; ``None`` where this torch does not tell."""
        if _graph_task() is None:
            return None
        in_part = {index for index, parts in enumerate(self._parts_recomputed) if parts}
        return len(self._recomputed_blocks | in_part)

    def release(self) -> None:
        """Take every hook away."""
        while self._handles:
            self._handles.pop()()

    def _seeing_block(self, index: int) -> Callable[..., None]:
        def see(module: nn.Module, args: Sequence[object], kwargs: Mapping[str, object]) -> None:
            if in_backward():
                self._recomputed_blocks.add(index)
            elif not self.autocast_type:
                self.autocast_type = autocast_type(module)

        return see

    def _is_recomputed(self, index: int) -> bool:
        parts = self._parts_run[index]
        return index in self._recomputed_blocks or (len(parts) > 1 and parts <= self._parts_recomputed[index])

    def _seeing_part(self, index: int) -> Callable[..., None]:
        def see(module: nn.Module, args: Sequence[object], kwargs: Mapping[str, object]) -> None:
            if in_backward():
                self._parts_recomputed[index].add(id(module))
                return
            if next(module.parameters(), None) is not None:
                self._parts_run[index].add(id(module))
            if not self.autocast_type:
                self.autocast_type = autocast_type(module)

        return see


def in_backward() -> bool:
    """Whether this thread is running the graph of a backward pass; never, where this torch does not tell."""
    return _graph_task() not in {None, -1}


def autocast_type(module: nn.Module) -> str:
    """Return the number format, such as ``torch.bfloat16``, that autocast is set to for ``module``; empty where off."""
    import torch

    device = next((parameter.device.type for parameter in module.parameters()), "")
    if not device or not torch.is_autocast_enabled(device):
        return ""
    return str(torch.get_autocast_dtype(device))


def _hook(module: nn.Module, see: Callable[..., None]) -> Callable[[], None]:
    return module.register_forward_pre_hook(ModuleHook(see), with_kwargs=True).remove


def _graph_task() -> int | None:
    from torch import _C

    current = getattr(_C, "_current_graph_task_id", None)
    return current() if current is not None else None
