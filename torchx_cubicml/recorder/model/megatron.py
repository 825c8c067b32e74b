"""Degrees of parallelism of Megatron Core, from the process groups that the program initialised with it.

The model's own config tells recomputation, context parallelism and overlap. The functions are those of
``megatron/core/parallel_state.py`` in Megatron Core 0.8 to 0.19. The module is never imported here: without the
program's own import there is nothing to read.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn

    from torchx_cubicml.records.values import Value

_MODULE = "megatron.core.parallel_state"
_DEGREES = {
    "dp_degree": "get_data_parallel_world_size",
    "tp_degree": "get_tensor_model_parallel_world_size",
    "pp_degree": "get_pipeline_model_parallel_world_size",
    "cp_degree": "get_context_parallel_world_size",
    "ep_degree": "get_expert_model_parallel_world_size",
    "expert_tp_degree": "get_expert_tensor_parallel_world_size",
}
"""Fact -> function of Megatron Core."""
_ZERO_STAGES = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
"""Sharding strategy of Megatron-FSDP -> stage of ZeRO that shards the same states."""
_RING = "p2p"  # what Transformer Engine takes where the config says nothing


def megatron_facts(root: nn.Module | None = None) -> dict[str, Value]:
    """Return the known degrees under their standard names; empty unless the program initialised Megatron Core.

    The degree of tensor parallelism of experts is left out for a model without experts, where Megatron Core has one
    nevertheless.

    Args:
        root: the model as the training loop calls it; ``None`` to read the degrees alone.
    """
    module = sys.modules.get(_MODULE)
    if module is None or not _called(module, "model_parallel_is_initialized"):
        return {}
    found = {fact: _called(module, function) for fact, function in _DEGREES.items()}
    facts: dict[str, Value] = {
        fact: degree for fact, degree in found.items() if isinstance(degree, int) and degree >= 1
    }
    if root is None:
        return facts
    if not _has_experts(root):
        facts.pop("expert_tp_degree", None)
    stage = _zero_stage(getattr(root, "ddp_config", None))
    return facts | ({"zero_stage": stage} if stage is not None else {}) | _config_facts(root, facts)


def _zero_stage(wrapper: object) -> int | None:
    """Return the stage of ZeRO of a data-parallel wrapper by its config; ``None`` if unknown.

    Megatron's DistributedDataParallel keeps parameters and gradients whole. With the distributed optimizer, the states
    of the optimizer are sharded over the data-parallel ranks: stage 1.
    """
    if getattr(wrapper, "use_megatron_fsdp", False):
        return _ZERO_STAGES.get(getattr(wrapper, "data_parallel_sharding_strategy", ""))
    is_sharded = getattr(wrapper, "use_distributed_optimizer", None)
    return int(is_sharded) if isinstance(is_sharded, bool) else None


def _config_facts(root: nn.Module, degrees: Mapping[str, Value]) -> dict[str, Value]:
    """Return the facts of the model's config, with the names and words of the trainer's table."""
    config: Any = getattr(root, "config", None)
    found: dict[str, Value] = {}
    modules = getattr(config, "recompute_modules", None)
    if getattr(config, "recompute_granularity", None) == "selective" and isinstance(modules, list) and modules:
        found["selective_recompute"] = " ".join(map(str, modules))
    if degrees.get("cp_degree", 1) != 1 and hasattr(config, "cp_comm_type"):
        method = config.cp_comm_type or _RING
        found["cp_method"] = tuple(map(str, method)) if isinstance(method, list) else str(method)
    overlaps = getattr(config, "tp_comm_overlap", None)
    if degrees.get("tp_degree", 1) != 1 and isinstance(overlaps, bool):
        found["tp_overlap"] = overlaps
    return found


def _has_experts(root: nn.Module) -> bool:
    return any("moe" in type(module).__module__ for module in root.modules())


def count_megatron_parameters(root: nn.Module, degrees: Mapping[str, Value]) -> tuple[int | None, int | None]:
    """Return the number of parameters of the whole model and of trainable ones, from this rank's part of it.

    Megatron Core marks a parameter that is split over tensor-parallel ranks (``tensor_model_parallel``), and one of an
    expert that only some ranks hold (``allreduce`` is false). ``None`` for a stage of a pipeline, and where the experts
    cannot be told from other layers.

    Args:
        root: the model as the training loop calls it.
        degrees: facts of ``megatron_facts``.
    """
    of = {name: degrees.get(name) for name in ("tp_degree", "pp_degree", "ep_degree", "expert_tp_degree")}
    tp, pp, ep, expert_tp = (degree if isinstance(degree, int) else 0 for degree in of.values())
    if pp != 1 or not tp or (_has_experts(root) and (not ep or not expert_tp or (ep == 1 and expert_tp != tp))):
        return None, None
    total = trained = 0
    for parameter in root.parameters():
        is_expert = getattr(parameter, "allreduce", True) is False
        split = expert_tp if is_expert else tp
        copies = (split if getattr(parameter, "tensor_model_parallel", False) else 1) * (ep if is_expert else 1)
        total += copies * parameter.numel()
        trained += copies * parameter.numel() if parameter.requires_grad else 0
    return total, trained


def _called(module: Any, function: str) -> object:
    """Return the result of a function that only reads a size; ``None`` if this release has none or refuses."""
    try:
        return getattr(module, function)()
    except (AttributeError, AssertionError, RuntimeError, TypeError, ValueError):
        return None
