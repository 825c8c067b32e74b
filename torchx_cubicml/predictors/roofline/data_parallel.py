"""Exposed communication of data parallelism, plain and sharded, and the optimizer's time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from torchx_cubicml.predictors.roofline.smooth import smooth_excess

if TYPE_CHECKING:
    from torchx_cubicml.predictors.roofline.constants import Constants
    from torchx_cubicml.predictors.roofline.training_layout import Array, TrainingLayout


def dp_bandwidth(layout: TrainingLayout, constants: Constants, ranks: Array) -> Array:
    """Return bytes per second of collectives over ``ranks`` data-parallel ranks, context-parallel ones included.

    Across nodes, the ranks of one node share its network cards; a constant is how far one collective uses them all.
    """
    in_node = layout.link * constants["link_dp"]
    rails = np.clip(layout.per_node / layout.tp, 1.0, ranks) ** constants["network_dp_rails"]
    across_nodes = np.minimum(layout.network * constants["network_dp"] * rails, in_node)
    return np.where(ranks * layout.tp <= layout.per_node, in_node, across_nodes)


def gathering(layout: TrainingLayout, constants: Constants, stage: Array) -> tuple[Array, Array]:
    """Return the seconds per micro batch of FSDP's collectives: all of them, and those that computation does not hide.

    FULL_SHARD gathers parameters for forward and again for backward, SHARD_GRAD_OP once; both reduce-scatter gradients.
    In a pipeline, gradients wait for the last micro batch, as do parameters that are gathered once. Prefetching hides
    the collectives of any layer under the computation of any other, whatever their order.
    """
    once = np.where(layout.defers_reduction > 0, 1.0 / layout.rounds, 1.0)
    passes = (2.0 + once) * layout.gathered_each_time + 2.0 * once * layout.gathered_once
    ranks = layout.shard
    volume = passes * layout.width_bytes * _exchanged_params(layout, ranks)
    latency = passes * constants["dp_latency_s"] * layout.layers_per_stage * _latency_growth(layout, constants, ranks)
    seconds = volume / dp_bandwidth(layout, constants, ranks) + np.where(ranks > 1, latency, 0.0)
    exposed = smooth_excess(seconds, np.minimum(constants["overlap"], 1.0) * stage)
    return np.where(passes > 0, seconds, 0.0), np.where(passes > 0, exposed, 0.0)


def reduction(
    layout: TrainingLayout, constants: Constants, stage: Array, hidden_gathering: Array
) -> tuple[Array, Array]:
    """Return the seconds per step of the gradient all-reduce: all, and those that the last backward does not hide.

    ZeRO 1 reduce-scatters gradients and gathers parameters instead, which is as many bytes. Hybrid sharding reduces
    over the replicas, in groups of its own. Where some layers are sharded and others not, their collectives wait for
    each other: the backward pass that hides those of the sharded layers hides no others. Nothing is hidden where a
    trainer is told not to overlap.

    Args:
        layout: of ``n`` trainings.
        constants: as in ``PRIORS``.
        stage: seconds of computation per micro batch.
        hidden_gathering: seconds per micro batch of FSDP's collectives that computation hides.
    """
    copies = layout.dp * layout.cp
    whole = 1.0 - layout.gathered_each_time - layout.gathered_once
    # If it is unknown what is sharded, the shares are probabilities of all layers alike.
    is_mixed = (layout.unknown_sharding <= 0.0) & (whole > 0.0)
    busy = np.where(is_mixed, 2.0 / 3.0 * hidden_gathering, 0.0)
    share = np.where(is_mixed, np.minimum(whole + layout.hybrid, 1.0), 1.0)
    replicas = np.maximum(copies / layout.shard, 1.0)
    ranks = np.where(layout.hybrid > 0, replicas, copies)
    of_hybrid = layout.hybrid * _all_reduce_s(layout, constants, replicas) / layout.shard
    seconds = whole * _all_reduce_s(layout, constants, copies) + np.where(layout.hybrid > 0, of_hybrid, 0.0)
    latency = share * constants["dp_latency_s"] * layout.layers_per_stage * _latency_growth(layout, constants, ranks)
    hidden = np.maximum(np.minimum(constants["overlap"], 2.0) * 2.0 / 3.0 * stage - busy, 0.0)
    exposed = layout.data_overlap * smooth_excess(seconds, hidden) + (1.0 - layout.data_overlap) * seconds
    reduces = (ranks > 1) & (whole + layout.hybrid > 0)
    return np.where(reduces, seconds + latency, 0.0), np.where(reduces, exposed + latency, 0.0)


def _all_reduce_s(layout: TrainingLayout, constants: Constants, ranks: Array) -> Array:
    """Return the seconds of an all-reduce of all parameters of a stage over ``ranks`` data-parallel ranks."""
    volume = 2.0 * layout.width_bytes * _exchanged_params(layout, ranks)
    return volume / dp_bandwidth(layout, constants, ranks)


def _exchanged_params(layout: TrainingLayout, ranks: Array) -> Array:
    """Return the parameters that a rank gets of a stage from others; experts have fewer copies than all else has."""
    of_experts = expert_ranks(layout, ranks)
    dense = layout.stage_params - layout.stage_experts
    return np.asarray(dense * (ranks - 1.0) / ranks + layout.stage_experts * (of_experts - 1.0) / of_experts)


def optimizer(layout: TrainingLayout, constants: Constants) -> Array:
    """Return seconds per step of the device's optimizer: 16 bytes per held parameter pass through memory once."""
    seconds = 16.0 * held_states(layout) / (layout.memory_bandwidth * constants["memory_bandwidth"])
    return np.asarray((1.0 - layout.offloaded_optimizer) * seconds)


def held_states(layout: TrainingLayout) -> Array:
    """Return the parameters whose optimizer states a rank holds."""
    return held_params(layout, layout.states_sharded)


def held_params(layout: TrainingLayout, sharded: Array | float) -> Array:
    """Return the parameters of a stage that a rank holds.

    Args:
        layout: of ``n`` trainings.
        sharded: share of the layers in which a rank holds its part alone.
    """
    whole, experts = layout.stage_params, layout.stage_experts
    part = (whole - experts) / layout.shard + experts / expert_ranks(layout, layout.shard)
    return np.asarray((1.0 - sharded) * whole + sharded * part)


def expert_ranks(layout: TrainingLayout, ranks: Array) -> Array:
    """Return the ranks with the same experts among ``ranks`` with the same other parameters, >= 1."""
    return np.maximum(ranks * layout.tp / (layout.ep * layout.etp), 1.0)


def _latency_growth(layout: TrainingLayout, constants: Constants, ranks: Array) -> Array:
    nodes = np.maximum(ranks * layout.tp / layout.per_node, 1.0)
    return np.asarray(nodes ** constants["network_dp_hops"])
