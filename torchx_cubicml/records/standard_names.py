"""Standard names of parameters and facts, with their aliases among flags and CSV columns."""

from __future__ import annotations

import re

STANDARD_PARAMETERS = (
    "micro_batch_size",
    "gradient_accumulation_steps",
    "global_batch_size",
    "dp_replicate_degree",
    "dp_shard_degree",
    "tp_degree",
    "pp_degree",
    "cp_degree",
    "ep_degree",
    "expert_tp_degree",
    "mesh_order",
    "sharding_strategy",
    "activation_checkpointing",
    "precision",
    "compile",
    "embedding_sharding",
    "embedding_kernel",
    "reserved_share",
    "sequence_parallel",
    "partition",
)
"""Parameters whose observed value replaces the requested one in a training row."""

EMBEDDING_SHARDINGS = (
    "data_parallel",
    "table_wise",
    "row_wise",
    "column_wise",
    "table_row_wise",
    "table_column_wise",
    "grid_shard",
)
"""TorchRec's names of the ways to shard an embedding table."""

EMBEDDING_KERNELS = ("dense", "fused", "fused_uvm", "fused_uvm_caching", "fused_triton", "key_value")
"""TorchRec's names of the kernels that look up an embedding table in training."""

LEFT_TO_PLANNER = "planner"
"""Value that leaves a table's sharding or kernel to TorchRec's planner."""

STANDARD_WORDS: dict[str, frozenset[str]] = {
    "sharding_strategy": frozenset(
        {"FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "_HYBRID_SHARD_ZERO2", "DDP", "NONE"}
    ),
    "activation_checkpointing": frozenset({"none", "selective", "full"}),
    "precision": frozenset({"fp32", "tf32", "bf16", "fp16", "fp8"}),
    "embedding_sharding": frozenset(EMBEDDING_SHARDINGS),
    "embedding_kernel": frozenset(EMBEDDING_KERNELS),
}
"""Parameter -> values under which it is observed; a config with other values is compared as requested."""

_ACCUMULATION = ("accum", "accumulate", "accumulation", "grad_accum", "grad_accumulate", "grad_accumulation")
_ACCUMULATION_UNITS = ("", "_steps", "_step", "_iters", "_iter", "_batches", "_factor")

FLAG_ALIASES: dict[str, str] = {
    **{
        f"{stem}{unit}": "gradient_accumulation_steps"
        for stem in (*_ACCUMULATION, "gradient_accumulation")
        for unit in _ACCUMULATION_UNITS
    },
    "accumulate_grad_batches": "gradient_accumulation_steps",
    "batch_size": "micro_batch_size",
    "batch_size_per_device": "micro_batch_size",
    "batch_size_per_gpu": "micro_batch_size",
    "mbs": "micro_batch_size",
    "micro_batch": "micro_batch_size",
    "micro_batch_size": "micro_batch_size",
    "per_device_batch_size": "micro_batch_size",
    "per_device_train_batch_size": "micro_batch_size",
    "train_batch_size_per_gpu": "micro_batch_size",
    "train_micro_batch_size_per_gpu": "micro_batch_size",
    "sharding": "sharding_strategy",
    "sharding_strategy": "sharding_strategy",
    "fsdp_sharding_strategy": "sharding_strategy",
    "activation_checkpointing": "activation_checkpointing",
    "gradient_checkpointing": "activation_checkpointing",
    "precision": "precision",
    "dtype": "precision",
    "compile": "compile",
    "torch_compile": "compile",
    "n_layer": "n_layers",
    "n_layers": "n_layers",
    "num_layers": "n_layers",
    "num_hidden_layers": "n_layers",
    "n_head": "n_heads",
    "n_heads": "n_heads",
    "num_heads": "n_heads",
    "num_attention_heads": "n_heads",
    "n_kv_head": "n_kv_heads",
    "n_kv_heads": "n_kv_heads",
    "num_kv_heads": "n_kv_heads",
    "num_key_value_heads": "n_kv_heads",
    "n_experts": "n_experts",
    "num_experts": "n_experts",
    "n_embd": "d_model",
    "d_model": "d_model",
    "hidden_size": "d_model",
    "vocab_size": "vocab_size",
    "block_size": "seq_len",
    "seq_len": "seq_len",
    "seq_length": "seq_len",
    "max_seq_len": "seq_len",
    "tensor_model_parallel_size": "tp_degree",
    "pipeline_model_parallel_size": "pp_degree",
    "context_parallel_size": "cp_degree",
    "expert_model_parallel_size": "ep_degree",
    "expert_parallel_degree": "ep_degree",
    "expert_tensor_parallel_size": "expert_tp_degree",
    "expert_tensor_parallel_degree": "expert_tp_degree",
    "moe_router_topk": "n_active_experts",
    "num_experts_per_tok": "n_active_experts",
    "capacity_factor": "capacity_factor",
    "expert_capacity_factor": "capacity_factor",
    "moe_expert_capacity_factor": "capacity_factor",
}
"""Flag name (no leading dashes, underscores for hyphens) -> standard name, where trainers agree."""

WORKLOAD_NAMES = frozenset({"n_layers", "n_heads", "d_model", "vocab_size", "seq_len"})
"""Standard names that describe the workload; they are read and never changed."""

SHARDING_STRATEGIES = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD")
"""FSDP's names of its sharding strategies."""

RESHARD_SIZES = {f"FULL_SHARD_{size}": size for size in (2, 4, 8, 16, 32, 64)}
"""Strategies of FSDP2 that keep parameters within groups of ranks after forward -> ranks of a group."""

MICRO_BATCH, ACCUMULATION, GLOBAL_BATCH = "micro_batch_size", "gradient_accumulation_steps", "global_batch_size"
"""Samples of a forward pass on a rank, forward passes of an optimizer step, samples of an optimizer step."""

WORKLOAD_SIZES = WORKLOAD_NAMES | {"n_kv_heads", "head_dim", "ffn_dim", "d_ff", "intermediate_size"}
"""Sizes of the model and of a sample: they change what is trained, and the work of an optimizer step."""

BATCH_FLAGS = frozenset(
    {
        *(
            "bs",
            "bsz",
            "batch",
            "batchsize",
            "mini_batch_size",
            "minibatch_size",
            "train_batch_size",
            "samples_per_gpu",
        ),
        *("device_batch_size", "local_batch_size", "per_gpu_batch_size", "per_gpu_train_batch_size"),
        *("effective_batch_size", "global_train_batch_size", "total_batch_size"),
    }
)
"""Flags of a batch size without a standard name: of a forward pass or of a whole step, as each script defines it."""

CHANGES_TRAINING = frozenset(
    {
        *WORKLOAD_SIZES,
        *("n_experts", "n_active_experts", "capacity_factor"),
        *("dropout", "activation"),
        *("precision", "dtype", "bf16", "fp16", "fp8", "tf32", "allow_tf32", "amp", "mixed_precision"),
        *("global_batch_size", "optimizer", "lr", "learning_rate", "min_lr", "weight_decay", "momentum"),
        *("warmup_steps", "beta1", "beta2", "eps", "grad_clip", "max_grad_norm", "seed", "epochs", "max_steps"),
        "max_iters",
    }
)
"""Parameters, by their own or their flag's name, that affect the training result: launches and tunes keep them.

Batch size and accumulation are checked by their product. Degrees, sharding, recomputation and compilation preserve the
result up to rounding. A name in no table may be changed if a space file lists it.
"""


_COLUMN_ALIASES = {
    "activation_checkpointing": ("activation_recompute", "recompute", "recompute_granularity"),
    "cp_degree": ("cp", "context_parallel"),
    "cp_method": ("context_parallel_rotate_method", "cp_comm_type"),
    "d_ff": ("ffn_hidden_size", "ffn_size", "intermediate_size"),
    "d_model": ("hidden", "hidden_dim"),
    "device": ("accelerator", "accelerator_type", "device_name", "gpu", "gpu_model", "gpu_name", "gpu_type"),
    "dp_degree": ("dp", "data_parallel", "data_parallel_size"),
    "ep_degree": ("ep", "expert_parallel", "expert_model_parallel_size"),
    "expert_tp_degree": (
        *("etp", "expert_tensor_parallel", "expert_tensor_parallel_degree"),
        "expert_tensor_parallel_size",
    ),
    "expert_d_ff": ("moe_ffn_hidden_size", "moe_intermediate_size"),
    "global_batch_size": ("gbs", "global_batch"),
    "gradient_accumulation_steps": ("ga", "grad_acc", "gradient_accumulation"),
    "micro_batch_size": ("mbs", "micro_batch", "microbatch", "microbatch_size"),
    "n_active_experts": ("moe_router_topk", "moe_top_k"),
    "n_dense_layers": ("first_k_dense_replace",),
    "n_experts": ("num_experts",),
    "n_kv_heads": ("num_key_value_heads", "num_kv_heads", "num_query_groups"),
    "n_layers": ("layers",),
    "n_params": ("n_parameters", "num_parameters", "num_params", "params"),
    "nnodes": ("n_nodes", "nodes", "num_nodes"),
    "nproc_per_node": ("gpus_per_node", "num_gpus_per_node"),
    "pp_degree": ("pp", "pipe_parallel_size", "pipeline_parallel"),
    "seq_len": ("context_length", "seq", "seqlen", "sequence_length"),
    "selective_recompute": ("selective_ac_option",),
    "shared_expert_d_ff": ("moe_shared_expert_intermediate_size",),
    "tp_degree": ("tp", "tensor_parallel"),
    "tp_overlap": ("enable_async_tensor_parallel", "tp_comm_overlap"),
    "virtual_pp_degree": ("virtual_pipeline_model_parallel_size", "vp", "vpp"),
    "vocab_size": ("vocab", "vocabulary_size"),
    "world_size": ("gpus", "n_devices", "n_gpus", "num_devices", "num_gpus"),
    "zero_stage": ("zero",),
}  # fmt: skip
_STANDARD_BY_ALIAS = {
    # A ``batch_size`` flag is per rank; a column of that name may not be.
    **{word: name for word, name in FLAG_ALIASES.items() if word != "batch_size"},
    **{word: name for name, words in _COLUMN_ALIASES.items() for word in words},
}


def column_aliases() -> dict[str, str]:
    """Return the aliases of columns, each with its standard name."""
    return dict(_STANDARD_BY_ALIAS)


def standard_name(column: str) -> str:
    """Return the standard name of a column, whatever its case and spacing; the column itself if it has none.

    >>> [standard_name(column) for column in ("tp", "GPU type", "num-layers", "Learning Rate")]
    ['tp_degree', 'device', 'n_layers', 'Learning Rate']
    """
    word = re.sub(r"[^a-z0-9]+", "_", column.lower()).strip("_")
    return _STANDARD_BY_ALIAS.get(word, column)


def standard_flag_name(flag: str) -> str:
    """Return the standard name of a flag, a variable or a key in a config file; its last part if it has none.

    >>> [standard_flag_name(flag) for flag in ("--Model.Hidden-Size=", "BATCH_SIZE", "--lr")]
    ['d_model', 'micro_batch_size', 'lr']
    """
    name = flag.strip("-=").rpartition(".")[2].replace("-", "_").lower()
    return FLAG_ALIASES.get(name) or standard_name(name)
