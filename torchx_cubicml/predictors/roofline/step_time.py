"""Analytic step time of a transformer training, part by part.

The costs of layers, collectives and pipeline bubble follow Megatron-LM (Narayanan et al., arXiv 2104.04473;
Korthikanti et al., arXiv 2205.05198). The overlap of computation and communication streams follows MAD-Max
(arXiv 2310.02784). The efficiencies of matrix products and the latency terms follow Kundu et al. (arXiv 2407.14645).
Each quantity that is in no data sheet is a free constant.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from torchx_cubicml.predictors.roofline.completed_layout import completed

if TYPE_CHECKING:
    from torchx_cubicml.predictors.roofline.constants import Constants
    from torchx_cubicml.predictors.roofline.training_layout import Array, TrainingLayout

PARTS = (
    "compute",
    "tensor_parallel",
    "context_parallel",
    "expert_parallel",
    "pipeline_parallel",
    "data_parallel",
    "bubble",
    "optimizer",
    "overhead",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """Parts of a step in seconds, float64 ``[n]`` each.

    Args:
        steady: name of a part -> seconds per step, for the parts that do not depend on stalls of the pipeline.
        micro_batch: seconds of one micro batch on the slowest pipeline stage, without a stall.
        through: seconds of one micro batch through all stages.
        rounds: micro batches per step.
        stages: of the pipeline.
        bubble: share of the plain bubble that remains with the schedule.
    """

    steady: dict[str, Array]
    micro_batch: Array
    through: Array
    rounds: Array
    stages: Array
    bubble: Array

    def parts(self, stall_s: float = 0.0) -> dict[str, Array]:
        """Return name of ``PARTS`` -> seconds per step; they add up to the step.

        Args:
            stall_s: seconds that a pipeline of very many stages loses per micro batch; see ``SlowMode``.
        """
        stalled, bubble = self._pipeline(stall_s)
        stalls = self.rounds * (stalled - self.micro_batch)
        parts = {**self.steady, "bubble": bubble}
        return {name: parts[name] + stalls if name == "pipeline_parallel" else parts[name] for name in PARTS}

    def total(self, stall_s: float = 0.0) -> Array:
        """Return seconds per step."""
        stalled, bubble = self._pipeline(stall_s)
        return np.asarray(sum(self.steady.values()) + bubble + self.rounds * (stalled - self.micro_batch))

    def _pipeline(self, stall_s: float) -> tuple[Array, Array]:
        lost = stall_s * (1.0 - 1.0 / self.stages)
        # A stall partly overlaps with the micro batch's own time.
        stalled = np.sqrt(self.micro_batch**2 + lost**2 + self.micro_batch * lost)
        bubble = self.bubble * np.maximum(np.minimum(self.through, self.stages * stalled) - stalled, 0.0)
        return stalled, bubble


def step_time(layout: TrainingLayout, constants: Constants) -> StepTime:
    """Return the time of one step.

    Args:
        layout: ``n`` trainings; the results of rows that are not covered are meaningless or NaN.
        constants: as in ``PRIORS``.
    """
    layout = completed(layout, constants)
    with np.errstate(all="ignore"):
        stage, whole = compute(layout, constants)
        per_layer = {
            "tensor_parallel": tensor_parallel(layout, constants),
            "context_parallel": context_parallel(layout, constants),
            "expert_parallel": expert_parallel(layout, constants),
        }
        layers, rounds = layout.layers_per_stage, layout.rounds
        unfloored = stage + layers * sum(per_layer.values())
        # The host issues kernels while the device works: the longer of the two counts.
        floored = smooth_maximum(unfloored, layers * constants["launch_s"] + constants["micro_batch_s"])
        transfer = pipeline_transfer(layout, constants)
        contention = layers * tp_contention(layout, constants)
        all_gathering, exposed = gathering(layout, constants, stage)
        steady = {name: rounds * layers * value for name, value in per_layer.items()}
        steady["tensor_parallel"] += rounds * contention
        steady["compute"] = rounds * stage
        steady["overhead"] = rounds * (floored - unfloored) + constants["step_s"]
        steady["pipeline_parallel"] = rounds * transfer
        steady["data_parallel"] = rounds * exposed
        steady["data_parallel"] += exposed_reduction(layout, constants, stage, all_gathering - exposed)
        steady["optimizer"] = optimizer(layout, constants)
        return StepTime(
            steady=steady,
            micro_batch=floored + transfer + contention + exposed,
            through=whole + layout.layers * sum(per_layer.values()),
            rounds=rounds,
            stages=layout.pp,
            bubble=layout.bubble,
        )


def compute(layout: TrainingLayout, constants: Constants) -> tuple[Array, Array]:
    """Return seconds of computation per micro batch: of the slowest stage, and of all stages together.

    A layer costs 6 FLOPs per token and parameter, and 6 per token, channel and position for causal attention; the
    projection onto the vocabulary makes the last stage the slowest unless it gets fewer layers.
    """
    attention = 6.0 * layout.width * layout.sequence
    scale = 1.0 + layout.full_recompute / 3.0
    block = 6.0 * layout.active_params * scale + attention * (scale + layout.selective_recompute / 3.0)
    head = 6.0 * layout.width * layout.vocabulary
    seconds = layout.tokens / (layout.tp * flops_per_second(layout, constants))
    scores = constants["plain_attention"] * 16.0 * layout.plain_attention * layout.width_bytes * layout.heads
    memory = scores * layout.sequence * layout.tokens / layout.tp / layout.memory_bandwidth
    even = layout.layers_per_stage * block + head
    balanced = balanced_stage(layout, block, head)
    slowest = balanced + np.minimum(constants["unbalance"], 1.0) * (even - balanced)
    whole = layout.layers * block + head
    return slowest * seconds + layout.layers_per_stage * memory, whole * seconds + layout.layers * memory


def flops_per_second(layout: TrainingLayout, constants: Constants) -> Array:
    """Return the achieved FLOP/s of one device: the peak times efficiencies, lower for small batches and slices."""
    width = layout.width / layout.tp
    utilisation = layout.tokens / (layout.tokens + constants["half_tokens"]) * width / (width + constants["half_width"])
    kernel_factor = np.where(layout.low_bit > 0, constants["low_bit"], 1.0) * constants["compiled"] ** layout.compiled
    return np.asarray(layout.peak * constants["gemm_efficiency"] * utilisation * kernel_factor)


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


def tensor_parallel(layout: TrainingLayout, constants: Constants) -> Array:
    """Return seconds per layer and micro batch: four all-reduces, or as many gathers and scatters (Megatron-LM)."""
    tp, within_node = layout.tp, layout.tp <= layout.per_node
    volume = 8.0 * layout.width_bytes * layout.tokens * layout.width * (tp - 1.0) / tp
    bandwidth = np.where(within_node, layout.link * constants["link_tp"], layout.network * constants["network_tp"])
    in_node = constants["link_tp_latency_s"] * np.log2(np.maximum(tp, 2.0))
    hops = np.maximum(tp / layout.per_node, 1.0) ** constants["network_tp_hops"]
    latency = np.where(within_node, in_node, constants["network_tp_latency_s"] * hops)
    return np.where(tp > 1, volume / bandwidth + 6.0 * latency, 0.0)


def tp_contention(layout: TrainingLayout, constants: Constants) -> Array:
    """Return seconds per layer and micro batch that TP collectives lose to pipeline transfers on several nodes."""
    both = (layout.pp > 1) & (layout.tp > 1) & (layout.world > layout.per_node)
    return np.where(both, constants["tp_contention_s"] * layout.tp, 0.0)


def context_parallel(layout: TrainingLayout, constants: Constants) -> Array:
    """Return seconds per layer and micro batch: keys and values circulate in a ring, in backward gradients, too."""
    cp, within_node = layout.cp, layout.cp * layout.tp <= layout.per_node
    bytes_per_hop = 2.0 * layout.width_bytes * layout.tokens * layout.width * layout.kv_share / layout.tp
    bandwidth = np.where(within_node, layout.link * constants["link_tp"], layout.network * constants["network_tp"])
    latency = np.where(within_node, constants["link_tp_latency_s"], constants["network_tp_latency_s"])
    attention = 6.0 * layout.width * layout.sequence * layout.tokens / layout.tp / flops_per_second(layout, constants)
    hidden = attention / 3.0 / cp
    exposed = smooth_excess(bytes_per_hop / bandwidth, hidden)
    return np.where(cp > 1, 3.0 * (cp - 1.0) * (exposed + latency), 0.0)


def expert_parallel(layout: TrainingLayout, constants: Constants) -> Array:
    """Return seconds per layer and micro batch: tokens go to each of their experts and back, forward and backward."""
    ep, within_node = layout.ep, layout.ep * layout.tp <= layout.per_node
    sent = layout.active_experts * layout.width_bytes * layout.tokens * layout.width
    volume = 4.0 * sent * (ep - 1.0) / ep / layout.tp
    bandwidth = np.where(within_node, layout.link * constants["link_tp"], layout.network * constants["network_tp"])
    latency = np.where(within_node, constants["link_tp_latency_s"], constants["network_tp_latency_s"])
    return np.where((ep > 1) & (layout.expert_share > 0), volume / bandwidth + 4.0 * latency, 0.0)


def pipeline_transfer(layout: TrainingLayout, constants: Constants) -> Array:
    """Return seconds per micro batch between two stages: activations forward, their gradients back."""
    split = np.where(layout.sequence_parallel > 0, layout.tp, 1.0)
    volume = 2.0 * layout.width_bytes * layout.tokens * layout.width / split * layout.chunks
    within_node = layout.world <= layout.per_node
    bandwidth = constants["pp_bandwidth"] * np.where(within_node, layout.link, layout.network)
    return np.where(layout.pp > 1, volume / bandwidth + constants["pp_latency_s"] * layout.chunks, 0.0)


def dp_bandwidth(layout: TrainingLayout, constants: Constants, ranks: Array) -> Array:
    """Return bytes per second of collectives over ``ranks`` data-parallel ranks.

    Across nodes, the ranks of one node share its network cards; a constant is how far one collective uses them all.
    """
    model_parallel = layout.tp * layout.cp
    in_node = layout.link * constants["link_dp"]
    rails = np.clip(layout.per_node / model_parallel, 1.0, ranks) ** constants["network_dp_rails"]
    across_nodes = np.minimum(layout.network * constants["network_dp"] * rails, in_node)
    return np.where(ranks * model_parallel <= layout.per_node, in_node, across_nodes)


def gathering(layout: TrainingLayout, constants: Constants, stage: Array) -> tuple[Array, Array]:
    """Return the seconds per micro batch of FSDP's collectives: all of them, and those that computation does not hide.

    FULL_SHARD gathers parameters for forward and again for backward, SHARD_GRAD_OP once; both reduce-scatter gradients.
    Prefetching hides the collectives of any layer under the computation of any other, whatever their order.
    """
    passes = 3.0 * layout.gathered_each_time + 2.0 * layout.gathered_once
    ranks = layout.shard
    volume = passes * layout.width_bytes * layout.stage_params * (ranks - 1.0) / ranks
    latency = passes * constants["dp_latency_s"] * layout.layers_per_stage * _latency_growth(layout, constants, ranks)
    seconds = volume / dp_bandwidth(layout, constants, ranks) + np.where(ranks > 1, latency, 0.0)
    exposed = smooth_excess(seconds, np.minimum(constants["overlap"], 1.0) * stage)
    return np.where(passes > 0, seconds, 0.0), np.where(passes > 0, exposed, 0.0)


def exposed_reduction(layout: TrainingLayout, constants: Constants, stage: Array, hidden_gathering: Array) -> Array:
    """Return the exposed seconds per step of the gradient all-reduce: those that the last backward does not hide.

    ZeRO 1 reduce-scatters gradients and gathers parameters instead, which is as many bytes. Hybrid sharding reduces
    over the replicas, in groups of its own. Where some layers are sharded and others not, their collectives wait for
    each other: the backward pass that hides those of the sharded layers hides no others.

    Args:
        layout: of ``n`` trainings.
        constants: as in ``PRIORS``.
        stage: seconds of computation per micro batch.
        hidden_gathering: seconds per micro batch of FSDP's collectives that computation hides.
    """
    whole = 1.0 - layout.gathered_each_time - layout.gathered_once
    # If it is unknown what is sharded, the shares are probabilities of all layers alike.
    is_mixed = (layout.unknown_sharding <= 0.0) & (whole > 0.0)
    busy = np.where(is_mixed, 2.0 / 3.0 * hidden_gathering, 0.0)
    share = np.where(is_mixed, np.minimum(whole + layout.hybrid, 1.0), 1.0)
    ranks = np.where(layout.hybrid > 0, np.maximum(layout.dp / layout.shard, 1.0), layout.dp)
    of_hybrid = (
        layout.hybrid * _all_reduce_s(layout, constants, np.maximum(layout.dp / layout.shard, 1.0)) / layout.shard
    )
    seconds = whole * _all_reduce_s(layout, constants, layout.dp) + np.where(layout.hybrid > 0, of_hybrid, 0.0)
    latency = constants["dp_latency_s"] * layout.layers_per_stage * _latency_growth(layout, constants, ranks)
    hidden = np.maximum(np.minimum(constants["overlap"], 2.0) * 2.0 / 3.0 * stage - busy, 0.0)
    exposed = smooth_excess(seconds, hidden) + share * latency
    return np.where((ranks > 1) & (whole + layout.hybrid > 0), exposed, 0.0)


def _all_reduce_s(layout: TrainingLayout, constants: Constants, ranks: Array) -> Array:
    """Return the seconds of an all-reduce of all parameters of a stage over ``ranks`` data-parallel ranks."""
    volume = 2.0 * layout.width_bytes * layout.stage_params * (ranks - 1.0) / ranks
    return volume / dp_bandwidth(layout, constants, ranks)


def optimizer(layout: TrainingLayout, constants: Constants) -> Array:
    """Return seconds per step of the optimizer: 16 bytes per held parameter pass through memory once."""
    held = 1.0 - layout.states_sharded + layout.states_sharded / layout.shard
    return np.asarray(16.0 * layout.stage_params * held / (layout.memory_bandwidth * constants["memory_bandwidth"]))


def smooth_maximum(left: Array, right: Array) -> Array:
    """Return a smooth maximum of two values: a fifth more than either where they are equal."""
    left, right = left * left, right * right
    return np.asarray(np.sqrt(np.sqrt(left * left + right * right)))


def smooth_excess(seconds: Array, hidden: Array) -> Array:
    """Return a smooth ``max(seconds - hidden, 0)``, which is always positive."""
    excess = seconds - hidden
    return np.asarray(0.5 * (excess + np.sqrt(excess**2 + (0.2 * seconds) ** 2)))


def _latency_growth(layout: TrainingLayout, constants: Constants, ranks: Array) -> Array:
    nodes = np.maximum(ranks * layout.tp * layout.cp / layout.per_node, 1.0)
    return np.asarray(nodes ** constants["network_dp_hops"])
