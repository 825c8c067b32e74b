"""Sizes of published models by name, and the architectures of their families, as their config files state them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchx_cubicml.records.values import Scalar

Sizes = Mapping[str, "Scalar"]

_LLAMA: Sizes = {"gated_mlp": True, "linear_bias": False, "norm_bias": False, "positions": "rotary"}
_GPT2: Sizes = {"gated_mlp": False, "linear_bias": True, "norm_bias": True, "positions": "learned"}
FAMILIES: Mapping[str, Sizes] = {
    "gpt2": {**_GPT2, "tied_embeddings": True},
    "opt": {**_GPT2, "tied_embeddings": True},
    "gpt_neox": {**_GPT2, "positions": "rotary", "tied_embeddings": False},
    "llama": {**_LLAMA, "tied_embeddings": False},
    "mistral": {**_LLAMA, "tied_embeddings": False},
    "mixtral": {**_LLAMA, "tied_embeddings": False},
    "qwen2": {**_LLAMA, "tied_embeddings": False, "qkv_bias": True},
    "bert": {**_GPT2, "tied_embeddings": True, "embedding_norm": True, "final_norm": False, "head_bias": True},
}
"""Model type -> architecture, as ``parameter_formula`` takes it."""


def _sizes(layers: int, width: int, heads: int, vocabulary: int, **more: Scalar) -> Sizes:
    return {"n_layers": layers, "d_model": width, "n_heads": heads, "vocab_size": vocabulary, **more}


DEFAULTS: Mapping[str, Sizes] = {
    "gpt2": _sizes(12, 768, 12, 50257, n_positions=1024),
    "opt": _sizes(12, 768, 12, 50272, d_ff=3072, n_positions=2050),
    "gpt_neox": _sizes(44, 6144, 64, 50432, d_ff=24576),
    "llama": _sizes(32, 4096, 32, 32000, d_ff=11008),
    "mistral": _sizes(32, 4096, 32, 32000, d_ff=14336, n_kv_heads=8),
    "mixtral": _sizes(32, 4096, 32, 32000, d_ff=14336, n_kv_heads=8, n_experts=8, n_active_experts=2),
    "qwen2": _sizes(32, 4096, 32, 151936, d_ff=22016, n_kv_heads=32),
    "bert": _sizes(12, 768, 12, 30522, d_ff=3072, n_positions=512, n_token_types=2),
}
"""Model type -> sizes of its config class in transformers without any argument."""
_PUBLISHED: Mapping[str, tuple[str, Sizes]] = {
    "gpt2": ("gpt2", {}),
    "distilgpt2": ("gpt2", {"n_layers": 6}),
    "gpt2-medium": ("gpt2", {"n_layers": 24, "d_model": 1024, "n_heads": 16}),
    "gpt2-large": ("gpt2", {"n_layers": 36, "d_model": 1280, "n_heads": 20}),
    "gpt2-xl": ("gpt2", {"n_layers": 48, "d_model": 1600, "n_heads": 25}),
    "opt-125m": ("opt", {}),
    "bert-base-uncased": ("bert", {}),
    "bert-base-cased": ("bert", {"vocab_size": 28996}),
    "bert-large-uncased": ("bert", {"n_layers": 24, "d_model": 1024, "n_heads": 16, "d_ff": 4096}),
    "llama-2-7b": ("llama", {}),
    "llama-2-13b": ("llama", {"n_layers": 40, "d_model": 5120, "n_heads": 40, "d_ff": 13824}),
    "llama-2-70b": ("llama", {"n_layers": 80, "d_model": 8192, "n_heads": 64, "n_kv_heads": 8, "d_ff": 28672}),
    "llama-3-8b": ("llama", {"vocab_size": 128256, "n_kv_heads": 8, "d_ff": 14336}),
    "llama-3-70b": (
        "llama",
        {"n_layers": 80, "d_model": 8192, "n_heads": 64, "n_kv_heads": 8, "d_ff": 28672, "vocab_size": 128256},
    ),
    "llama-3.2-1b": ("llama", {**_sizes(16, 2048, 32, 128256, n_kv_heads=8, d_ff=8192), "tied_embeddings": True}),
    "llama-3.2-3b": ("llama", {**_sizes(28, 3072, 24, 128256, n_kv_heads=8, d_ff=8192), "tied_embeddings": True}),
    "mistral-7b": ("mistral", {}),
    "qwen2.5-0.5b": ("qwen2", {**_sizes(24, 896, 14, 151936, n_kv_heads=2, d_ff=4864), "tied_embeddings": True}),
    "qwen2.5-1.5b": ("qwen2", {**_sizes(28, 1536, 12, 151936, n_kv_heads=2, d_ff=8960), "tied_embeddings": True}),
    "qwen2.5-7b": ("qwen2", _sizes(28, 3584, 28, 152064, n_kv_heads=4, d_ff=18944)),
}
_SUFFIX = re.compile(r"-(?:hf|instruct|chat|v0\.[1-3]|base)$")


def published_sizes(name: str) -> Sizes | None:
    """Return sizes and architecture of a published model; ``None`` for a name that is in no table.

    >>> published_sizes("meta-llama/Llama-3.1-8B-Instruct")["d_ff"], published_sizes("mine/Llama-8B")
    (14336, None)
    """
    plain = name.rpartition("/")[2].lower().removeprefix("meta-").replace("llama-3.1-", "llama-3-")
    while (shorter := _SUFFIX.sub("", plain)) != plain:
        plain = shorter
    found = _PUBLISHED.get(plain)
    if found is None:
        return None
    family, sizes = found
    return {**FAMILIES[family], **DEFAULTS[family], **sizes}
