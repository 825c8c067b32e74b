"""Peak memory of one device in a transformer training, part by part.

Model states as in ZeRO (Rajbhandari et al., arXiv 1910.02054), activations as in Korthikanti et al. (arXiv 2205.05198):
34 bytes per token and channel of a block with a classical MLP, of which 10 are not split by tensor parallelism alone,
and 5 heads x sequence / width more where the scores of attention are kept.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from torchx_cubicml.predictors.roofline.training_layout import Array, Layout

MEMORY_PARTS = ("weights", "gradients", "optimizer", "gathered", "activations", "logits", "reserved")

_WEIGHT, _GRADIENT, _OPTIMIZER = 2.0, 4.0, 12.0  # bytes per parameter: bf16 copy, fp32 gradient, fp32 master and Adam
_OUTSIDE_MLP = 18.0  # bytes per token and channel: attention, norms, the MLP's input, dropout masks
_UNSPLIT = 10.0  # of them without sequence parallelism
_LOGIT = 12.0  # bytes per token and word: bf16 logits, their fp32 copy and gradient
_RESERVED = 1e9  # the device's context, communication buffers


def memory_parts(layout: Layout) -> dict[str, Array]:
    """Return name of ``MEMORY_PARTS`` -> bytes at the peak of the fullest device, float64 ``[n]``; they add up."""
    held, states = layout.stage_params, 1.0 / layout.shard
    each, shared = layout.gathered_each_time, layout.states_sharded
    wide = layout.width_bytes / 2.0
    with np.errstate(all="ignore"):
        unit = layout.layer_params * (1.0 - layout.expert_share + layout.expert_share / layout.ep) / layout.tp
        activations, logits = _activations(layout)
        return {
            "weights": held * (_WEIGHT * wide) * (1.0 - each + each * states),
            "gradients": held * _GRADIENT * (1.0 - layout.gradients_sharded + layout.gradients_sharded * states),
            "optimizer": held * _OPTIMIZER * (1.0 - shared + shared * states),
            # Two layers are whole at a time: the one that computes and the one that is fetched ahead.
            "gathered": 2.0 * unit * (_WEIGHT * wide) * each * (1.0 - states),
            "activations": activations,
            "logits": logits,
            "reserved": np.full_like(held, _RESERVED),
        }


def activation_bytes(layout: Layout) -> Array:
    """Return bytes per block and micro batch that backward needs and recomputation does not give."""
    split = np.where(layout.sequence_parallel > 0, layout.tp, 1.0)
    mlp = 2.0 * layout.inner * layout.tokens * layout.width / layout.tp
    rest = layout.tokens * layout.width * ((_OUTSIDE_MLP - _UNSPLIT) / layout.tp + _UNSPLIT / split)
    scores = 5.0 * layout.heads * layout.sequence * layout.tokens / layout.tp
    kept = layout.plain_attention * (1.0 - layout.selective_recompute)
    everything = mlp + rest + scores * kept
    entry = 2.0 * layout.tokens * layout.width / split
    wide = layout.width_bytes / 2.0
    return np.asarray(wide * ((1.0 - layout.full_recompute) * everything + layout.full_recompute * entry))


def _activations(layout: Layout) -> tuple[Array, Array]:
    """Return activations and logits of the fullest stage: the first holds most micro batches, the last the logits."""
    block = activation_bytes(layout) * layout.layers_per_stage
    working = np.where(layout.full_recompute > 0, activation_bytes(_without_recompute(layout)), 0.0)
    logits = _LOGIT * layout.tokens * layout.vocabulary / layout.tp
    first, last = block * layout.in_flight + working, block + working
    last_is_fullest = last + logits > first
    return np.where(last_is_fullest, last, first), np.where(last_is_fullest, logits, 0.0)


def _without_recompute(layout: Layout) -> Layout:
    return replace(layout, full_recompute=np.zeros_like(layout.full_recompute))
