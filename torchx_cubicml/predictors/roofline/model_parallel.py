"""Communication of tensor, context and pipeline parallelism: all of it, and what computation does not hide."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from torchx_cubicml.predictors.roofline.computation import attention_flops, flops_per_second
from torchx_cubicml.predictors.roofline.smooth import smooth_excess

if TYPE_CHECKING:
    from torchx_cubicml.predictors.roofline.constants import Constants
    from torchx_cubicml.predictors.roofline.training_layout import Array, TrainingLayout


def tensor_parallel(layout: TrainingLayout, constants: Constants, compute: Array) -> tuple[Array, Array]:
    """Return seconds per layer and micro batch of tensor parallelism: all of them, and those that nothing hides.

    Four all-reduces, or as many gathers and scatters (Megatron-LM), half of them around attention. Experts exchange
    their tokens instead of the other half. If asked for, each collective is cut into a part per rank that passes while
    the product of another part is computed: all but one part can hide (Wang et al., ASPLOS 2023, "Overlap
    communication with dependent computation via decomposition"; torchtitan's asynchronous tensor parallelism).

    Args:
        layout: of ``n`` trainings.
        constants: as in ``PRIORS``.
        compute: seconds of computation per layer and micro batch.
    """
    tp, within_node = layout.tp, layout.tp <= layout.per_node
    volume = 8.0 * layout.width_bytes * layout.tokens * layout.width * (tp - 1.0) / tp
    volume = volume * (1.0 - layout.expert_layers / 2.0)
    bandwidth = np.where(within_node, layout.link * constants["link_tp"], layout.network * constants["network_tp"])
    in_node = constants["link_tp_latency_s"] * np.log2(np.maximum(tp, 2.0))
    hops = np.maximum(tp / layout.per_node, 1.0) ** constants["network_tp_hops"]
    latency = np.where(within_node, in_node, constants["network_tp_latency_s"] * hops)
    seconds = np.where(tp > 1, volume / bandwidth + 6.0 * latency, 0.0)
    hidden = np.minimum((1.0 - 1.0 / tp) * seconds, compute)
    return seconds, seconds - layout.tensor_overlap * hidden


def tp_contention(layout: TrainingLayout, constants: Constants) -> Array:
    """Return seconds per layer and micro batch that TP collectives lose to pipeline transfers on several nodes."""
    both = (layout.pp > 1) & (layout.tp > 1) & (layout.world > layout.per_node)
    return np.where(both, constants["tp_contention_s"] * layout.tp, 0.0)


def context_parallel(layout: TrainingLayout, constants: Constants) -> tuple[Array, Array]:
    """Return seconds per layer and micro batch of context parallelism: all of them, and those that nothing hides.

    - Ring: keys and values circulate, in backward gradients, too, each hop under the attention of one part (Liu et al.,
      arXiv 2310.01889).
    - Gathered: keys and values are gathered before attention, and once more in backward, where their gradients are
      scattered; nothing hides that (Llama 3, arXiv 2407.21783, section 3.3.2).
    - By heads: queries, keys, values and results change places, forward and backward (DeepSpeed-Ulysses, Jacobs et al.,
      arXiv 2309.14509, section 3.2).
    """
    cp, within_node = layout.cp, layout.cp * layout.tp <= layout.per_node
    channels = layout.width_bytes * layout.tokens * layout.width * layout.queries / layout.tp
    bytes_per_hop = 2.0 * channels * layout.kv_share
    bandwidth = np.where(within_node, layout.link * constants["link_tp"], layout.network * constants["network_tp"])
    latency = np.where(within_node, constants["link_tp_latency_s"], constants["network_tp_latency_s"])
    flops = attention_flops(layout, constants) * layout.tokens / layout.tp
    hidden = flops / flops_per_second(layout, constants) / 3.0 / cp
    exposed = 3.0 * (cp - 1.0) * (smooth_excess(bytes_per_hop / bandwidth, hidden) + latency)
    circulated = 3.0 * (cp - 1.0) * (bytes_per_hop / bandwidth + latency)
    gathered = 3.0 * ((cp - 1.0) * bytes_per_hop / bandwidth + latency)
    exchanged = 4.0 * channels * (1.0 + layout.kv_share) * (cp - 1.0) / cp / bandwidth + 8.0 * latency
    ring = np.maximum(1.0 - layout.gathers_keys - layout.exchanges_heads, 0.0)
    others = layout.gathers_keys * gathered + layout.exchanges_heads * exchanged
    return tuple(np.where(cp > 1, ring * each + others, 0.0) for each in (circulated, exposed))  # type: ignore[return-value]


def pipeline_transfer(layout: TrainingLayout, constants: Constants) -> Array:
    """Return seconds per micro batch between two stages: activations forward, their gradients back."""
    split = np.where(layout.sequence_parallel > 0, layout.tp, 1.0)
    volume = 2.0 * layout.width_bytes * layout.tokens * layout.width / split * layout.chunks
    within_node = layout.world <= layout.per_node
    bandwidth = constants["pp_bandwidth"] * np.where(within_node, layout.link, layout.network)
    return np.where(layout.pp > 1, volume / bandwidth + constants["pp_latency_s"] * layout.chunks, 0.0)
