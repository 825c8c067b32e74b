"""What ``torch.compile`` does to a live model."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import nn

    from torchx_cubicml.records.trial import Value

# The options of inductor behind each mode: whether it tries kernels out, and whether it records CUDA graphs.
_MODES = {
    (False, False): "default",
    (False, True): "reduce-overhead",
    (True, True): "max-autotune",
    (True, False): "max-autotune-no-cudagraphs",
}


def is_compiled(root: nn.Module) -> bool:
    """Whether ``torch.compile`` is at work on a part of the model or has compiled a function."""
    if any(True for _ in _compiled_parts(root)):
        return True
    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", None)
    return bool(counters and counters.get("stats", {}).get("unique_graphs"))


def compile_facts(root: nn.Module) -> dict[str, Value]:
    """Return whether the model is compiled and, where inductor does that, in which mode."""
    facts: dict[str, Value] = {"compile": is_compiled(root)}
    modes = {mode for part in _compiled_parts(root) if (mode := _mode(part))}
    if len(modes) == 1:
        facts["compile_mode"] = modes.pop()
    return facts


def _compiled_parts(root: nn.Module) -> Iterator[object]:
    for module in root.modules():
        if type(module).__name__ == "OptimizedModule":
            yield module
        in_place = vars(module).get("_compiled_call_impl")
        if in_place is not None:
            yield getattr(in_place, "of_torchx_cubicml_around", in_place)


def _mode(part: object) -> str:
    config: Mapping[str, object] | None = None
    ask = getattr(part, "get_compiler_config", None)
    with suppress(AttributeError, ImportError, TypeError, RuntimeError):
        config = ask() if ask is not None else None
    if not isinstance(config, dict):
        return ""
    return _MODES[bool(config.get("max_autotune")), bool(config.get("triton.cudagraphs"))]
