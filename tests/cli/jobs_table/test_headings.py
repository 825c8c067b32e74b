from __future__ import annotations

import pytest

from torchx_cubicml.cli.jobs_table.headings import is_certain_outcome, read_heading, states_time_heading

NAMES = {
    "tp_degree": ("tensor parallelism", "TP", "tensor_model_parallel_size", "tensor-parallel-degree", "tpSize"),
    "pp_degree": ("pipe_parallel_size", "Pipeline Parallelism", "pp", "pipeline_model_parallel_size"),
    "dp_degree": ("data parallelism", "DP size", "dataParallelSize", "data_parallel_degree"),
    "world_size": (
        "World Size",
        "nGPUs",
        "#GPUs",
        "# GPUs",
        "No. of GPUs",
        "Number of GPUs",
        "num_gpus",
        "GPUs",
        "AllocGPUS",
    ),
    "nproc_per_node": ("GPUs/node", "gpus_per_node", "GPUs per node"),
    "micro_batch_size": (
        "mbz",
        "MBS",
        "MicroBatchSize",
        "config/device_train_microbatch_size",
        "Batch / GPU",
        "µBS",
        "bs_per_gpu",
    ),
    "device_batch_size": ("device_train_batch_size", "Device batch size"),
    "global_batch_size": ("gbz", "gbs", "global_train_batch_size", "Global Batch [seq.]"),
    "gradient_accumulation_steps": (
        "GradAccum",
        "GA steps",
        "batch_accumulation_per_replica",
        "grad_acc",
        "# acc",
        "Acc. steps",
    ),
    "sharding_strategy": ("Shard params", "fsdp_config.sharding_strategy"),
    "n_layers": ("Number of layers", "num of layers", "Layers (#)"),
    "started_at": ("Start", "created_at"),
    "zero_stage": ("ZeRO stage", "zero_optimization.stage", "use-distributed-optimizer", "dist. optim.", "Dist. opt."),
    "activation_checkpointing": ("Recompute", "Act. Ckpt.", "activations_checkpoint_granularity"),
    "activation_cpu_offload": ("activation_cpu_offload", "CPU offload of activations?"),
    "precision": ("dtype", "params dtype", "Precision", "torch_dtype", "AMP", "Prec."),
    "seq_len": ("seqlen", "SeqLen (T)", "Seq. Length", "context length", "model_max_length", "block_size"),
    "d_model": ("hidden dim", "config.model.n_embd", "Emb. dim", "hidden-size"),
    "n_heads": ("# Heads", "num_attention_heads", "Attn. Heads"),
    "device": ("GPU type", "accelerator", "gpu_name"),
    "tokens_per_second": (
        "tok/s",
        "T/s",
        "tokens_per_sec",
        "Tokens/s",
        "Throughput (tokens/s)",
        "Throughput, cluster (ktok/s)",
    ),
    "tokens_per_second_per_device": (
        *("tok/s/GPU", "Throughput (T/s/GPU)", "tokens/GPU/s", "TGS", "Throughput per GPU [tok/s]"),
        "Throughput, per GPU (tok/s)",
    ),
    "samples_per_second": ("samples/s", "Throughput (S/s)", "seq_per_sec"),
    "steps_per_second": ("it/s", "steps per second"),
    "seconds_per_step": (
        "s/it",
        *("iteration time (ms)", "Iteration time (s)", "Iteration Time (Sec.)", "Iteration time (in ms)"),
        *("Iteration time (s) [avg]", "Iteration time (mean, s)", "Iteration time (s/iter)"),
        "train_step_timing (s)",
        "stepTimeMs",
        "sec_per_step",
        "Time (ms/step)",
    ),
    "peak_memory_gib": ("Peak Mem. (GB)", "max_cuda_mem_gb", "mem max allocated (GB)", "summary.peak_memory_gb"),
    "outcome": ("MFU (%)", "loss", "TFLOP/s/GPU", "hfu_pct", "peak_reserved_gb", "grad_norm", "last_seen_date"),
    "optimizer_fused": ("adam_fused", "config.adam_fused"),
    "": (
        "GPU (h)",
        "GPU (%)",
        "GPU (GB)",
        "micro batch tokens",
        "micro batch (tokens)",
        "loss_scale",
        "Throughput per node (tok/s)",
        *("tokens per GPU", "samples per GPU", "tokens/day", "tok/s/node", "Network (Gbps)", "image_size"),
        "recompute num layers",
        "Peak memory (%)",
        "warmup steps",
        "steps per epoch",
        "note",
        "section",
        "tokens",
        "iteration",
        "forward step time",
        "seed",
    ),
}


@pytest.mark.parametrize(("name", "heading"), [(name, each) for name, headings in NAMES.items() for each in headings])
def test_a_heading_has_its_standard_name(name: str, heading: str) -> None:
    read = read_heading(heading)
    assert (read.name, read.choices) == (name, ())


@pytest.mark.parametrize(
    ("heading", "choices"),
    [
        ("batch size", {"micro_batch_size", "global_batch_size"}),
        ("bs", {"micro_batch_size", "global_batch_size"}),
        ("model_parallel_size", {"tp_degree"}),
        ("kernel", {"attention_kernel"}),
        ("System", {"device"}),
        ("GPU memory", {"peak_memory_gib", "device_memory_gib"}),
        ("Checkpointing", {"activation_checkpointing"}),
        ("acc", {"gradient_accumulation_steps", "outcome"}),
        ("step_time", {"seconds_per_step", "milliseconds_per_step"}),
        ("h", {"d_model", "n_heads"}),
    ],
)
def test_an_ambiguous_heading_is_not_guessed(heading: str, choices: set[str]) -> None:
    read = read_heading(heading)
    assert read.name == ""
    assert {*read.choices} == choices


@pytest.mark.parametrize(
    ("heading", "unit", "scale"),
    [
        *[("Params (B)", "b", 1e9), ("n_params_m", "m", 1e6), ("Mem [MiB]", "mib", 1.0), ("max_mem_mb", "mb", 1.0)],
        *[("Model size [B params]", "b params", 1e9), ("Params (in millions)", "in millions", 1e6)],
        *[("Params (10⁹)", "10⁹", 1e9), ("Params (1e6)", "1e6", 1e6), ("Params [10^9]", "10^9", 1e9)],
        *[("peak_mem_mb_per_gpu", "mb", 1.0), ("Peak memory / GiB", "gib", 1.0), ("Step time / ms", "ms", 1.0)],
    ],
)
def test_the_unit_stands_in_brackets_or_behind_the_last_underscore(heading: str, unit: str, scale: float) -> None:
    read = read_heading(heading)
    assert (read.unit, read.scale) == (unit, scale)


def test_durations_and_outcomes_are_told() -> None:
    assert all(map(states_time_heading, map(read_heading, ("step_time", "s/it", "epoch time (s)"))))
    assert not any(map(states_time_heading, map(read_heading, ("tok/s", "seq_len"))))
    assert all(map(is_certain_outcome, map(read_heading, ("loss", "tok/s/GPU", "s/it", "peak memory"))))
    assert not any(map(is_certain_outcome, map(read_heading, ("tp", "GPUs per node", "tokens per step"))))


@pytest.mark.parametrize(
    ("heading", "name"),
    [
        ("Batch size total", "global_batch_size"),
        ("Batch size per device", "micro_batch_size"),
        ("BatchSizePerGPU", "micro_batch_size"),
        ("Degree of tensor parallelism", "tp_degree"),
        ("Length of the sequence", "seq_len"),
        ("GPUs, total", "world_size"),
        ("interval of checkpoints", ""),
    ],
)
def test_words_in_another_order_mean_the_same(heading: str, name: str) -> None:
    assert read_heading(heading).name == name
