"""Recomputation, offload and kernels that facts state in words, as fields of a layout."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from torchx_cubicml.predictors.roofline.facts import OFF, ON
from torchx_cubicml.records.standard_words import squashed

if TYPE_CHECKING:
    from torchx_cubicml.predictors.roofline.facts import Facts

Array: TypeAlias = np.ndarray[tuple[int, ...], np.dtype[np.float64]]

_FULL = ("full", *ON)
_PER_OPERATION = frozenset({"op", "selectiveop"})
_PER_LAYER = frozenset({"selectivelayer"})
_MODULES = frozenset({"core_attn", "layernorm", "mla_up_proj", "mlp", "moe", "moe_act", "shared_experts"})
_EVERY = 2.0  # every second layer, where the option does not say which


def recompute_fields(facts: Facts) -> dict[str, Array]:
    """Return the shares of layers that recompute in full, attention alone and per operation, float64 ``[n]`` each."""
    name = "activation_checkpointing"
    texts, options = facts.shares.get(name, {}), facts.shares.get("selective_recompute", {})
    zero = np.zeros(facts.n)
    per_operation = sum((share for text, share in texts.items() if squashed(text) in _PER_OPERATION), zero)
    per_layer = sum((share for text, share in texts.items() if squashed(text) in _PER_LAYER), zero)
    selective = facts.share(name, ("selective",)) - per_operation - per_layer
    chosen = sum((share for text, share in options.items() if squashed(text) in _PER_OPERATION), zero)
    every = {text: _number(text) for text in options}
    in_full = sum((share / every[text] for text, share in options.items() if every[text] >= 1.0), zero)
    keeps_attention = sum((share for text, share in options.items() if _is_modules_without_attention(text)), zero)
    is_nth = sum((share for text, share in options.items() if every[text] >= 1.0), zero)
    return {
        "full_recompute": facts.share(name, _FULL) + per_layer / _EVERY + selective * in_full,
        "selective_recompute": selective * np.maximum(1.0 - chosen - is_nth - keeps_attention, 0.0),
        "operation_recompute": per_operation + selective * chosen,
    }


def _is_modules_without_attention(text: str) -> bool:
    """Return whether an option names modules of Megatron-LM, and the attention core is not among them."""
    names = set(text.split())
    return names <= _MODULES and "core_attn" not in names


def _number(text: str) -> float:
    return float(text) if text.isdecimal() else 0.0


def offload_fields(facts: Facts) -> dict[str, Array]:
    """Return the fields of a layout that say what is offloaded, float64 ``[n]`` each; see ``TrainingLayout``."""
    states = facts.share("cpu_offload", ON)
    part = np.clip(facts.number("optimizer_offload_fraction", 1.0), 0.0, 1.0)
    return {
        "offloaded_params": states,
        "offloaded_optimizer": np.maximum(states, facts.share("optimizer_cpu_offload", ON) * part),
        "offloaded_activations": facts.share("activation_cpu_offload", ON),
    }


def kernel_fields(facts: Facts) -> dict[str, Array]:
    """Return the kernels that are used, and whether activations are split by sequence, float64 ``[n]`` each."""
    plain = ("eager", "math", "torch", "naive", "plain", "none")
    return {
        "plain_attention": facts.share("attention_kernel", plain),
        "sequence_parallel": 1.0 - facts.share("sequence_parallel", OFF),
        "compiled": facts.share("compile", ON),
    }
