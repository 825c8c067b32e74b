"""Seconds per step of a transformer training, part by part.

The structure follows Megatron-LM's cost of layers, collectives and pipeline bubble (Narayanan et al., arXiv 2104.04473;
Korthikanti et al., arXiv 2205.05198), MAD-Max's view of a step as streams of computation and communication that overlap
in part (arXiv 2310.02784), and the efficiencies of matrix products and the latency terms of Kundu et al.
(arXiv 2407.14645). One constant stands for each thing that no data sheet tells.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

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
    """What a step is made of, in seconds, float64 ``[n]`` each.

    Args:
        steady: name of a part -> seconds per step, all but what depends on stalls of the pipeline.
        micro_batch: seconds of one micro batch on the slowest pipeline stage, without a stall.
        through: seconds of one micro batch through all stages.
        rounds: micro batches per step.
        stages: of the pipeline.
        bubble: share of the plain bubble that the schedule leaves.
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
            stall_s: what a pipeline of very many stages loses per micro batch; see ``Calibration``.
        """
        stalled, bubble = self._pipeline(stall_s)
        waiting = self.rounds * (stalled - self.micro_batch)
        found = {**self.steady, "bubble": bubble}
        return {name: found[name] + waiting if name == "pipeline_parallel" else found[name] for name in PARTS}

    def total(self, stall_s: float = 0.0) -> Array:
        """Return seconds per step."""
        stalled, bubble = self._pipeline(stall_s)
        return np.asarray(sum(self.steady.values()) + bubble + self.rounds * (stalled - self.micro_batch))

    def _pipeline(self, stall_s: float) -> tuple[Array, Array]:
        lost = stall_s * (1.0 - 1.0 / self.stages)
        # Part of a stall hides under the micro batch's own time.
        stalled = np.sqrt(self.micro_batch**2 + lost**2 + self.micro_batch * lost)
        bubble = self.bubble * np.maximum(np.minimum(self.through, self.stages * stalled) - stalled, 0.0)
        return stalled, bubble


def step_time(layout: TrainingLayout, constants: Constants) -> StepTime:
    """Return the time of one step.

    Args:
        layout: ``n`` trainings; rows that it does not cover come out as nonsense or NaN.
        constants: as in ``PRIORS``.
    """
    with np.errstate(all="ignore"):
        stage, whole = compute(layout, constants)
        per_layer = {
            "tensor_parallel": tensor_parallel(layout, constants),
            "context_parallel": context_parallel(layout, constants),
            "expert_parallel": expert_parallel(layout, constants),
        }
        layers, rounds = layout.layers_per_stage, layout.rounds
        busy = stage + layers * sum(per_layer.values())
        # The host issues kernels while the device works: the longer of the two counts.
        floored = smooth_maximum(busy, layers * constants["launch_s"] + constants["micro_batch_s"])
        transfer = pipeline_transfer(layout, constants)
        contention = layers * tp_contention(layout, constants)
        gathering = exposed_gathering(layout, constants, stage)
        steady = {name: rounds * layers * value for name, value in per_layer.items()}
        steady["tensor_parallel"] += rounds * contention
        steady["compute"] = rounds * stage
        steady["overhead"] = rounds * (floored - busy) + constants["step_s"]
        steady["pipeline_parallel"] = rounds * transfer
        steady["data_parallel"] = rounds * gathering + exposed_reduction(layout, constants, stage)
        steady["optimizer"] = optimizer(layout, constants)
        return StepTime(
            steady=steady,
            micro_batch=floored + transfer + contention + gathering,
            through=whole + layout.layers * sum(per_layer.values()),
            rounds=rounds,
            stages=layout.pp,
            bubble=layout.bubble,
        )


def compute(layout: TrainingLayout, constants: Constants) -> tuple[Array, Array]:
    """Return seconds of matrix products per micro batch: of the slowest stage, and of all stages together.

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
    """Return what one device reaches: the peak, less what small micro batches and narrow slices lose."""
    width = layout.width / layout.tp
    filled = layout.tokens / (layout.tokens + constants["half_tokens"]) * width / (width + constants["half_width"])
    kernels = np.where(layout.low_bit > 0, constants["low_bit"], 1.0) * constants["compiled"] ** layout.compiled
    return np.asarray(layout.peak * constants["gemm_efficiency"] * filled * kernels)


def balanced_stage(layout: TrainingLayout, block: Array, head: Array) -> Array:
    """Return the FLOPs of the slowest stage if layers are cut so that it is as fast as can be.

    With j layers beside the head it is max(head + j blocks, the fullest of the others); the best j lies where the two
    meet, or one beside it.
    """
    layers, others = layout.layers, np.maximum(layout.pp - 1.0, 1.0)
    meeting = (others * (layers * block / others - head)) / (block * (others + 1.0))
    best = np.full_like(block, np.inf)
    for shift in (-1.0, 0.0, 1.0):
        last = np.clip(np.floor(meeting) + shift, 0.0, layers)
        best = np.minimum(best, np.maximum(head + last * block, np.ceil((layers - last) / others) * block))
    return np.where(layout.pp > 1, best, layers * block + head)


def tensor_parallel(layout: TrainingLayout, constants: Constants) -> Array:
    """Return seconds per layer and micro batch: four all-reduces, or as many gathers and scatters (Megatron-LM)."""
    tp, inside = layout.tp, layout.tp <= layout.per_node
    volume = 8.0 * layout.width_bytes * layout.tokens * layout.width * (tp - 1.0) / tp
    bandwidth = np.where(inside, layout.link * constants["link_tp"], layout.network * constants["network_tp"])
    near = constants["link_tp_latency_s"] * np.log2(np.maximum(tp, 2.0))
    hops = np.maximum(tp / layout.per_node, 1.0) ** constants["network_tp_hops"]
    latency = np.where(inside, near, constants["network_tp_latency_s"] * hops)
    return np.where(tp > 1, volume / bandwidth + 6.0 * latency, 0.0)


def tp_contention(layout: TrainingLayout, constants: Constants) -> Array:
    """Return seconds per layer and micro batch that collectives lose to transfers between stages on other nodes."""
    both = (layout.pp > 1) & (layout.tp > 1) & (layout.world > layout.per_node)
    return np.where(both, constants["tp_contention_s"] * layout.tp, 0.0)


def context_parallel(layout: TrainingLayout, constants: Constants) -> Array:
    """Return seconds per layer and micro batch: keys and values go round the ring, gradients too on the way back."""
    cp, inside = layout.cp, layout.cp * layout.tp <= layout.per_node
    turn = 2.0 * layout.width_bytes * layout.tokens * layout.width * layout.kv_share / layout.tp
    bandwidth = np.where(inside, layout.link * constants["link_tp"], layout.network * constants["network_tp"])
    latency = np.where(inside, constants["link_tp_latency_s"], constants["network_tp_latency_s"])
    attention = 6.0 * layout.width * layout.sequence * layout.tokens / layout.tp / flops_per_second(layout, constants)
    hidden = attention / 3.0 / cp
    exposed = smooth_excess(turn / bandwidth, hidden)
    return np.where(cp > 1, 3.0 * (cp - 1.0) * (exposed + latency), 0.0)


def expert_parallel(layout: TrainingLayout, constants: Constants) -> Array:
    """Return seconds per layer and micro batch: tokens go to each of their experts and back, forward and backward."""
    ep, inside = layout.ep, layout.ep * layout.tp <= layout.per_node
    sent = layout.active_experts * layout.width_bytes * layout.tokens * layout.width
    volume = 4.0 * sent * (ep - 1.0) / ep / layout.tp
    bandwidth = np.where(inside, layout.link * constants["link_tp"], layout.network * constants["network_tp"])
    latency = np.where(inside, constants["link_tp_latency_s"], constants["network_tp_latency_s"])
    return np.where((ep > 1) & (layout.expert_share > 0), volume / bandwidth + 4.0 * latency, 0.0)


def pipeline_transfer(layout: TrainingLayout, constants: Constants) -> Array:
    """Return seconds per micro batch between two stages: activations forward, their gradients back."""
    split = np.where(layout.sequence_parallel > 0, layout.tp, 1.0)
    volume = 2.0 * layout.width_bytes * layout.tokens * layout.width / split * layout.chunks
    inside = layout.world <= layout.per_node
    bandwidth = constants["pp_bandwidth"] * np.where(inside, layout.link, layout.network)
    return np.where(layout.pp > 1, volume / bandwidth + constants["pp_latency_s"] * layout.chunks, 0.0)


def dp_bandwidth(layout: TrainingLayout, constants: Constants, ranks: Array) -> Array:
    """Return bytes per second of collectives over ``ranks`` data-parallel ranks.

    Across nodes, the ranks of one node share its network cards; how far one collective uses them all is learned.
    """
    apart = layout.tp * layout.cp
    near = layout.link * constants["link_dp"]
    rails = np.clip(layout.per_node / apart, 1.0, ranks) ** constants["network_dp_rails"]
    far = np.minimum(layout.network * constants["network_dp"] * rails, near)
    return np.where(ranks * apart <= layout.per_node, near, far)


def exposed_gathering(layout: TrainingLayout, constants: Constants, stage: Array) -> Array:
    """Return seconds per micro batch of FSDP's gathers and scatters that computation does not hide.

    FULL_SHARD gathers parameters for forward and again for backward, SHARD_GRAD_OP once; both scatter gradients.
    """
    passes = 3.0 * layout.gathered_each_time + 2.0 * layout.gathered_once
    ranks = layout.shard
    volume = passes * layout.width_bytes * layout.stage_params * (ranks - 1.0) / ranks
    latency = passes * constants["dp_latency_s"] * layout.layers_per_stage * _spread(layout, constants, ranks)
    seconds = volume / dp_bandwidth(layout, constants, ranks) + np.where(ranks > 1, latency, 0.0)
    return np.where(passes > 0, smooth_excess(seconds, np.minimum(constants["overlap"], 1.0) * stage), 0.0)


def exposed_reduction(layout: TrainingLayout, constants: Constants, stage: Array) -> Array:
    """Return seconds per step of the all-reduce of gradients that the last backward pass does not hide.

    ZeRO 1 scatters gradients and gathers parameters instead: as many bytes. Hybrid sharding reduces over the replicas.
    """
    replicated = 1.0 - layout.gathered_each_time - layout.gathered_once + layout.hybrid
    ranks = np.where(layout.hybrid > 0, np.maximum(layout.dp / layout.shard, 1.0), layout.dp)
    held = layout.stage_params / np.where(layout.hybrid > 0, layout.shard, 1.0)
    volume = 2.0 * layout.width_bytes * replicated * held * (ranks - 1.0) / ranks
    seconds = volume / dp_bandwidth(layout, constants, ranks)
    latency = constants["dp_latency_s"] * layout.layers_per_stage * _spread(layout, constants, ranks)
    exposed = smooth_excess(seconds, np.minimum(constants["overlap"], 2.0) * 2.0 / 3.0 * stage) + latency
    return np.where((ranks > 1) & (replicated > 0), exposed, 0.0)


def optimizer(layout: TrainingLayout, constants: Constants) -> Array:
    """Return seconds per step: states and gradients pass through memory once, 16 bytes per parameter that is held."""
    held = 1.0 - layout.states_sharded + layout.states_sharded / layout.shard
    return np.asarray(16.0 * layout.stage_params * held / (layout.memory_bandwidth * constants["memory_bandwidth"]))


def smooth_maximum(left: Array, right: Array) -> Array:
    """Return the larger of two, a fifth more where they are alike."""
    left, right = left * left, right * right
    return np.asarray(np.sqrt(np.sqrt(left * left + right * right)))


def smooth_excess(seconds: Array, hidden: Array) -> Array:
    """Return what is left of ``seconds`` after ``hidden`` ran beside it; never nothing at all."""
    left = seconds - hidden
    return np.asarray(0.5 * (left + np.sqrt(left**2 + (0.2 * seconds) ** 2)))


def _spread(layout: TrainingLayout, constants: Constants, ranks: Array) -> Array:
    nodes = np.maximum(ranks * layout.tp * layout.cp / layout.per_node, 1.0)
    return np.asarray(nodes ** constants["network_dp_hops"])
