"""Number of parameters of a transformer from its sizes; a range where the command leaves its architecture open."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torchx_cubicml.records.values import Value

_OPEN: Mapping[str, tuple[Value, ...]] = {
    "tied_embeddings": (True, False),
    "gated_mlp": (False, True),
    "linear_bias": (False, True),
    "norm_bias": (False, True),
    "positions": ("rotary", "learned"),
}
"""Facts of an architecture -> their usual values."""
_HEAD = "head_transform"
"""Fact of an encoder for masked words: its head has a layer and a norm before the vocabulary."""
_DEFAULTS: Mapping[str, Value] = {"head_bias": False, "n_token_types": 0, "embedding_norm": False, "final_norm": True}
NEEDED = ("n_layers", "d_model", "vocab_size")


def parameter_range(facts: Mapping[str, Value]) -> tuple[int, int] | None:
    """Return least and most parameters of a transformer with these facts, equal where they tell its architecture.

    ``None`` where its depth, width or vocabulary is unknown. Without an inner width, an MLP is four times as wide as
    the model, or 8/3 times with a gate, rounded up to a multiple of 256.

    >>> gpt2 = {"n_layers": 12, "d_model": 768, "vocab_size": 50257, "n_heads": 12, "n_positions": 1024}
    >>> told = {"tied_embeddings": True, "gated_mlp": False, "linear_bias": True, "norm_bias": True}
    >>> parameter_range({**gpt2, **told, "positions": "learned"})
    (124439808, 124439808)
    """
    if any(not isinstance(facts.get(name), int) for name in NEEDED):
        return None
    is_open = open_facts(facts)
    counts = [
        _count({**_DEFAULTS, **facts, **dict(zip(is_open, values, strict=True))})
        for values in product(*(_OPEN.get(name, (False, True)) for name in is_open))
    ]
    return min(counts), max(counts)


def open_facts(facts: Mapping[str, Value]) -> tuple[str, ...]:
    """Return the facts of an architecture that would make the number of parameters exact."""
    of_encoder = (_HEAD,) if facts.get("embedding_norm") is True else ()  # BERT has a head, or none
    return tuple(name for name in (*_OPEN, *of_encoder) if name not in facts)


def _count(facts: Mapping[str, Value]) -> int:
    def number(name: str, default: int) -> int:
        value = facts.get(name, default)
        return int(value) if isinstance(value, int | float) else default

    width, layers = number("d_model", 0), number("n_layers", 0)
    norm = width * (2 if facts["norm_bias"] else 1)
    positions = number("n_positions", number("seq_len", 0)) if facts["positions"] == "learned" else 0
    ends = number("vocab_size", 0) * width * (1 if facts["tied_embeddings"] else 2)
    ends += number("vocab_size", 0) if facts["head_bias"] else 0
    ends += (positions + number("n_token_types", 0)) * width + (norm if facts["embedding_norm"] else 0)
    ends += norm if facts["final_norm"] else 0
    ends += width * width + width + 2 * width if facts.get(_HEAD) else 0
    dense_layers = number("n_dense_layers", 0) if number("n_experts", 1) > 1 else layers
    dense = _attention(facts, width) + _mlp(facts, width, _inner(facts, "d_ff")) + 2 * norm
    experts = number("n_experts", 1)
    routed = _attention(facts, width) + 2 * norm + experts * (width + _mlp(facts, width, _inner(facts, "expert_d_ff")))
    if "shared_expert_d_ff" in facts:
        routed += _mlp(facts, width, number("shared_expert_d_ff", 0))
    return ends + dense_layers * dense + (layers - dense_layers) * routed


def _attention(facts: Mapping[str, Value], width: int) -> int:
    def number(name: str, default: int) -> int:
        value = facts.get(name, default)
        return int(value) if isinstance(value, int | float) else default

    heads = number("n_heads", 1)
    head_dim = number("head_dim", width // heads)
    queries, keys = heads * head_dim, number("n_kv_heads", heads) * head_dim
    biases = queries + 2 * keys if facts.get("qkv_bias", facts["linear_bias"]) else 0
    return width * (queries + 2 * keys) + queries * width + biases + (width if facts["linear_bias"] else 0)


def _inner(facts: Mapping[str, Value], name: str) -> int:
    stated = facts.get(name, facts.get("d_ff"))
    width = facts["d_model"]
    if isinstance(stated, int):
        return stated
    width = width if isinstance(width, int) else 0
    return -(-(8 * width // 3) // 256) * 256 if facts["gated_mlp"] else 4 * width


def _mlp(facts: Mapping[str, Value], width: int, inner: int) -> int:
    matrices = 3 if facts["gated_mlp"] else 2
    return matrices * width * inner + ((matrices - 1) * inner + width if facts["linear_bias"] else 0)
