"""Recomputation of activations, as each trainer means it: its share of layers, its FLOPs and the bytes that it keeps.

Full recomputation keeps the input of a layer. ``selective`` is the attention core in Megatron-LM (Korthikanti et al.,
arXiv 2205.05198, section 5). torchtitan means one of two others by it (``apply_ac`` in
torchtitan/parallelisms/parallelize_llama.py): every n-th layer in full, or per operation, which keeps the results of
attention and of every second matrix product. In the order of a Llama layer, those of keys, of attention's projection
and of the gate's partner are computed again.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from torchx_cubicml.predictors.roofline.training_layout import Array, TrainingLayout

_OUTSIDE_MLP = 18.0  # bytes per token and channel: attention, norms, the MLP's input, dropout masks
_UNSPLIT = 10.0  # of those, split by sequence parallelism only
_QUERIES, _KEYS = 4.0, 4.0  # of the others: queries and what attention gives, in bf16; keys and values


def recomputed_products(layout: TrainingLayout) -> Array:
    """Return the share of a block's matrix products that are computed again, float64 ``[n]``."""
    attention = layout.queries * (1.0 + layout.kv_share)
    inner = layout.active_inner / layout.width
    again = (attention + inner) / (2.0 * attention + layout.matrices * inner)
    return np.asarray(layout.full_recompute + layout.operation_recompute * again)


def whole_bytes(layout: TrainingLayout) -> Array:
    """Return the bytes of all activations per block and micro batch, those of the scores of attention left out.

    Korthikanti et al., equation 2: 34 bytes per token and channel, of which 16 are the MLP's. Fewer heads of keys and
    values keep less. Each of a token's experts keeps a copy of its input, and its result until the router's weights
    have their gradient.
    """
    split = np.where(layout.sequence_parallel > 0, layout.tp, 1.0)
    each = layout.tokens * layout.width
    mlp = 2.0 * layout.inner * each / layout.tp
    attention = _QUERIES * layout.queries + _KEYS * layout.queries * layout.kv_share
    fixed = _OUTSIDE_MLP - _UNSPLIT - _QUERIES - _KEYS
    copies = 4.0 * layout.expert_layers * layout.active_experts
    rest = each * ((attention + fixed) / layout.tp + (_UNSPLIT + copies) / split)
    return np.asarray(layout.width_bytes / 2.0 * (mlp + rest))


def activation_bytes(layout: TrainingLayout) -> Array:
    """Return the bytes of activations per block and micro batch that are kept for backward, mean over the blocks.

    Korthikanti et al., equation 2, with 5 bytes per score of attention besides.
    """
    split = np.where(layout.sequence_parallel > 0, layout.tp, 1.0)
    each = layout.tokens * layout.width
    scores = 5.0 * layout.heads * layout.sequence * layout.tokens / layout.tp
    full, per_operation = layout.full_recompute, layout.operation_recompute
    whole = np.maximum(1.0 - full - per_operation, 0.0)
    kept_scores = layout.plain_attention * np.maximum(whole - layout.selective_recompute, 0.0)
    block_input = 2.0 * each / split
    results = each * (2.0 * layout.queries * (2.0 + layout.kv_share) + 2.0 * layout.active_inner / layout.width)
    of_operations = 2.0 * block_input + results / layout.tp
    kept = kept_scores * scores + full * block_input + per_operation * of_operations
    return np.asarray(whole * whole_bytes(layout) + layout.width_bytes / 2.0 * kept)


def working_bytes(layout: TrainingLayout) -> Array:
    """Return the bytes of the one block whose activations are being computed again; 0 where none are."""
    whole = without_recomputation(layout)
    return np.where(layout.full_recompute + layout.operation_recompute > 0, activation_bytes(whole), 0.0)


def without_recomputation(layout: TrainingLayout) -> TrainingLayout:
    """Return the layout of the same trainings with all activations kept."""
    none = np.zeros_like(layout.full_recompute)
    return replace(layout, full_recompute=none, selective_recompute=none, operation_recompute=none)
