"""Sequence parallelism of a live model's tensor-parallel plan, read from the styles of torch on its modules."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn

    from torchx_cubicml.records.values import Value


def sequence_parallel_facts(root: nn.Module) -> dict[str, Value]:
    """Return whether norms work on a part of the sequence; nothing if no module or if not all of them tell.

    ``SequenceParallel`` leaves a hook with its placement on each module; ``Replicate()`` there means whole sequences.
    """
    found = {type(placement).__name__ == "Shard" for placement in _placements(root)}
    return {"sequence_parallel": found.pop()} if len(found) == 1 else {}


def _placements(root: nn.Module) -> Iterator[object]:
    for module in root.modules():
        for hook in getattr(module, "_forward_pre_hooks", {}).values():
            for cell in getattr(hook, "__closure__", None) or ():
                try:
                    function = cell.cell_contents
                except ValueError:  # not bound yet
                    continue
                called = getattr(function, "func", None)
                if getattr(called, "__qualname__", "") == "SequenceParallel._prepare_input_fn":
                    yield from function.args[0]
