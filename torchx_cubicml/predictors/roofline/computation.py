"""Computation of a transformer training: seconds of a micro batch from FLOPs, the peak and efficiencies."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from torchx_cubicml.predictors.features.device_specs import REFERENCE
from torchx_cubicml.predictors.roofline.mixture_of_experts import routed_slowdown
from torchx_cubicml.predictors.roofline.recomputation import recomputed_products, whole_bytes, without_recomputation

if TYPE_CHECKING:
    from torchx_cubicml.predictors.roofline.constants import Constants
    from torchx_cubicml.predictors.roofline.training_layout import Array, TrainingLayout

COMPUTE_PARTS = ("compute", "memory_traffic", "recomputation")
_A100_PEAK = 312e12


def compute(layout: TrainingLayout, constants: Constants) -> tuple[Array, Array]:
    """Return seconds of computation per micro batch: of the slowest stage, and of all stages together.

    A layer costs 6 FLOPs per token and parameter, besides attention; the projection onto the vocabulary makes the last
    stage the slowest unless it gets fewer layers. Attention and the products of experts count as many FLOPs as would
    take as long. Norms, activations, dropout and residuals take the time in which their tensors pass through memory.
    """
    attention = attention_flops(layout, constants)
    again = layout.full_recompute + layout.selective_recompute
    slower = layout.routed_params * (routed_slowdown(layout, constants) - 1.0)
    products = 6.0 * (layout.active_params + slower) * (1.0 + recomputed_products(layout) / 3.0)
    block = products + attention * (1.0 + again / 3.0)
    head = 6.0 * layout.width * layout.vocabulary
    seconds = layout.tokens / (layout.tp * flops_per_second(layout, constants))
    memory = memory_seconds(layout, constants)
    even = layout.layers_per_stage * block + head
    balanced = balanced_stage(layout, block, head)
    slowest = balanced + np.minimum(constants["unbalance"], 1.0) * (even - balanced)
    whole = layout.layers * block + head
    return slowest * seconds + layout.layers_per_stage * memory, whole * seconds + layout.layers * memory


def compute_parts(layout: TrainingLayout, constants: Constants) -> dict[str, Array]:
    """Return name of ``COMPUTE_PARTS`` -> seconds per micro batch of the slowest stage, as of ``compute``.

    ``compute`` is left for products and attention, forward and backward once. ``memory_traffic`` is the time in which
    tensors pass through memory besides. ``recomputation`` is all that the step would save if activations were kept.
    """
    kept = without_recomputation(layout)
    whole, once = compute(layout, constants)[0], compute(kept, constants)[0]
    memory = kept.layers_per_stage * memory_seconds(kept, constants)
    return dict(zip(COMPUTE_PARTS, (once - memory, memory, whole - once), strict=True))


def memory_seconds(layout: TrainingLayout, constants: Constants) -> Array:
    """Return the seconds per layer and micro batch in which tensors pass through memory outside matrix products.

    They are the scores of attention that no fused kernel computes, and what ``elementwise_bytes`` counts.
    """
    scores = constants["plain_attention"] * 16.0 * layout.plain_attention * layout.width_bytes * layout.heads
    through_memory = scores * layout.sequence * layout.tokens / layout.tp + elementwise_bytes(layout, constants)
    return np.asarray(through_memory / layout.memory_bandwidth)


def elementwise_bytes(layout: TrainingLayout, constants: Constants) -> Array:
    """Return the bytes that a block moves per micro batch in operations other than products and attention.

    Such operations take a third of the step of small models (Ivanov et al., arXiv 2007.00072), and more on a device
    whose peak has grown by more than its memory bandwidth. Recomputation repeats those of forward.
    """
    again = layout.full_recompute + layout.operation_recompute
    return np.asarray(constants["elementwise"] * whole_bytes(layout) * (1.0 + again / 3.0))


def attention_flops(layout: TrainingLayout, constants: Constants) -> Array:
    """Return the FLOPs of causal attention per token and layer, as many as would take as long at ``flops_per_second``.

    They are 6 per channel and position, and one more where a fused kernel computes the scores again in backward (Dao,
    arXiv 2307.08691). Attention is computed in bf16 where the products are in fp8, and reaches another share of the
    peak than they do. That share is smaller on newer devices, as kernels are written for older ones: the kernel that
    reaches up to 73 % of the peak on an A100 (arXiv 2307.08691) reaches 35 % on an H100, and one written for the H100
    75 % (Shah et al., arXiv 2407.08608).
    """
    each = (7.0 - layout.plain_attention) * layout.width * layout.queries * layout.sequence
    faster = np.where(layout.low_bit > 0, constants["low_bit"] * layout.peak / layout.attention_peak, 1.0)
    newer = np.maximum(layout.attention_peak / _A100_PEAK, 1.0) ** constants["attention_lag"]
    return np.asarray(each * faster * newer / constants["attention_efficiency"])


def flops_per_second(layout: TrainingLayout, constants: Constants) -> Array:
    """Return the achieved FLOP/s of one device: the peak times efficiencies, lower for small batches and slices."""
    width = layout.width / layout.tp
    utilisation = layout.tokens / (layout.tokens + constants["half_tokens"]) * width / (width + constants["half_width"])
    kernel_factor = np.where(layout.low_bit > 0, constants["low_bit"], 1.0) * constants["compiled"] ** layout.compiled
    reached = layout.peak * layout.matmul_share / REFERENCE.matmul_share
    return np.asarray(reached * constants["gemm_efficiency"] * utilisation * kernel_factor)


def balanced_stage(layout: TrainingLayout, block: Array, head: Array) -> Array:
    """Return the FLOPs of the slowest stage with the best assignment of layers to stages.

    With j layers beside the head they are max(head + j blocks, the fullest of the other stages). The best j is at most
    one off the crossing of the two.
    """
    layers, others = layout.layers, np.maximum(layout.pp - 1.0, 1.0)
    crossing = (others * (layers * block / others - head)) / (block * (others + 1.0))
    best = np.full_like(block, np.inf)
    for shift in (-1.0, 0.0, 1.0):
        last = np.clip(np.floor(crossing) + shift, 0.0, layers)
        best = np.minimum(best, np.maximum(head + last * block, np.ceil((layers - last) / others) * block))
    return np.where(layout.pp > 1, best, layers * block + head)
