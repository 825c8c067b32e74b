"""Synonyms of headings: what trainers, papers and experiment trackers call each standard name."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from torchx_cubicml.cli.jobs_table.column_roles import (
    DEVICE_BATCH,
    DEVICE_COUNT,
    GLOBAL_BATCH_TOKENS,
    OUTCOME,
    PEAK_MEMORY,
    PRECISION_SWITCH,
    PROGRAM,
    STARTED_AT,
    STATUS,
    THROUGHPUT_CHOICES,
    UNITS,
)
from torchx_cubicml.records.standard_names import column_aliases
from torchx_cubicml.records.standard_words import squashed

if TYPE_CHECKING:
    from collections.abc import Mapping


def _words(texts: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    return {name: tuple(text.split(", ")) for name, text in texts.items()}


PARAMETER_SYNONYMS: dict[str, tuple[str, ...]] = _words(
    {
        "tp_degree": (
            "TP, tensor parallel, tensor parallelism, tensor model parallel, tensor parallel degree, tensor MP, "
            "tp world size, tensor, tensor par"
        ),
        "pp_degree": (
            "PP, pipeline parallel, pipeline parallelism, pipeline model parallel, pipe parallel, pipe, pipeline "
            "stages, pp stages, pipeline, num stages, pipeline depth, pipeline par"
        ),
        "dp_degree": "DP, data parallel, data parallelism, data parallel replicas, DP world size, dp ranks, data par",
        "cp_degree": "CP, context parallel, context parallelism, ring attention degree",
        "ep_degree": "EP, expert parallel, expert parallelism, expert model parallel, moe expert parallel",
        "dp_replicate_degree": "data parallel replicate, replicas, DDP degree, hsdp replicas, dp replicate",
        "dp_shard_degree": ("data parallel shard, FSDP degree, FSDP size, shard group, dp shard, sharding degree"),
        "virtual_pp_degree": (
            "VPP, VP, virtual pipeline, virtual pipeline model parallel, virtual stages, interleave, virtual "
            "pipeline stages, model chunks, virtual pp, virtual pipeline parallel, interleaved stages, virtual "
            "pipeline parallelism"
        ),
        "micro_batch_size": (
            "mbs, mbz, micro batch, microbatch, device train microbatch, train micro batch per gpu, batch per "
            "GPU, per GPU batch, per device batch, local batch, micro bs, per device train batch, micro batch per "
            "GPU, microbatch per GPU, micro batch per device, batch per device, ubatch, train micro batch, "
            "microbsz, micro bsz, micro batch samples, ubs, bs per gpu, bsz per gpu, bs per device, gpu batch"
        ),
        "global_batch_size": (
            "gbs, gbz, global batch, train batch, global train batch, total batch, effective batch, GB size, "
            "global bs, global bsz, sequences per step, samples per step, batch global, total train batch, "
            "samples per iteration, sequences per iteration, total batch samples"
        ),
        DEVICE_BATCH: "device train batch, train batch per device, device batch, batch per rank, local train batch",
        GLOBAL_BATCH_TOKENS: (
            "tokens per batch, tokens per step, batch tokens, global batch tokens, tokens per iteration, tokens "
            "per global batch, tokens per update, batch in tokens, global batch in tokens"
        ),
        "gradient_accumulation_steps": (
            "GA, GA steps, GAS, grad acc, grad accum, gradient accumulation, accumulation, accumulation steps, "
            "accum, accum steps, gradient accumulation steps, batch accumulation per replica, grad accumulation, "
            "num microbatches, micro batches, microbatches per step, num micro batches, grad acc steps, "
            "accumulate grad batches, grad accum steps, accum iters, device train grad accum, # acc, acc steps, "
            "gradient accumulation iters"
        ),
        "sharding_strategy": "sharding, FSDP strategy, shard strategy, FSDP sharding, sharding mode, FSDP mode, "
        "shard params, params sharded, sharded params, params sharding",
        "zero_stage": (
            "ZeRO, zero stage, zero optimization stage, DeepSpeed stage, zero redundancy stage, ds zero stage, "
            "zero optimization level, zero level, use distributed optimizer, distributed optimizer, sharded "
            "optimizer, optimizer sharding, ZeRO-1, deepspeed zero stage, dist opt"
        ),
        "activation_checkpointing": (
            "AC, activation checkpoint, act ckpt, act checkpointing, activation recompute, recompute, activation "
            "recomputation, recomputation, recompute granularity, gradient checkpointing, grad ckpt, "
            "checkpointing activations, checkpoint activations, remat, rematerialization, ac mode, act recomp, "
            "activation checkpoint mode, activations checkpoint granularity, activation ckpt, grad checkpointing, "
            "recompute activations, selective ac, recompute layer, activations checkpointing"
        ),
        "precision": (
            "dtype, data type, number format, numeric format, compute dtype, training precision, param dtype, "
            "mixed precision, train dtype, numerics, model dtype, torch dtype, compute precision, numeric type, "
            "precision mode, amp dtype, math precision, numeric precision, "
            "numerical precision, AMP, automatic mixed precision, prec, amp mode"
        ),
        "compile": "torch compile, compiled, torch.compile, use compile, model compile, torchcompile enabled",
        "sequence_parallel": "sequence parallelism, SP, seq parallel, use sequence parallel",
        "attention_kernel": (
            "attention, attention impl, attn impl, attn implementation, attention implementation, attn, attention "
            "backend, attn backend, attention kernel, attn kernel, flash attention, flash attn, use flash attn, "
            "use flash attention, attn config attn impl, attention type, sdpa backend, FA, attn kernels, "
            "attention algorithm, attention softmax"
        ),
        "pp_schedule": (
            "pipeline schedule, schedule, pipe schedule, pipeline parallel schedule, pipeline engine, pp engine"
        ),
        "cpu_offload": "offload, param offload, fsdp cpu offload, cpu offloading, parameter offload",
        "activation_cpu_offload": (
            "activation offload, cpu checkpointing, activation cpu offloading, offload activations, act offload"
        ),
        "optimizer_cpu_offload": "optimizer offload, offload optimizer, optimizer cpu offloading",
        "optimizer_fused": "fused optimizer, fused adam, adam fused",
        "overlap_communication": "overlap comm, comm overlap, overlap grad reduce, overlap communication",
        "cuda_graphs": "cuda graph, use cuda graph, enable cuda graph",
    }
)
"""Standard name of a tunable parameter -> its headings, compared by ``heading_key``."""

WORKLOAD_SYNONYMS: dict[str, tuple[str, ...]] = _words(
    {
        "n_params": (
            "params, parameters, model size, param count, parameter count, total params, total parameters, model "
            "params, model parameters, N params, trainable params, size in params, params count"
        ),
        "n_layers": (
            "layers, depth, num hidden layers, transformer layers, blocks, n blocks, num blocks, n layer, "
            "transformer blocks, decoder layers, hidden layers, layer count, encoder layers"
        ),
        "n_heads": "heads, attention heads, attn heads, n head, query heads, q heads, num attention heads",
        "n_kv_heads": (
            "kv heads, key value heads, query groups, num query groups, kv groups, GQA groups, num kv heads, num "
            "key value heads, attention kv heads"
        ),
        "head_dim": "head dim, head size, kv channels, dim head, head dimension, dim per head",
        "d_model": (
            "hidden, hidden size, hidden dim, hidden dimension, model dim, embed dim, embedding dim, width, emb "
            "dim, n embd, d model, model width, embedding size, model dimension, dmodel, dim, hidden width, "
            "residual width, embedding dimension, hiddensz"
        ),
        "d_ff": (
            "ffn dim, ffn hidden size, ffn size, ff dim, intermediate size, mlp dim, feed forward dim, d ff, ffn, "
            "ffn hidden, feedforward size, mlp hidden size, inner dim, mlp width, ffn width, n inner, feed "
            "forward width, feedforward dim, intermediate dim, mlp size, feed forward size"
        ),
        "vocab_size": "vocab, vocabulary, vocabulary size, padded vocab size, vocab entries, token vocabulary",
        "seq_len": (
            "seq, seqlen, seq length, sequence length, context length, context, context window, ctx len, max seq "
            "len, max sequence length, block size, ctx, context size, context len, sequence len, model max "
            "length, max length, tokens per sample, n ctx, tokens per sequence, SeqLen (T), max position "
            "embeddings, train seq len, sequence, encoder seq length"
        ),
        "n_experts": ("experts, num moe experts, moe experts, num local experts, n routed experts, total experts"),
        "n_active_experts": (
            "active experts, experts per token, top k, topk, moe router topk, moe top k, router topk, experts per "
            "tok, num experts per tok"
        ),
        "world_size": (
            "world size, world, GPUs, total GPUs, GPU count, number of GPUs, devices, total devices, ranks, "
            "accelerators, num accelerators, chips, processes, gpus total, total ranks, device count, accelerator "
            "count, total accelerators, number of accelerators, alloc gpus, allocated gpus, gpus allocated, req gpus, "
            "gpus requested, requested gpus"
        ),
        "nnodes": "nodes, node count, hosts, num nodes, servers, machines, number of nodes, nodes used",
        "nproc_per_node": (
            "GPUs per node, devices per node, ranks per node, procs per node, gpus per host, gpus per server, "
            "accelerators per node, tasks per node, ntasks per node, local world size, gpu per node"
        ),
        "device": (
            "GPU, GPU type, accelerator, accelerator type, GPU model, GPU name, device type, device name, "
            "hardware, chip, GPU kind, accelerator model, accelerator name, gpu sku, card"
        ),
        DEVICE_COUNT: "GPU config, gpus used, hardware config, node config",
        "device_memory_gib": (
            "device memory, GPU memory size, GPU memory capacity, GPU RAM, HBM, HBM size, HBM capacity, memory "
            "per GPU capacity, device mem, GPU capacity, memory capacity, accelerator memory, GPU HBM"
        ),
        "torch_version": "torch, pytorch, pytorch version, torch release",
        "cuda_version": "cuda, cuda release",
        "nccl_version": "nccl",
        "driver_version": "driver, nvidia driver",
        "container": "container image, image, docker image, ngc container, container version, container tag",
        "framework_version": "framework release, release, version, software version, megatron version",
        "optimizer": "optimizer name, optim, optimizer type",
        "tied_embeddings": "tie word embeddings, tie embeddings, tied word embeddings, share embeddings",
    }
)
"""Standard name of a fact of the workload -> its headings."""

ROLE_SYNONYMS: dict[str, tuple[str, ...]] = _words(
    {
        PROGRAM: (
            "program, script, model, model name or path, model id, model type, model name, architecture, network, "
            "model config, model arch"
        ),
        STATUS: (
            "status, state, outcome, result, exit status, job status, run status, exit code, return code, oom, "
            "out of memory, success, succeeded, completed, failed, fits, ok, error, exit, crashed, job state, run "
            "state, ended, termination, verdict, failure, done"
        ),
        STARTED_AT: (
            "started, start time, started at, date, timestamp, created, created at, start date, run date, "
            "datetime, measured on, first seen, first seen date, submitted, day, measured at, begin, submit time, "
            "first published, when, measured date, date measured, time started, start"
        ),
        PEAK_MEMORY: (
            "peak memory, peak mem, max memory, max mem, max memory allocated, memory peak, peak GPU memory, peak "
            "memory allocated, max allocated, GPU memory used, memory used, peak allocated, mem peak, max memory "
            "per gpu, peak vram, memory usage, max GPU memory, mem usage, peak memory usage, peak active memory, "
            "peak hbm, memory high water mark, peak mem per gpu, memory footprint, max mem alloc, peak mem alloc, "
            "max memory alloc, memory allocated, peak device memory, peak memory per gpu, peak memory per device, "
            "used memory, max memory usage, peak allocated memory, hbm peak, vram peak, peak gpu mem, hbm used, "
            "max mem allocated"
        ),
    }
)
"""Role of a column in a trial -> its headings."""

OUTCOME_SYNONYMS = _words(
    {
        OUTCOME: (
            "MFU, HFU, TFLOPS, TFLOP/s, TFLOPs/GPU, model flops, model TFLOP, achieved TFLOPS, FLOPS, PFLOPS, "
            "model flops utilization, hardware flops utilization, utilization, GPU utilization, GPU util, "
            "efficiency, loss, train loss, final loss, lm loss, val loss, validation loss, eval loss, perplexity, "
            "ppl, accuracy, grad norm, speedup, relative speed, energy, power, cost, price, temperature C, "
            "duration, runtime, wall time, walltime, elapsed, total time, end time, ended at, finished, epoch "
            "time, forward time, backward time, optimizer time, communication time, data time, compute time, "
            "bubble time, reserved memory, peak reserved, max memory reserved, cached memory, last seen, last "
            "seen date, tokens seen, total tokens, steps completed, final step, train time, forward backward "
            "time, fwd bwd time, scaling efficiency, time to train, bubble fraction, mfu pct, hfu pct, samples "
            "seen, gpu hours, flops per token, flops per second, flops per gpu, train runtime, days to train, "
            "comm time, flops utilisation, utilisation, model flops utilisation, nccl time, weak scaling "
            "efficiency, end, est days to train, estimated days to train, estimated time to train"
        )
    }
)[OUTCOME]
"""Headings of other outcomes of a run: never facts, as nobody knows them before the run."""

_AMBIGUOUS: dict[tuple[str, ...], str] = {
    (
        "micro_batch_size",
        "global_batch_size",
    ): "batch, batchsize, bs, bsz, batchsz, b, localbs",
    THROUGHPUT_CHOICES: (
        "throughput, speed, performance, perf, rate, tps, wps, ips, trainingthroughput, trainthroughput"
    ),
    (
        PEAK_MEMORY,
        "device_memory_gib",
    ): ("memory, mem, gpumemory, vram, gpumem, memorypergpu, mempergpu"),
    ("activation_checkpointing",): "checkpointing, ckpting",
    ("gradient_accumulation_steps", OUTCOME): "acc",
    ("gradient_accumulation_steps",): "m",
    ("precision",): "fp, format, numbers",
    ("attention_kernel",): "kernel, kernels, backend, impl, implementation",
    ("device",): ("system, machine, platform, cluster, instance, node, nodetype, host, server, instancetype"),
    ("tp_degree",): ("modelparallelsize, modelparallel, mp, mpsize, modelparallelism, modelparalleldegree, t"),
    ("cp_degree",): ("sequenceparallelsize, spsize, spdegree, sequenceparalleldegree, ulyssesdegree, ulysses"),
    (
        "sharding_strategy",
        "dp_shard_degree",
    ): "fsdp, strategy, parallelstrategy, parallelism",
    (
        "seconds_per_step",
        "milliseconds_per_step",
        STARTED_AT,
        OUTCOME,
    ): "time, timings, times",
    ("n_layers",): "l",
    (
        "d_model",
        "n_heads",
    ): "h",
    ("seq_len",): "s",
    ("pp_degree",): "p",
    ("dp_degree",): "d",
    ("vocab_size",): "v",
    ("n_heads",): "a",
    (
        "world_size",
        "n_params",
    ): "n",
    ("n_params",): "size",
    ("nproc_per_node",): "gpuspernodes, gpupernodes",
}


_ABBREVIATIONS = {
    "activations": "act",
    "activation": "act",
    "accumulation": "accum",
    "accumulate": "accum",
    "attention": "attn",
    "average": "avg",
    "checkpointing": "ckpt",
    "checkpoint": "ckpt",
    "dimension": "dim",
    "distributed": "dist",
    "embedding": "emb",
    "embed": "emb",
    "gradient": "grad",
    "implementation": "impl",
    "iteration": "iter",
    "length": "len",
    "maximum": "max",
    "memory": "mem",
    "number": "num",
    "offloading": "offload",
    "optimiser": "optim",
    "optimizer": "optim",
    "parallelism": "parallel",
    "parallelization": "parallel",
    "parameter": "param",
    "pipeline": "pipe",
    "recomputation": "recompute",
    "sequence": "seq",
    "vocabulary": "vocab",
}
_MICRO = {0xB5: "u", 0x3BC: "u"}  # the sign, and the Greek letter
_LONG_WORD = re.compile("|".join(_ABBREVIATIONS))


def heading_key(text: str) -> str:
    """Return the form in which headings are compared: case, spaces and hyphens do not count, nor do abbreviations.

    >>> [heading_key(text) for text in ("Micro-Batch Size", "SequenceLength", "seq. len", "tokens/s", "# GPUs")]
    ['microbatchsize', 'seqlen', 'seqlen', 'tokenspers', 'ngpus']
    """
    return _LONG_WORD.sub(
        lambda found: _ABBREVIATIONS[found[0]], squashed(text.replace("/", " per ").translate(_MICRO))
    )


def _by_heading() -> dict[str, str]:
    found = {heading_key(heading): OUTCOME for heading in OUTCOME_SYNONYMS}
    found |= {heading_key(alias): name for alias, name in column_aliases().items()}
    for table in (PARAMETER_SYNONYMS, WORKLOAD_SYNONYMS, ROLE_SYNONYMS):
        for name, headings in table.items():
            found |= {heading_key(heading): name for heading in (name, *headings)}
    for word in ("fp8", "bf16", "fp16", "tf32", "fp4", "nvfp4", "mxfp8"):
        found |= {word + end: f"{PRECISION_SWITCH}{word}" for end in ("", "format", "enabled", "training", "recipe")}
    return found | {heading_key(name): name for name in UNITS}


NAME_BY_HEADING: dict[str, str] = _by_heading()
"""Key of a heading -> standard name or role."""

AMBIGUOUS_HEADINGS: dict[str, tuple[str, ...]] = {
    heading_key(heading): choices for choices, headings in _AMBIGUOUS.items() for heading in headings.split(", ")
}
"""Key of a heading that may be one of several names, or none: the rows decide, or the user is asked."""

STEMS: dict[str, str] = {
    "shard": "sharding_strategy",
    "fsdp": "sharding_strategy",
    "zero": "zero_stage",
    "batch": "micro_batch_size or global_batch_size",
    "accum": "gradient_accumulation_steps",
    "ckpt": "activation_checkpointing",
    "recomp": "activation_checkpointing",
    "offload": "cpu_offload",
    "amp": "precision",
    "precision": "precision",
    "dtype": "precision",
    "attn": "attention_kernel",
    "parallel": "a parallel degree",
    "expert": "n_experts or ep_degree",
    "virtual": "virtual_pp_degree",
    "param": "n_params",
    "layer": "n_layers",
    "head": "n_heads",
    "seq": "seq_len",
    "gpu": "world_size or device",
}
"""Part of a key -> what an unknown heading with it may concern."""
