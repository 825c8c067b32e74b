"""Degrees of parallelism, the batch and the sharding of states, as fields of a layout derived from facts."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from torchx_cubicml.predictors.roofline.facts import OFF, ON
from torchx_cubicml.records.standard_names import RESHARD_SIZES

if TYPE_CHECKING:
    from torchx_cubicml.predictors.roofline.facts import Facts

Array: TypeAlias = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
_GATHERED_EACH_TIME = ("FULL_SHARD", "HYBRID_SHARD", *RESHARD_SIZES)
_GATHERED_ONCE = ("SHARD_GRAD_OP", "_HYBRID_SHARD_ZERO2")
_HYBRID = ("HYBRID_SHARD", "_HYBRID_SHARD_ZERO2")


def degree_fields(facts: Facts) -> dict[str, Array]:
    """Return the degrees of parallelism and what communicates under computation, float64 ``[n]`` each."""
    tp, pp, cp, ep = (facts.number(f"{name}_degree", 1.0) for name in ("tp", "pp", "cp", "ep"))
    dp = facts.number("dp_degree", facts.number("dp_shard_degree") * facts.number("dp_replicate_degree", 1.0))
    nodes = facts.number("nnodes") * facts.number("nproc_per_node")
    world = facts.number("world_size", np.where(np.isnan(nodes), dp * tp * pp * cp, nodes))
    # The remaining ranks are data parallel, as in all frameworks; a stated data-parallel degree does not override that.
    degrees = {"tp": tp, "pp": pp, "cp": cp, "ep": ep, "world": world, "dp": world / (tp * pp * cp)}
    return {
        **degrees,
        "etp": facts.number("expert_tp_degree", tp),
        "gathers_keys": facts.share("cp_method", ("all_gather", "allgather")),
        # By ``alltoall``, torchtitan means a ring, as PyTorch passes keys and values on by that collective.
        "exchanges_heads": facts.share("cp_method", ("a2a", "ulysses")),
        "tensor_overlap": facts.share("tp_overlap", ON),
        "data_overlap": 1.0 - facts.share("overlap_communication", OFF),
    }


def batch_fields(facts: Facts, dp: Array) -> dict[str, Array]:
    """Return micro batch and accumulation, float64 ``[n]`` each."""
    micro = facts.number("micro_batch_size")
    implied = facts.number("global_batch_size") / (micro * dp)
    rounds = facts.number("gradient_accumulation_steps", np.where(np.isnan(implied), 1.0, np.maximum(implied, 1.0)))
    return {"micro": micro, "rounds": np.maximum(rounds, 1.0)}


def sharding_fields(facts: Facts, fields: dict[str, Array]) -> dict[str, Array]:
    """Return the states that are sharded and the ranks that share them, float64 ``[n]`` each.

    Args:
        facts: of ``n`` trainings.
        fields: degrees of parallelism, ``rounds`` and ``per_node`` of their layouts.
    """
    stage = facts.number("zero_stage", 0.0)
    gathered_each_time = np.maximum(facts.share("sharding_strategy", _GATHERED_EACH_TIME), stage >= 3)
    # Two sources may disagree; no layer counts twice.
    gathered_once = np.minimum(facts.share("sharding_strategy", _GATHERED_ONCE), 1.0 - gathered_each_time)
    hybrid = facts.share("sharding_strategy", _HYBRID)
    # Context-parallel ranks hold the same parameters: trainers shard over them as over data-parallel ranks.
    copies = fields["dp"] * fields["cp"]
    stated = facts.number("dp_shard_degree") * fields["cp"]
    within_node = np.clip(fields["per_node"] / fields["tp"], 1.0, copies)
    of_hybrid, of_others = (
        np.clip(np.where(np.isnan(stated), ranks, stated), 1.0, copies) for ranks in (within_node, copies)
    )
    # Of different layers, the mean of the part that a rank holds counts: the harmonic mean of the ranks.
    among_sharded = np.clip(hybrid / np.maximum(gathered_each_time + gathered_once, hybrid), 0.0, 1.0)
    mean = 1.0 / (among_sharded / of_hybrid + (1.0 - among_sharded) / of_others)
    # FSDP in a pipeline of PyTorch keeps whole gradients until the last micro batch (``backward_maybe_with_nosync`` of
    # torch.distributed.pipelining.stage), and the parameters that it does not free after forward.
    is_fsdp = facts.share("sharding_strategy", (*_GATHERED_EACH_TIME, *_GATHERED_ONCE)) > 0.0
    defers = is_fsdp & (fields["pp"] > 1) & (fields["rounds"] > 1)
    return {
        "defers_reduction": np.where(defers, 1.0, 0.0),
        "shard": np.where(among_sharded >= 1.0, of_hybrid, np.where(among_sharded > 0.0, mean, of_others)),
        "gathered_each_time": gathered_each_time,
        "gathered_once": gathered_once,
        "hybrid": hybrid,
        "states_sharded": np.maximum(gathered_each_time + gathered_once, stage >= 1),
        "gradients_sharded": np.where(defers, 0.0, np.maximum(gathered_each_time + gathered_once, stage >= 2)),
    }
