"""The standard names, and the flags on whose meaning trainers agree."""

from __future__ import annotations

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
    "sharding_strategy",
    "activation_checkpointing",
    "precision",
    "compile",
)
"""Parameters whose observed value replaces the requested one in a training row."""

STANDARD_WORDS: dict[str, frozenset[str]] = {
    "sharding_strategy": frozenset(
        {"FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "_HYBRID_SHARD_ZERO2", "DDP", "NONE"}
    ),
    "activation_checkpointing": frozenset({"none", "selective", "full"}),
    "precision": frozenset({"fp32", "tf32", "bf16", "fp16", "fp8"}),
}
"""Words in which a parameter is observed; a config that uses others is compared by what it asks for."""

HOOKS: dict[str, tuple[tuple[str, ...], ...]] = {
    "fsdp": (("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"), ("HYBRID_SHARD", "_HYBRID_SHARD_ZERO2")),
}
"""Hook -> what it can set, by families that do not mix, each with torch's own default first.

Of FSDP: over all ranks, and within replicated groups. ``fsdp`` is set by ``recorder/apply/fsdp_hook.py``, and so on.
"""

FLAG_MEANINGS: dict[str, str] = {
    "batch_size": "micro_batch_size",
    "micro_batch_size": "micro_batch_size",
    "per_device_batch_size": "micro_batch_size",
    "per_device_train_batch_size": "micro_batch_size",
    "train_batch_size_per_gpu": "micro_batch_size",
    "train_micro_batch_size_per_gpu": "micro_batch_size",
    "accumulate": "gradient_accumulation_steps",
    "accumulation_steps": "gradient_accumulation_steps",
    "accumulate_grad_batches": "gradient_accumulation_steps",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "grad_accum": "gradient_accumulation_steps",
    "grad_accum_steps": "gradient_accumulation_steps",
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
}
"""Flag name without dashes, underscores for hyphens -> standard name, where trainers agree."""

WORKLOAD_NAMES = frozenset({"n_layers", "n_heads", "d_model", "vocab_size", "seq_len"})
"""Standard names that describe the workload; they are read and never changed."""

SHARDING_STRATEGIES = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD")
"""Names under which FSDP knows its sharding strategies."""

OUTPUT_WORDS = (
    "out",
    "output",
    "save",
    "checkpoint",
    "ckpt",
    "log",
    "logging",
    "logdir",
    "outdir",
    "dump",
    "resume",
    "load",
    "tensorboard",
    "wandb",
    "run_name",
)
"""Words that make a flag look like an output, resume or logging destination."""

NOT_OUTPUT_WORDS = ("every", "format", "freq", "frequency", "interval", "iters", "level", "period", "steps", "total")
"""Words beside them that make it a rate or a manner instead of a destination."""

CHANGES_TRAINING = frozenset(
    {
        *WORKLOAD_NAMES,
        *("n_kv_heads", "head_dim", "ffn_dim", "d_ff", "intermediate_size", "dropout", "activation"),
        *("precision", "dtype", "bf16", "fp16", "fp8", "tf32", "allow_tf32", "amp", "mixed_precision"),
        *("global_batch_size", "optimizer", "lr", "learning_rate", "min_lr", "weight_decay", "momentum"),
        *(
            "warmup_steps",
            "beta1",
            "beta2",
            "eps",
            "grad_clip",
            "max_grad_norm",
            "seed",
            "epochs",
            "max_steps",
            "max_iters",
        ),
    }
)
"""Parameters, by their own or their flag's name, that change what is trained: an ordinary launch leaves them as typed.

Batch and accumulation are checked by their product. Degrees, sharding, recomputation and compilation leave the training
as it is up to rounding. Nothing is known of a name that is in no table: who listed it in a space file is taken at his
word.
"""
