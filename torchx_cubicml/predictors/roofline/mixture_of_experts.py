"""Mixtures of experts: grouped matrix products, all-to-all exchange and imbalance.

Each token is sent to the ranks of its k experts and back, in the forward and in the backward pass: four exchanges per
layer of k tokens' worth each (GShard, arXiv 2006.16668, section 3; Tutel, arXiv 2206.03382). A rank multiplies few
tokens with each of its experts (grouped GEMM; MegaBlocks, arXiv 2211.15841): the efficiency of a matrix product is that
of so few tokens. The fullest rank makes the others wait; where tokens are dropped, a capacity factor bounds it (Switch
Transformers, arXiv 2101.03961, section 2.2).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from torchx_cubicml.predictors.roofline.constants import Constants
    from torchx_cubicml.predictors.roofline.training_layout import Array, TrainingLayout


def fullest_rank(layout: TrainingLayout, constants: Constants) -> Array:
    """Return the tokens of the fullest expert-parallel rank over their mean, >= 1; 1 where experts are on one rank.

    With a capacity factor, experts get no more than it, and the fullest gets that much.
    """
    spread = 1.0 + constants["expert_imbalance"] * (1.0 - 1.0 / layout.ep)
    bounded = np.where(layout.capacity > 0.0, np.minimum(np.maximum(layout.capacity, 1.0), spread), spread)
    return np.where(layout.expert_share > 0.0, bounded, 1.0)


def routed_slowdown(layout: TrainingLayout, constants: Constants) -> Array:
    """Return the seconds of the experts' matrix products over those of a plain one with as many FLOPs, >= 0.

    An expert gets the tokens of all ranks among which the experts are divided, times k over the number of experts.
    """
    of_ranks = layout.tokens * layout.ep * layout.etp / layout.tp
    tokens = of_ranks * layout.active_experts / layout.experts
    width, plain_width = layout.expert_width / layout.etp, layout.width / layout.tp
    half_tokens, half_width = constants["half_tokens"], constants["half_width"]
    plain = layout.tokens / (layout.tokens + half_tokens) * plain_width / (plain_width + half_width)
    grouped = tokens / (tokens + half_tokens) * width / (width + half_width) * constants["grouped_gemm"]
    return np.where(layout.expert_share > 0.0, plain / grouped * fullest_rank(layout, constants), 1.0)


def expert_parallel(layout: TrainingLayout, constants: Constants, compute: Array) -> tuple[Array, Array]:
    """Return seconds per layer and micro batch of the experts' exchange: all of them, and those that nothing hides.

    Tokens for other nodes pass through the network while those for the own node pass through its links. Where experts
    are split further, their ranks gather the tokens and scatter the sums, forward and backward. Schedules that compute
    one micro batch while they exchange another hide it under computation (DualPipe, arXiv 2412.19437, section 3.2.1).

    Args:
        layout: of ``n`` trainings.
        constants: as in ``PRIORS``.
        compute: seconds of computation per layer and micro batch.
    """
    ep, etp = layout.ep, layout.etp
    sent = layout.active_experts * layout.width_bytes * layout.tokens * layout.width / layout.tp
    sent = sent * fullest_rank(layout, constants)
    near = np.clip(layout.per_node / etp, 1.0, ep)
    link, network = layout.link * constants["link_ep"], layout.network * constants["network_ep"]
    is_inside = near >= ep
    exchange = np.maximum(4.0 * sent * (near - 1.0) / ep / link, 4.0 * sent * (ep - near) / ep / network)
    latency = 4.0 * np.where(is_inside, constants["link_tp_latency_s"], constants["network_tp_latency_s"])
    copies = np.where(ep > 1, sent, sent / layout.active_experts)
    bandwidth = np.where(etp <= layout.per_node, link, network)
    gathered = np.where(etp > 1, 4.0 * copies * (etp - 1.0) / bandwidth, 0.0)
    seconds = np.where(ep > 1, exchange + latency, 0.0) + gathered
    seconds = layout.expert_layers * np.where(layout.expert_share > 0.0, seconds, 0.0)
    hidden = np.minimum(seconds, compute) * layout.batches_overlap
    return seconds, seconds - hidden
