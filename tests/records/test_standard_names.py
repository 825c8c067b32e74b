"""The names that people write and that stores hold: a changed one would no longer find its older records."""

from __future__ import annotations

import pytest

from torchx_cubicml.records.standard_names import (
    BATCH_FLAGS,
    CHANGES_TRAINING,
    FLAG_ALIASES,
    SHARDING_STRATEGIES,
    STANDARD_PARAMETERS,
    STANDARD_WORDS,
    WORKLOAD_NAMES,
    WORKLOAD_SIZES,
    standard_flag_name,
    standard_name,
)

SHARDINGS = "data_parallel table_wise row_wise column_wise table_row_wise table_column_wise grid_shard"
KERNELS = "dense fused fused_uvm fused_uvm_caching fused_triton key_value"

FLAGS = {
    "micro_batch_size": "batch_size batch_size_per_device batch_size_per_gpu mbs micro_batch micro_batch_size "
    "per_device_batch_size per_device_train_batch_size "
    "train_batch_size_per_gpu train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps": "accumulate_grad_batches "
    + " ".join(
        f"{stem}{unit}"
        for stem in [
            "accum",
            "accumulate",
            "accumulation",
            "grad_accum",
            "grad_accumulate",
            "grad_accumulation",
            "gradient_accumulation",
        ]
        for unit in ["", *["_steps", "_step", "_iters", "_iter", "_batches", "_factor"]]
    ),
    "sharding_strategy": "sharding sharding_strategy fsdp_sharding_strategy",
    "activation_checkpointing": "activation_checkpointing gradient_checkpointing",
    "precision": "precision dtype",
    "compile": "compile torch_compile",
    "n_layers": "n_layer n_layers num_layers num_hidden_layers",
    "n_heads": "n_head n_heads num_heads num_attention_heads",
    "n_kv_heads": "n_kv_head n_kv_heads num_kv_heads num_key_value_heads",
    "n_experts": "n_experts num_experts",
    "d_model": "n_embd d_model hidden_size",
    "vocab_size": "vocab_size",
    "seq_len": "block_size seq_len seq_length max_seq_len",
    "tp_degree": "tensor_model_parallel_size",
    "pp_degree": "pipeline_model_parallel_size",
    "cp_degree": "context_parallel_size",
    "ep_degree": "expert_model_parallel_size expert_parallel_degree",
    "expert_tp_degree": "expert_tensor_parallel_size expert_tensor_parallel_degree",
    "n_active_experts": "moe_router_topk num_experts_per_tok",
    "capacity_factor": "capacity_factor expert_capacity_factor moe_expert_capacity_factor",
}
COLUMNS = {
    "activation_checkpointing": "activation_recompute recompute recompute_granularity",
    "cp_degree": "cp context_parallel",
    "d_ff": "ffn_hidden_size ffn_size intermediate_size",
    "d_model": "hidden hidden_dim",
    "device": "accelerator accelerator_type device_name gpu gpu_model gpu_name gpu_type",
    "dp_degree": "dp data_parallel data_parallel_size",
    "ep_degree": "ep expert_parallel expert_model_parallel_size",
    "expert_tp_degree": "etp expert_tensor_parallel",
    "global_batch_size": "gbs global_batch",
    "gradient_accumulation_steps": "ga grad_acc gradient_accumulation",
    "micro_batch_size": "mbs micro_batch microbatch microbatch_size",
    "n_active_experts": "moe_router_topk moe_top_k",
    "n_experts": "num_experts",
    "n_kv_heads": "num_key_value_heads num_kv_heads num_query_groups",
    "n_layers": "layers",
    "n_params": "n_parameters num_parameters num_params params",
    "nnodes": "n_nodes nodes num_nodes",
    "nproc_per_node": "gpus_per_node num_gpus_per_node",
    "pp_degree": "pp pipeline_parallel",
    "seq_len": "context_length seq seqlen sequence_length",
    "tp_degree": "tp tensor_parallel",
    "virtual_pp_degree": "virtual_pipeline_model_parallel_size vp vpp",
    "vocab_size": "vocab vocabulary_size",
    "world_size": "gpus n_devices n_gpus num_devices num_gpus",
    "zero_stage": "zero",
}


def by_alias(table: dict[str, str]) -> dict[str, str]:
    return {alias: name for name, aliases in table.items() for alias in aliases.split()}


def test_a_flag_has_the_name_that_trainers_agree_on() -> None:
    assert by_alias(FLAGS) == FLAG_ALIASES


def test_a_column_has_the_name_of_its_flag_or_its_own() -> None:
    expected = {**by_alias(FLAGS), **by_alias(COLUMNS), "batch_size": "batch_size"}
    assert {column: standard_name(column) for column in expected} == expected


@pytest.mark.parametrize(
    ("column", "name"),
    [
        ("Num Layers", "n_layers"),
        ("  num--layers! ", "n_layers"),
        ("__num_layers__", "n_layers"),
        ("NUM_LAYERS", "n_layers"),
        ("num_layers2", "num_layers2"),
        ("numlayers", "numlayers"),
        ("Batch Size", "Batch Size"),
        ("größe", "größe"),
        ("", ""),
    ],
    ids=repr,
)
def test_case_and_spacing_of_a_column_do_not_matter(column: str, name: str) -> None:
    assert standard_name(column) == name


def test_the_standard_parameters_and_their_words_are_these() -> None:
    assert " ".join(STANDARD_PARAMETERS) == (
        "micro_batch_size gradient_accumulation_steps global_batch_size dp_replicate_degree dp_shard_degree tp_degree "
        "pp_degree cp_degree ep_degree expert_tp_degree mesh_order sharding_strategy activation_checkpointing "
        "precision compile embedding_sharding embedding_kernel reserved_share sequence_parallel partition"
    )
    assert {name: " ".join(sorted(words)) for name, words in STANDARD_WORDS.items()} == {
        "sharding_strategy": "DDP FULL_SHARD HYBRID_SHARD NONE NO_SHARD SHARD_GRAD_OP _HYBRID_SHARD_ZERO2",
        "activation_checkpointing": "full none selective",
        "precision": "bf16 fp16 fp32 fp8 tf32",
        "embedding_sharding": " ".join(sorted(SHARDINGS.split())),
        "embedding_kernel": " ".join(sorted(KERNELS.split())),
    }


def test_the_sharding_strategies_are_those_of_torch() -> None:
    assert SHARDING_STRATEGIES == ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD")


def test_what_changes_the_result_of_a_training_is_listed() -> None:
    assert " ".join(sorted(WORKLOAD_NAMES)) == "d_model n_heads n_layers seq_len vocab_size"
    assert " ".join(sorted(CHANGES_TRAINING - WORKLOAD_NAMES)) == (
        "activation allow_tf32 amp beta1 beta2 bf16 capacity_factor d_ff dropout dtype epochs eps ffn_dim fp16 "
        "fp8 global_batch_size grad_clip head_dim intermediate_size learning_rate lr max_grad_norm max_iters "
        "max_steps min_lr mixed_precision momentum n_active_experts n_experts n_kv_heads optimizer precision "
        "seed tf32 warmup_steps weight_decay"
    )


def test_what_changes_the_work_of_a_step_is_listed() -> None:
    assert " ".join(sorted(WORKLOAD_SIZES - WORKLOAD_NAMES)) == "d_ff ffn_dim head_dim intermediate_size n_kv_heads"
    assert " ".join(sorted(BATCH_FLAGS)) == (
        "batch batchsize bs bsz device_batch_size effective_batch_size global_train_batch_size local_batch_size "
        "mini_batch_size minibatch_size per_gpu_batch_size per_gpu_train_batch_size samples_per_gpu total_batch_size "
        "train_batch_size"
    )
    assert BATCH_FLAGS.isdisjoint(FLAG_ALIASES)


@pytest.mark.parametrize(
    ("flag", "name"),
    [
        ("--batch-size=", "micro_batch_size"),
        ("BATCH_SIZE", "micro_batch_size"),
        ("model.Hidden-Size", "d_model"),
        ("--gbs", "global_batch_size"),
        ("--Learning-Rate", "learning_rate"),
        ("", ""),
    ],
)
def test_the_last_part_of_a_flag_tells_its_name(flag: str, name: str) -> None:
    assert standard_flag_name(flag) == name
