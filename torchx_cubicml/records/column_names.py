"""Usual names of a table's columns -> the standard names under which predictors know what they mean."""

from __future__ import annotations

import re

from torchx_cubicml.records.names import FLAG_MEANINGS

_USUAL = {
    "activation_checkpointing": ("activation_recompute", "recompute", "recompute_granularity"),
    "cp_degree": ("cp", "context_parallel"),
    "d_ff": ("ffn_hidden_size", "ffn_size", "intermediate_size"),
    "d_model": ("hidden", "hidden_dim"),
    "device": ("accelerator", "accelerator_type", "device_name", "gpu", "gpu_model", "gpu_name", "gpu_type"),
    "dp_degree": ("dp", "data_parallel", "data_parallel_size"),
    "ep_degree": ("ep", "expert_parallel", "expert_model_parallel_size"),
    "global_batch_size": ("gbs", "global_batch"),
    "gradient_accumulation_steps": ("ga", "grad_acc", "gradient_accumulation"),
    "micro_batch_size": ("mbs", "micro_batch", "microbatch", "microbatch_size"),
    "n_active_experts": ("moe_router_topk", "moe_top_k"),
    "n_experts": ("num_experts",),
    "n_kv_heads": ("num_key_value_heads", "num_kv_heads", "num_query_groups"),
    "n_layers": ("layers",),
    "n_params": ("n_parameters", "num_parameters", "num_params", "params"),
    "nnodes": ("n_nodes", "nodes", "num_nodes"),
    "nproc_per_node": ("gpus_per_node", "num_gpus_per_node"),
    "pp_degree": ("pp", "pipeline_parallel"),
    "seq_len": ("context_length", "seq", "seqlen", "sequence_length"),
    "tp_degree": ("tp", "tensor_parallel"),
    "virtual_pp_degree": ("virtual_pipeline_model_parallel_size", "vp", "vpp"),
    "vocab_size": ("vocab", "vocabulary_size"),
    "world_size": ("gpus", "n_devices", "n_gpus", "num_devices", "num_gpus"),
    "zero_stage": ("zero",),
}  # fmt: skip
_STANDARD = {
    # Of a flag it is known whether each rank means it; of a column it is not.
    **{word: name for word, name in FLAG_MEANINGS.items() if word != "batch_size"},
    **{word: name for name, words in _USUAL.items() for word in words},
}


def standard_name(column: str) -> str:
    """Return the standard name of a column, however it is capitalised and spaced; its own where there is none.

    >>> [standard_name(column) for column in ("tp", "GPU type", "num-layers", "Learning Rate")]
    ['tp_degree', 'device', 'n_layers', 'Learning Rate']
    """
    word = re.sub(r"[^a-z0-9]+", "_", column.lower()).strip("_")
    return _STANDARD.get(word, column)
