"""Allow-list of an anonymous export: facts whose numbers are kept, with the words that are kept of their texts."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from torchx_cubicml.facts.hook_registry import hook_fact, hook_names, illegal_hook_fact
from torchx_cubicml.records.axis_names import AXIS_NAMES
from torchx_cubicml.records.job_time import QUEUE_S
from torchx_cubicml.records.resumption import RESUMPTION_FACTS
from torchx_cubicml.records.standard_names import FLAG_ALIASES, RESHARD_SIZES, STANDARD_PARAMETERS, WORKLOAD_SIZES
from torchx_cubicml.records.standard_words import SPELLINGS, SWITCHES, standard_word, switch_value

if TYPE_CHECKING:
    from collections.abc import Callable

    from torchx_cubicml.records.values import Scalar

DEVICE = "device"

KEPT_NAMES = frozenset(
    {
        *STANDARD_PARAMETERS,
        *FLAG_ALIASES.values(),
        *WORKLOAD_SIZES,
        *SPELLINGS,
        *SWITCHES,
        # Of the job and its hardware.
        *("world_size", "nnodes", "nproc_per_node", "devices_per_node", "device_memory_gib", "n_cpus", DEVICE, "cpu"),
        *("backend", "scheduler", "python_version", "torch_version", "cuda_version", "nccl_version", "driver_version"),
        *(
            "host_memory_gib",
            "host_memory_limit_gib",
            "compute_capability",
            "n_threads",
            "trainings",
            "measured_training",
            "saves_checkpoints",
        ),
        *("host_cpus", "other_busy_cpus", "idle_cpus", "other_device_processes", "other_device_share", QUEUE_S),
        # Of the model and its batches.
        *("global_batch_size", "device_batch_size", "n_params", "n_trainable_params", "layer_n_params"),
        *("float8_modules", "checkpointed_modules", "compile_mode", "tied_embeddings", "activation"),
        *("expert_d_ff", "shared_expert_d_ff", "n_dense_layers", "n_experts", "n_active_experts", "capacity_factor"),
        *("n_embedding_tables", "embedding_tables", "embedding_rows", "embedding_dims", "embedding_pooling"),
        *("embedding_pooling_types", "embedding_ranks", "train_pipeline"),
        # Of the optimizer and of parallelism.
        *("optimizer", "optimizer_fused", "optimizer_foreach", "max_grad_norm", "max_grad_value"),
        *("optimizer_offload_fraction", "dp_degree", "zero_stage", "virtual_pp_degree", "pp_stages"),
        *("pp_microbatches", "root_sharding_strategy", "param_dtype", "reduce_dtype", "mesh", "mesh_axes"),
        *("mesh_sizes", "tp_plan", "cp_method", "selective_recompute", "tp_overlap"),
    }
)
"""Standard names: numbers under them are kept."""

LEFT_OUT = frozenset(
    {
        *("host", "job_id", "visible_devices", "runs_as_typed", "restart_cause", "caught_out_of_memory"),
        *RESUMPTION_FACTS,
        *map(hook_fact, hook_names()),
        *map(illegal_hook_fact, hook_names()),
    }
)
"""Observed facts that name a place or hold a message."""

LOG_SOURCES = frozenset({"torchtitan", "Megatron-LM", "HF Trainer", "DeepSpeed", "nanoGPT"})
"""Names of the log formats of this package."""

_AXES = frozenset(word for words in AXIS_NAMES.values() for word in words) | {*AXIS_NAMES}
_WORDS: dict[str, frozenset[str]] = {
    "backend": frozenset({"nccl", "gloo", "mpi", "ucc", "xccl", "hccl", "cpu:gloo,cuda:nccl"}),
    "scheduler": frozenset(
        {
            *("slurm", "local_cwd", "local_docker", "kubernetes", "kubernetes_mcad", "docker", "lsf"),
            *("aws_batch", "aws_sagemaker", "gcp_batch"),
        }
    ),
    "compile_mode": frozenset({"default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"}),
    "activation": frozenset({"gelu", "relu", "silu", "swiglu", "geglu"}),
    "embedding_pooling_types": frozenset({"sum", "mean", "none"}),
    "optimizer": frozenset(
        {
            *("SGD", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "SparseAdam", "Adadelta", "Adafactor", "Adagrad"),
            *("ASGD", "LBFGS", "RMSprop", "Rprop", "Muon", "Lion", "LAMB", "FusedAdam", "FusedLAMB", "FusedSGD"),
            *("DeepSpeedCPUAdam", "DistributedOptimizer", "KeyedOptimizerWrapper", "CombinedOptimizer", "AdamW8bit"),
        }
    ),
    "train_pipeline": frozenset(
        {
            *("TrainPipelineBase", "TrainPipelineSparseDist", "TrainPipelineFusedSparseDist", "TrainPipelinePT2"),
            *("TrainPipelineSemiSync", "PrefetchTrainPipelineSparseDist", "TrainPipelineSparseDistCompAutograd"),
        }
    ),
    "pp_schedule": frozenset(
        {"ScheduleInterleavedZeroBubble", "ScheduleZBVZeroBubble", "ScheduleDualPipeV", "ScheduleLoopedBFS"}
    ),
    "sharding_strategy": frozenset(RESHARD_SIZES),
    "root_sharding_strategy": frozenset(RESHARD_SIZES),
    "mesh_axes": _AXES,
    "cp_method": frozenset({"allgather", "all_gather", "alltoall", "a2a", "p2p", "a2a+p2p", "ring", "ulysses"}),
}
_SPELLED_AS = {"root_sharding_strategy": "sharding_strategy", "param_dtype": "precision", "reduce_dtype": "precision"}
_SWITCHED = SWITCHES | {"optimizer_foreach", "saves_checkpoints", "tp_overlap"}
_VERSION = re.compile(r"(\d{1,3})\.(\d{1,3})(?!\d)")
_RANKS = re.compile(r"\d{1,5}(?:[+-]\d{1,5})*")
_AXIS = re.compile(r"([a-z_]{1,24})=(\d{1,5})")


def shareable_text(name: str, text: str, *, device_name: Callable[[str], str]) -> Scalar | None:
    """Return a text of a fact in ``KEPT_NAMES`` in its standard form; ``None`` if it is no word of a fixed list.

    Args:
        name: of the fact.
        text: its value.
        device_name: returns the standard name of a kind of device; empty for an unknown one.

    >>> known = {"NVIDIA H100 80GB HBM3": "h100"}
    >>> facts = {"precision": "bfloat16", "device": "NVIDIA H100 80GB HBM3", "torch_version": "2.5.1+me", "cpu": "X"}
    >>> [shareable_text(*fact, device_name=lambda text: known.get(text, "")) for fact in facts.items()]
    ['bf16', 'h100', '2.5', None]
    """
    if name == DEVICE:
        return device_name(text) or None
    if name in _PARSED:
        return _PARSED[name](text)
    if text in _WORDS.get(name, ()):
        return text
    if name in _SWITCHED and (switch := switch_value(text)) is not None:
        return switch
    return standard_word(_SPELLED_AS.get(name, name), text)


def _version(text: str) -> str | None:
    found = _VERSION.match(text)
    return f"{int(found[1])}.{int(found[2])}" if found is not None else None


def _ranks(text: str) -> str | None:
    return text if _RANKS.fullmatch(text) else None


def _mesh(text: str) -> str | None:
    axes = [_AXIS.fullmatch(part) for part in text.split(",")]
    known = [f"{axis[1]}={int(axis[2])}" for axis in axes if axis is not None and axis[1] in _AXES]
    return ",".join(known) if len(known) == len(axes) else None


def _axes(text: str) -> str | None:
    return text if all(axis in _AXES for axis in text.split(",")) else None


_PARSED: dict[str, Callable[[str], str | None]] = {
    **dict.fromkeys(
        ("python_version", "torch_version", "cuda_version", "nccl_version", "driver_version", "compute_capability"),
        _version,
    ),
    "embedding_ranks": _ranks,
    "mesh": _mesh,
    "mesh_order": _axes,
}
