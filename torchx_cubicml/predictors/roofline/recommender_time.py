"""Analytic step time of recommenders with sharded embedding tables, part by part.

Lookups are bound by memory and the exchange of embeddings by the network, as TorchRec's planner counts them
(``torchrec/distributed/planner/shard_estimators.py``): table-wise and column-wise shards send the pooled embeddings of
all samples in an all-to-all, row-wise shards reduce-scatter partial sums, replicated tables all-reduce their gradients.
The streams of computation and communication, of which one hides the other, follow MAD-Max (Hsia et al., arXiv
2310.02784); per-layer FSDP of the dense part and its trade with the planner's reservation follow CubicML (arXiv
2409.04585).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from torchx_cubicml.predictors.roofline.embedding_load import QUANTITIES
from torchx_cubicml.predictors.roofline.smooth import smooth_excess

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torchx_cubicml.predictors.roofline.constants import Constants
    from torchx_cubicml.predictors.roofline.recommender_layout import RecommenderLayout

RECOMMENDER_PARTS = (
    "compute",
    "data_parallel",
    "embedding_lookup",
    "embedding_imbalance",
    "embedding_input",
    "embedding_exchange",
    "embedding_replicas",
    "optimizer",
    "overhead",
)
_WEIGHT = 2.0  # bytes of a dense parameter in transfer
_STATE = 16.0  # bytes per dense parameter that an optimizer step reads and writes
_COLLECTIVES = 4.0  # of one kind of sharding: lengths, indices, embeddings, their gradients
_AT = {name: index for index, name in enumerate(QUANTITIES)}


def recommender_step_time(layout: RecommenderLayout, constants: Constants) -> dict[str, NDArray[np.float64]]:
    """Return name of ``RECOMMENDER_PARTS`` -> seconds per step, float64 ``[n]``; they add up to the step.

    Args:
        layout: ``n`` trainings; those that are not covered are meaningless.
        constants: as in ``RECOMMENDER_PRIORS``.
    """
    filled = layout.samples / (layout.samples + constants["half_tokens"])
    forward = 2.0 * layout.sizes * (layout.samples / (layout.peak * constants["gemm_efficiency"] * filled))[:, None]
    compute = 3.0 * forward.sum(axis=1)
    gather = _WEIGHT * layout.sizes * seconds_per_byte(layout, constants)[:, None]
    memory = layout.memory_bandwidth * constants["memory_bandwidth"]
    mean = lookup_seconds(layout, layout.load.mean, constants)
    fullest = lookup_seconds(layout, layout.load.fullest, constants).max(axis=1)
    held = (layout.sizes / np.where(layout.sharded, layout.ranks[:, None], 1.0)).sum(axis=1)
    parts = {
        "compute": compute,
        "data_parallel": last_end(layout, forward, gather) - compute,
        "embedding_lookup": mean,
        "embedding_imbalance": np.maximum(fullest - mean, 0.0),
        "embedding_input": input_seconds(layout, constants, hidden=compute),
        "embedding_exchange": exchange_seconds(layout, constants, forward=forward.sum(axis=1)),
        "embedding_replicas": replica_seconds(layout, constants),
        "optimizer": _STATE * held / memory,
        "overhead": np.full(len(compute), constants["step_s"]),
    }
    return {name: constants["slowdown"] * part for name, part in parts.items()}


def recommender_hidden(layout: RecommenderLayout, constants: Constants) -> dict[str, NDArray[np.float64]]:
    """Return part -> seconds per step of communication that computation hides, float64 ``[n]``; no part counts them.

    Args:
        layout: ``n`` trainings; those that are not covered are meaningless.
        constants: as in ``RECOMMENDER_PRIORS``.
    """
    exposed = recommender_step_time(layout, constants)
    gather = _WEIGHT * layout.sizes * seconds_per_byte(layout, constants)[:, None]
    times = 1.0 * layout.sharded + layout.each_time + np.where(layout.sharded, 1.0, 2.0)
    nothing = np.zeros(len(layout.samples))
    whole = {
        "data_parallel": (gather * times).sum(axis=1),
        "embedding_input": input_seconds(replace(layout, is_pipelined=nothing), constants, hidden=nothing),
        "embedding_exchange": exchange_seconds(layout, constants, forward=nothing),
    }
    return {name: np.maximum(constants["slowdown"] * each - exposed[name], 0.0) for name, each in whole.items()}


def lookup_seconds(layout: RecommenderLayout, load: NDArray[np.float64], constants: Constants) -> NDArray[np.float64]:
    """Return the seconds of a step's lookups, float64 ``[n]`` or ``[n, n_ranks]``.

    Rows are read forward, and read and written backward, where their gradient is applied at once. A row at a random
    address takes the latency of the memory besides its bytes, unless the cache holds it.

    Args:
        layout: of ``n`` trainings.
        load: of a rank or of several, in the order of ``QUANTITIES``, float64 ``[n, ..., n_quantities]``.
        constants: as in ``RECOMMENDER_PRIORS``.
    """
    held, per_row = load[..., _AT["held"]], load[..., _AT["rows"]] * constants["row_bytes"]
    cached = np.minimum(constants["cache_bytes"] / np.maximum(held, 1.0), 1.0)
    slowness = 1.0 - cached * (1.0 - 1.0 / np.maximum(constants["cache_speed"], 1.0))
    moved = (load[..., _AT["row_bytes"]] + per_row) * slowness + load[..., _AT["pooled_bytes"]]
    moved = 3.0 * moved + load[..., _AT["sorted"]] * constants["bucket_bytes"]
    memory = (layout.memory_bandwidth * constants["memory_bandwidth"]).reshape(-1, *[1] * (moved.ndim - 1))
    return np.asarray(moved / memory + load[..., _AT["shards"]] * constants["table_s"])


def input_seconds(
    layout: RecommenderLayout, constants: Constants, *, hidden: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the exposed seconds of the all-to-all of indices, ``[n]``.

    Args:
        layout: of ``n`` trainings.
        constants: as in ``RECOMMENDER_PRIORS``.
        hidden: seconds of computation under which it hides, where a pipeline exchanges the indices of the next step.
    """
    bandwidth = wire_bandwidth(layout, constants) * constants["all_to_all"]
    received = np.max(layout.load.fullest[:, :, _AT["received"]], axis=1)
    seconds = received / bandwidth + 0.5 * _latency(layout, constants)
    exposed = np.where(layout.is_pipelined > 0.0, smooth_excess(seconds, hidden), seconds)
    return np.asarray(exposed * (layout.ranks > 1.0))


def exchange_seconds(
    layout: RecommenderLayout, constants: Constants, *, forward: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the exposed seconds of the exchange of embeddings, and of their gradients, ``[n]``.

    It ends with the rank that sends most. Only the dense layers that need no embedding, those at the bottom, hide it.

    Args:
        layout: of ``n`` trainings.
        constants: as in ``RECOMMENDER_PRIORS``.
        forward: seconds of the dense forward pass, ``[n]``; the backward pass takes twice as long.
    """
    wide, in_node = wire_bandwidth(layout, constants), layout.link * constants["link_dp"]
    most = layout.load.fullest.max(axis=1)
    seconds = most[:, _AT["sent"]] / (wide * constants["all_to_all"])
    seconds += most[:, _AT["scattered"]] / (wide * constants["reduce_scatter"])
    seconds += most[:, _AT["scattered_in_node"]] / (in_node * constants["reduce_scatter"])
    hidden = np.minimum(constants["hidden_exchange"], 1.0) * forward
    both_ways = smooth_excess(seconds, hidden) + smooth_excess(seconds, 2.0 * hidden)
    return np.asarray((both_ways + 0.5 * _latency(layout, constants)) * (layout.ranks > 1.0))


def replica_seconds(layout: RecommenderLayout, constants: Constants) -> NDArray[np.float64]:
    """Return the seconds of replicated tables besides their lookups: all-reduce of gradients, optimizer; ``[n]``.

    Their gradients are dense: every row is zeroed, reduced and updated, whichever the samples looked up.
    """
    memory = layout.memory_bandwidth * constants["memory_bandwidth"]
    reduced = 2.0 * layout.replicated * seconds_per_byte(layout, constants)
    return np.asarray(reduced + layout.replicated * constants["replica_passes"] / memory)


def last_end(
    layout: RecommenderLayout, forward: NDArray[np.float64], gather: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the time at which the last of the computation and communication streams ends; each is in order.

    Args:
        layout: of ``n`` trainings.
        forward: seconds of each dense layer, ``[n, n_layers]``.
        gather: seconds that a collective over its parameters takes, likewise.
    """
    communication, computation = np.zeros((2, len(forward)))
    exists = layout.sizes > 0.0
    for layer in range(forward.shape[1]):
        sharded = layout.sharded[:, layer]
        communication = communication + np.where(sharded, gather[:, layer], 0.0)
        computation = np.where(sharded, np.maximum(computation, communication), computation) + forward[:, layer]
    for layer in reversed(range(forward.shape[1])):
        again = layout.each_time[:, layer]
        communication = communication + np.where(again, gather[:, layer], 0.0)
        computation = np.where(again, np.maximum(computation, communication), computation) + 2.0 * forward[:, layer]
        # Gradients are reduce-scattered where sharded, else all-reduced: twice the bytes.
        times = np.where(layout.sharded[:, layer], 1.0, 2.0)
        reduced = np.maximum(communication, computation) + gather[:, layer] * times
        communication = np.where(exists[:, layer], reduced, communication)
    return np.maximum(computation, communication)


def wire_bandwidth(layout: RecommenderLayout, constants: Constants) -> NDArray[np.float64]:
    """Return bytes per second of one rank in a collective over all ranks, ``[n]``."""
    in_node = layout.link * constants["link_dp"]
    across_nodes = np.minimum(layout.network * constants["network_dp"], in_node)
    return np.where(layout.ranks <= layout.per_node, in_node, across_nodes)


def seconds_per_byte(layout: RecommenderLayout, constants: Constants) -> NDArray[np.float64]:
    """Return the seconds per byte of a gather or a reduce-scatter over all ranks, ``[n]``; 0 for one rank."""
    return np.asarray((layout.ranks - 1.0) / layout.ranks / wire_bandwidth(layout, constants))


def _latency(layout: RecommenderLayout, constants: Constants) -> NDArray[np.float64]:
    return np.asarray(_COLLECTIVES * layout.exchanges * constants["exchange_s"])
