"""Which optimizer steps the training, and by which of its implementations."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from torchx_cubicml.records.trial import Value


def read_optimizer(optimizer: Optimizer) -> dict[str, Value]:
    """Return the class of an optimizer, and whether it steps by one fused kernel or by lists of tensors (foreach).

    Where the program leaves the choice to torch, what torch itself chooses by is asked; it is left out where this torch
    does not tell.
    """
    facts: dict[str, Value] = {"optimizer": type(optimizer).__name__}
    group = optimizer.param_groups[0]
    if "fused" in group:
        facts["optimizer_fused"] = bool(group["fused"])
    foreach = group.get("foreach")
    if foreach is None and "foreach" in group and not group.get("fused"):
        foreach = _torchs_choice(group)
    if isinstance(foreach, bool):
        facts["optimizer_foreach"] = foreach
    return facts


def _torchs_choice(group: dict[str, object]) -> bool | None:
    from torch import Tensor
    from torch.optim import optimizer as module

    choose = getattr(module, "_default_to_fused_or_foreach", None)
    if choose is None or isinstance(group.get("lr"), Tensor):
        return None
    try:
        _, foreach = choose(group["params"], bool(group.get("differentiable")), False)
    except (TypeError, ValueError):
        return None
    return bool(foreach)
