"""Shape of a transformer, its blocks and experts, as fields of a layout derived from facts."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from torchx_cubicml.predictors.roofline.facts import OFF
from torchx_cubicml.predictors.roofline.unknown_facts import embedded_words, misfit_of_words

if TYPE_CHECKING:
    from torchx_cubicml.predictors.roofline.facts import Facts

Array: TypeAlias = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


def model_fields(facts: Facts) -> dict[str, Array]:
    """Return the fields of a layout that describe the model, float64 ``[n]`` each."""
    layers = facts.number("n_layers")
    total = facts.number("n_params")
    implied_width = np.sqrt(total / (12.0 * layers))
    width = facts.number("d_model", implied_width)
    heads = facts.number("n_heads", np.maximum(np.round(width / 128.0), 1.0))
    kv_share = np.minimum(facts.number("n_kv_heads", heads) / heads, 1.0)
    queries = np.where(facts.told("n_heads"), facts.number("head_dim", width / heads) * heads / width, 1.0)
    stated_d_ff = facts.number("expert_d_ff", facts.number("d_ff"))
    inner = np.where(np.isnan(stated_d_ff), 4.0, stated_d_ff / width)
    shape = {"width": width, "layers": layers, "kv_share": kv_share, "queries": queries, "inner": inner}
    matrices = np.where(_gated(facts, stated_d_ff, shape), 3.0, 2.0)
    known = {
        "layers": layers,
        "width": width,
        "heads": heads,
        "kv_share": kv_share,
        "queries": queries,
        "matrices": matrices,
        "sequence": facts.number("seq_len"),
        "vocabulary": facts.number("vocab_size", 0.0),
    }
    of_blocks = _block_fields(
        facts,
        {
            **known,
            "inner_width": facts.number("d_ff", inner * width),
            "attention_params": (2.0 + 2.0 * kv_share) * queries * width**2,
        },
    )
    kept = of_blocks["active_inner"] / width * (2.0 * matrices - 2.0)
    return {**known, **of_blocks, "inner": kept, "end_copies": _end_copies(facts, known, of_blocks["layer_params"])}


def _block_fields(facts: Facts, fields: dict[str, Array]) -> dict[str, Array]:
    """Return the fields that describe blocks and their experts, float64 ``[n]`` each.

    Args:
        facts: of ``n`` trainings.
        fields: ``layers``, ``width``, ``inner_width``, ``matrices`` and ``attention_params`` of their layouts.
    """
    experts = facts.number("n_experts", 1.0)
    active = np.minimum(facts.number("n_active_experts", 2.0), experts)
    dense_layers = np.clip(facts.number("n_dense_layers", 0.0), 0.0, fields["layers"])
    share = np.where(experts > 1, 1.0 - dense_layers / fields["layers"], 0.0)
    inner = np.where(experts > 1, facts.number("expert_d_ff", fields["inner_width"]), fields["inner_width"])
    shared = np.where(experts > 1, facts.number("shared_expert_d_ff", 0.0), 0.0)
    one = fields["matrices"] * inner * fields["width"]
    always = fields["attention_params"] + fields["matrices"] * fields["width"] * (
        (1.0 - share) * fields["inner_width"] + share * shared
    )
    layer = always + share * experts * one
    return {
        "layer_params": layer,
        "expert_share": share * experts * one / layer,
        "active_params": always + share * active * one,
        "routed_params": share * active * one,
        "experts": experts,
        "active_experts": active,
        "expert_layers": share,
        "expert_width": np.minimum(inner, fields["width"]),
        "capacity": facts.number("capacity_factor", 0.0),
        # The MLP's inner width that one token passes through, the mean over the layers.
        "active_inner": (1.0 - share) * fields["inner_width"] + share * (shared + active * inner),
    }


def _end_copies(facts: Facts, known: dict[str, Array], layer_params: Array) -> Array:
    """Return the matrices of vocabulary and width that a device holds: one, or two for untied ends without a pipeline.

    Whether they are tied is stated, or follows from the number of parameters where the inner width is stated.
    """
    words = embedded_words(facts, known["layers"] * layer_params, known["width"]) / known["vocabulary"]
    counted = np.where(np.isfinite(words) & (known["vocabulary"] > 0.0), words > 1.5, 0.0)
    untied = np.where(facts.known("tied_embeddings"), facts.share("tied_embeddings", OFF), counted)
    return np.where(facts.number("pp_degree", 1.0) > 1, 1.0, 1.0 + untied)


def _gated(
    facts: Facts, stated_d_ff: Array, shape: dict[str, Array]
) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    """Return a mask of gated MLPs (three matrices rather than two): those fit the number of parameters better.

    Without that number, any inner width but the classical four times the width counts as a gated MLP.
    """
    total = facts.number("n_params")
    vocabulary = facts.number("vocab_size", 0.0)
    square = shape["width"] ** 2
    misfits = []
    for matrices in (2.0, 3.0):
        attention = (2.0 + 2.0 * shape["kv_share"]) * shape["queries"]
        block = (attention + matrices * shape["inner"]) * square * shape["layers"]
        # The stated number may count the embeddings not at all (0), tied (1) or untied (2).
        counted = [np.abs(np.log((block + times * vocabulary * shape["width"]) / total)) for times in (0.0, 1.0, 2.0)]
        without = misfit_of_words(block, total, shape["width"])
        misfits.append(np.where(facts.told("vocab_size"), np.min(counted, axis=0), without))
    classical = np.isnan(stated_d_ff) | (np.abs(shape["inner"] - 4.0) < 0.01)
    is_decidable = np.isfinite(total) & np.isfinite(stated_d_ff) & (facts.number("n_experts", 1.0) <= 1)
    return np.where(is_decidable, misfits[1] < misfits[0], ~classical)
