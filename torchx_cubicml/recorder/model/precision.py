"""Probe of the layers during one step: activation checkpointing and autocast format."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakSet, ref

from torchx_cubicml.recorder.model.batch import output_node
from torchx_cubicml.recorder.steps.torch_hooks import ModuleHook

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import nn
    from torch.autograd.graph import Node

    from torchx_cubicml.recorder.steps.torch_hooks import Guard


_recomputed: WeakSet[nn.Module] = WeakSet()  # layers that our own hook has computed again in backward


class PrecisionProbe:
    """Probe by hooks on the repeated layers and their children, for one step.

    Every kind of activation checkpointing causes a forward within backward. It is the layer's own, or that of all its
    children with parameters if the layer recomputes its forward without being called. Autocast is read within a layer
    because some trainers enable it inside the model's own forward.

    Args:
        blocks: the repeated layers, at least one, none of them compiled.
        guard: wraps each hook, so that a failure never reaches the training.
        on_recomputed: called with the autograd node of a layer's output that is computed within backward, for one
            layer and until it is called once; such a layer may be in no other graph.
    """

    def __init__(
        self, blocks: Sequence[nn.Module], guard: Guard, *, on_recomputed: Callable[[Node], None] | None = None
    ) -> None:
        self.autocast_type = ""  # of the layer that first ran under it
        self._autocast_types: list[str | None] = [None] * len(blocks)  # None: the layer has not run
        self._n_blocks = len(blocks)
        self._block_of = [ref(block) for block in blocks]
        self._recomputed_blocks: set[int] = set()
        self._children_run: list[set[int]] = [set() for _ in blocks]
        self._children_recomputed: list[set[int]] = [set() for _ in blocks]
        self._on_recomputed = on_recomputed
        self._removals = []
        if on_recomputed is not None:
            self._removals.append(blocks[0].register_forward_hook(ModuleHook(guard(self._after_block))).remove)
        for index, block in enumerate(blocks):
            self._removals.append(_hook(block, guard(self._block_hook(index))))
            self._removals += [_hook(child, guard(self._child_hook(index))) for child in block.children()]

    @property
    def activation_checkpointing(self) -> str:
        """Activation checkpointing: ``none``, ``selective`` or ``full``; empty if this torch does not expose it."""
        if _graph_task() is None:
            return ""
        if all(map(self._is_recomputed, range(self._n_blocks))):
            return "full"
        return "none" if set(self.layer_words) <= {"none"} else "selective"

    @property
    def layer_words(self) -> tuple[str, ...]:
        """Activation checkpointing of each layer, in the same words; empty if this torch does not expose it."""
        if _graph_task() is None:
            return ()
        return tuple(map(self._word_of, range(self._n_blocks)))

    @property
    def n_checkpointed(self) -> int | None:
        """Number of layers recomputed in whole or in part; ``None`` if this torch does not expose it."""
        if _graph_task() is None:
            return None
        return sum(word != "none" for word in self.layer_words)

    @property
    def layer_autocast(self) -> tuple[str, ...]:
        """Autocast's number format within each layer, empty where it is off; nothing unless all layers have run."""
        seen = tuple(each for each in self._autocast_types if each is not None)
        return seen if len(seen) == self._n_blocks else ()

    def release(self) -> None:
        """Remove all hooks."""
        while self._removals:
            self._removals.pop()()

    def _after_block(self, module: nn.Module, args: Sequence[object], output: object) -> None:
        node = output_node(output) if self._on_recomputed is not None and in_backward() else None
        if node is not None and self._on_recomputed is not None:
            call, self._on_recomputed = self._on_recomputed, None
            call(node)

    def _block_hook(self, index: int) -> Callable[..., None]:
        def observe(module: nn.Module, args: Sequence[object], other: object) -> None:
            if in_backward():
                self._recomputed_blocks.add(index)
            else:
                self._note_autocast(index, module)

        return observe

    def _note_autocast(self, index: int, module: nn.Module) -> None:
        if not self._autocast_types[index]:
            found = self._autocast_types[index] = autocast_type(module)
            self.autocast_type = self.autocast_type or found

    def _word_of(self, index: int) -> str:
        if self._is_recomputed(index):
            return "full"
        return "selective" if self._children_recomputed[index] else "none"

    def _is_recomputed(self, index: int) -> bool:
        children = self._children_run[index]
        if index in self._recomputed_blocks or self._block_of[index]() in _recomputed:
            return True
        return len(children) > 1 and children <= self._children_recomputed[index]

    def _child_hook(self, index: int) -> Callable[..., None]:
        def observe(module: nn.Module, args: Sequence[object], other: object) -> None:
            if in_backward():
                self._children_recomputed[index].add(id(module))
                return
            if next(module.parameters(), None) is not None:
                self._children_run[index].add(id(module))
            self._note_autocast(index, module)

        return observe


def note_recomputed(layer: nn.Module) -> None:
    """Note that our own hook computes a layer again in backward, where the layer itself is not called."""
    _recomputed.add(layer)


def can_see_backward() -> bool:
    """Return whether this torch tells that a backward pass is running."""
    return _graph_task() is not None


def in_backward() -> bool:
    """Return whether this thread is running a backward pass; always false if this torch does not expose it."""
    return _graph_task() not in {None, -1}


def autocast_type(module: nn.Module) -> str:
    """Return autocast's number format for ``module``, such as ``torch.bfloat16``; empty if autocast is off."""
    import torch

    device = next((parameter.device.type for parameter in module.parameters()), "")
    try:
        return str(torch.get_autocast_dtype(device)) if device and torch.is_autocast_enabled(device) else ""
    except RuntimeError:  # a kind of device without autocast, such as "meta", where offloaded parameters are
        return ""


def _hook(module: nn.Module, observe: Callable[..., None]) -> Callable[[], None]:
    return module.register_forward_pre_hook(ModuleHook(observe)).remove


def _graph_task() -> int | None:
    from torch import _C

    current = getattr(_C, "_current_graph_task_id", None)
    return current() if current is not None else None
