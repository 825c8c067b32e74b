"""Degrees of parallelism of Megatron Core, from the process groups that the program initialised with it.

The functions are those of ``megatron/core/parallel_state.py`` in Megatron Core 0.8 to 0.16. The module is never
imported here: without the program's own import there is nothing to read.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchx_cubicml.records.trial import Value

_MODULE = "megatron.core.parallel_state"
_DEGREES = {
    "tp_degree": "get_tensor_model_parallel_world_size",
    "pp_degree": "get_pipeline_model_parallel_world_size",
    "cp_degree": "get_context_parallel_world_size",
    "ep_degree": "get_expert_model_parallel_world_size",
    "expert_tp_degree": "get_expert_tensor_parallel_world_size",
}
"""Fact -> function of Megatron Core."""


def megatron_facts() -> dict[str, Value]:
    """Return the known degrees under their standard names; empty unless the program initialised Megatron Core."""
    module = sys.modules.get(_MODULE)
    if module is None or not _called(module, "model_parallel_is_initialized"):
        return {}
    found = {fact: _called(module, function) for fact, function in _DEGREES.items()}
    return {fact: degree for fact, degree in found.items() if isinstance(degree, int) and degree >= 1}


def _called(module: Any, function: str) -> object:
    """Return the result of a function that only reads a size; ``None`` if this release has none or refuses."""
    try:
        return getattr(module, function)()
    except (AttributeError, AssertionError, RuntimeError, TypeError, ValueError):
        return None
