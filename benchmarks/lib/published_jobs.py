"""Published throughputs, step times and memory of transformer trainings, each with the page that states it.

Every row of a table that was read is here, unless a model's shape or layout was not found: those are in ``OMITTED``.
The facts are those that the page, a config file that it names, or the script beside it states. What no source states is
left out, or noted beside the row. Shapes are those of ``torchtitan/models/llama3/__init__.py``, its Llama 2 predecessor
``torchtitan/models/llama/__init__.py`` and ``torchtitan/models/deepseek_v3/__init__.py`` (pytorch/torchtitan), and of
the models' ``config.json`` as quoted in public tests. With a pipeline, torchtitan's FSDP keeps gathered parameters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torchx_cubicml.records.values import Value

    Row = dict[str, Value]

TITAN_H100 = "pytorch/torchtitan benchmarks/llama3_h100_202412_torchtitan.md"
TITAN_A100 = "pytorch/torchtitan docs/performance.md"
TITAN_H200 = "pytorch/torchtitan benchmarks/llama3_8b_h200_2025-06_torchtitan.md"
BRIDGE = "NVIDIA-NeMo/Megatron-Bridge docs/performance-summary-archive.md"
AUTOMODEL = "NVIDIA-NeMo/Automodel docs/performance-summary.md"
DLPERF = "Oneflow-Inc/DLPerf Megatron-LM/README.md"
FMS = "foundation-model-stack/fms-fsdp README.md"
OMITTED = {
    AUTOMODEL: "Kimi K2, whose shape was not found; fine-tuning with adapters",
    BRIDGE: "NVFP4, whose peak is in no specification here; 25.09, whose two figures a cell share one layout",
    FMS: "34b, whose shape the page does not state",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedJob:
    """Published figures of one training.

    Args:
        source: repository and path.
        name: in a few words.
        facts: under the standard names.
        tokens_per_second: per device.
        memory_gib: of one device, as the source counts it; ``None`` where it is not stated.
    """

    source: str
    name: str
    facts: Row
    tokens_per_second: float
    memory_gib: float | None = None


def _shape(layers: int, width: int, heads: int, kv_heads: int, inner: int, words: int) -> Row:
    names = ("n_layers", "d_model", "n_heads", "n_kv_heads", "d_ff", "vocab_size")
    return {**dict(zip(names, (layers, width, heads, kv_heads, inner, words), strict=True)), "tied_embeddings": False}


def _mixture(shape: Row, *, head_dim: int, expert: int, experts: int, active: int) -> Row:
    sizes: Row = {"expert_d_ff": expert, "n_experts": experts, "n_active_experts": active}
    return {**shape, **sizes, "head_dim": head_dim}


MODELS: dict[str, Row] = {
    "llama2 7B": _shape(32, 4096, 32, 32, 11008, 32000),
    "llama2 13B": _shape(40, 5120, 40, 40, 13824, 32000),
    "llama2 70B": _shape(80, 8192, 64, 8, 28672, 32000),
    "llama3 8B": _shape(32, 4096, 32, 8, 14336, 128256),
    "llama3 70B": _shape(80, 8192, 64, 8, 28672, 128256),
    "llama3 405B": _shape(126, 16384, 128, 8, 53248, 128256),
    "qwen3 30B": _mixture(_shape(48, 2048, 32, 4, 6144, 151936), head_dim=128, expert=768, experts=128, active=8),
    "qwen3 235B": _mixture(_shape(94, 4096, 64, 4, 12288, 151936), head_dim=128, expert=1536, experts=128, active=8),
    "gpt-oss 20B": _mixture(_shape(24, 2880, 64, 8, 2880, 201088), head_dim=64, expert=2880, experts=32, active=4),
    "gpt-oss 120B": _mixture(_shape(36, 2880, 64, 8, 2880, 201088), head_dim=64, expert=2880, experts=128, active=4),
    # Its latent attention is taken for 128 heads of 128 with one head of keys and values, which has a quarter more
    # parameters than its own.
    "deepseek-v3": {
        **_mixture(_shape(61, 7168, 128, 1, 18432, 129280), head_dim=128, expert=2048, experts=256, active=8),
        "shared_expert_d_ff": 2048,
        "n_dense_layers": 3,
    },
}

PER_OPERATION: Row = {"activation_checkpointing": "selective", "selective_recompute": "op"}
PER_LAYER: Row = {"activation_checkpointing": "selective", "selective_recompute": "2"}
FULL: Row = {"activation_checkpointing": "full"}
NONE: Row = {"activation_checkpointing": "none"}
FSDP: Row = {"sharding_strategy": "FULL_SHARD", "gradient_accumulation_steps": 1, "attention_kernel": "sdpa"}
FAST: Row = {"compile": True, "precision": "fp8"}  # torch.compile and Float8 on linear layers


def jobs() -> Iterator[PublishedJob]:
    """Yield the jobs of all sources."""
    yield from _titan_h100()
    yield from _titan_others()
    yield from _bridge()
    yield from _automodel()
    yield from _dlperf()
    yield from _fms()


def _titan(
    source: str, model: str, name: str, world: int, facts: Row, figures: tuple[float, float | None]
) -> PublishedJob:
    device = {TITAN_H100: "NVIDIA H100 80GB HBM3", TITAN_A100: "NVIDIA A100-SXM4-80GB", TITAN_H200: "NVIDIA H200"}
    row: Row = {**MODELS[model], **FSDP, "precision": "bf16", "seq_len": 8192, "world_size": world, **facts}
    row["device"] = device[source]
    speed, memory = figures
    return PublishedJob(source=source, name=f"{model}, {name}", facts=row, tokens_per_second=speed, memory_gib=memory)


def _titan_h100() -> Iterator[PublishedJob]:
    """Yield tables 1 to 6; the cards are H100s of 96 GB with 500 W, which no specification here is of."""
    for world, speeds in (
        (8, ((5762, 82.4), (6667, 77.0), (8532, 76.8))),
        (128, ((5605, 67.0), (6514, 62.0), (8380, 61.8))),
    ):
        for name, facts, figures in zip(
            ("FSDP", "compiled", "compiled, fp8"), ({}, {"compile": True}, FAST), speeds, strict=True
        ):
            stated = {**PER_OPERATION, "micro_batch_size": 2, **facts}
            yield _titan(TITAN_H100, "llama3 8B", f"{world} GPUs, {name}", world, stated, figures)
    for cp, length, figures in (
        (1, 32768, (3890, 83.9)),
        (2, 65536, (2540, 84.2)),
        (4, 131072, (1071, 84.0)),
        (8, 262144, (548, 84.5)),
    ):
        facts = {**FULL, **FAST, "micro_batch_size": 1, "cp_degree": cp, "seq_len": length}
        yield _titan(TITAN_H100, "llama3 8B", f"CP {cp}, {length} tokens", 8, facts, figures)
    for name, overlap, figures in (("TP 8", False, (829, 71.9)), ("TP 8, async", True, (876, 67.6))):
        facts = {**FULL, **FAST, "micro_batch_size": 16, "tp_degree": 8, "tp_overlap": overlap}
        yield _titan(TITAN_H100, "llama3 70B", name, 256, facts, figures)
    # The micro batches of a step are not stated: as many as stages, which was torchtitan's default.
    large = {**FULL, **FAST, "tp_degree": 8, "pp_degree": 8, "tp_overlap": True, "gradient_accumulation_steps": 8}
    large |= {"sharding_strategy": "SHARD_GRAD_OP"}
    for schedule, figures in (("1F1B", (100, 82.5)), ("Interleaved1F1B", (128, 72.7))):
        facts = {**large, "micro_batch_size": 4, "pp_schedule": schedule}
        yield _titan(TITAN_H100, "llama3 405B", schedule, 512, facts, figures)
    for cp, length, figures in (
        (1, 32768, (76, 75.3)),
        (2, 65536, (47, 75.9)),
        (4, 131072, (31, 77.1)),
        (8, 262144, (16, 84.9)),
    ):
        facts = {**large, "micro_batch_size": 1, "pp_schedule": "1F1B", "cp_degree": cp, "seq_len": length}
        yield _titan(TITAN_H100, "llama3 405B", f"CP {cp}, {length} tokens", 512, facts, figures)


def _titan_others() -> Iterator[PublishedJob]:
    rows = (
        ("llama3 8B", 1, "per layer", PER_LAYER, 2904),
        ("llama3 8B", 1, "per op", PER_OPERATION, 2973),
        ("llama3 70B", 1, "full", FULL, 331),
        ("llama2 13B", 2, "none", NONE, 2162),
        ("llama2 13B", 2, "per layer", PER_LAYER, 1914),
        ("llama2 13B", 2, "per op", PER_OPERATION, 1904),
        ("llama2 70B", 1, "per op", PER_OPERATION, 355),
        ("llama2 70B", 2, "full", FULL, 353),
    )
    for model, micro, name, recomputed, speed in rows:
        length = 4096 if model.startswith("llama2") else 8192
        facts = {**recomputed, "micro_batch_size": micro, "seq_len": length}
        yield _titan(TITAN_A100, model, f"recomputed: {name}, micro {micro}", 64, facts, (speed, None))
    for world, figures in ((32, (10938, 47.96)), (64, (10753, 46.97))):
        facts = {**PER_OPERATION, **FAST, "micro_batch_size": 2}
        yield _titan(TITAN_H200, "llama3 8B", f"{world} GPUs", world, facts, figures)


# System, model, GPUs, precision, global batch, micro batch, length, FSDP ranks, TP, PP, CP, chunks, EP, tokens/s/GPU.
_BRIDGE_ROWS = """
GB300|llama3 70B|64|fp8|256|1|8192|0|1|4|1|5|1|4596
GB200|llama3 70B|64|fp8|256|1|8192|0|2|4|1|5|1|3613
GB300|llama3 70B|64|fp8|256|2|8192|64|1|1|1|1|1|5003
GB200|llama3 70B|64|fp8|256|2|8192|64|1|1|1|1|1|4040
H100|llama3 70B|64|fp8|256|1|8192|0|4|8|1|5|1|1621
GB300|llama3 405B|256|fp8|1536|1|8192|0|2|8|2|4|1|931
GB200|llama3 405B|256|fp8|1536|1|8192|0|4|16|1|8|1|786
GB300|llama3 405B|256|fp8|1536|1|8192|0|4|8|1|4|1|988
GB200|llama3 405B|256|fp8|1536|1|8192|0|4|16|1|4|1|793
H100|llama3 405B|1024|fp8|1536|1|8192|0|8|8|2|8|1|311
GB300|deepseek-v3|256|fp8|4096|2|4096|0|1|2|1|8|32|4612
GB200|deepseek-v3|256|fp8|4096|1|4096|0|1|4|1|4|64|3955
B300|deepseek-v3|256|fp8|4096|1|4096|0|1|16|1|1|8|2983
B200|deepseek-v3|256|fp8|4096|1|4096|0|1|16|1|1|8|2689
GB300|gpt-oss 120B|64|bf16|1280|4|4096|0|1|1|1|1|64|19412
GB200|gpt-oss 120B|64|bf16|1280|4|4096|0|1|1|1|1|64|15784
B300|gpt-oss 120B|64|bf16|1280|4|4096|0|1|1|1|1|64|8359
B200|gpt-oss 120B|64|bf16|1280|4|4096|0|1|1|1|1|64|8047
H100|gpt-oss 120B|64|bf16|1280|1|4096|0|1|4|1|1|8|5993
GB300|qwen3 30B|8|fp8|512|8|4096|0|1|1|1|1|8|30376
GB200|qwen3 30B|8|fp8|512|4|4096|0|1|1|1|1|8|26084
B300|qwen3 30B|8|fp8|512|8|4096|0|1|1|1|1|8|29521
B200|qwen3 30B|8|fp8|512|1|4096|0|1|1|1|1|8|9691
H100|qwen3 30B|16|fp8|1024|1|4096|0|1|2|1|12|8|5113
GB300|qwen3 235B|256|fp8|8192|2|4096|0|1|4|1|1|32|6583
GB200|qwen3 235B|256|fp8|8192|1|4096|0|1|8|1|1|32|5448
B300|qwen3 235B|256|fp8|8192|1|4096|0|1|8|1|4|8|2691
B200|qwen3 235B|256|fp8|8192|1|4096|0|1|8|1|1|8|3805
H100|qwen3 235B|256|fp8|8192|1|4096|0|2|8|1|4|32|1633
GB300|llama3 8B|8|fp8|128|2|8192|0|1|1|1|1|1|37556
GB200|llama3 8B|8|fp8|128|2|8192|0|1|1|1|1|1|31508
B200|llama3 8B|8|fp8|128|2|8192|0|1|1|1|1|1|30624
B200|llama3 405B|128|fp8|64|1|8192|0|4|8|2|8|1|661
H100|llama3 8B|8|fp8|128|1|8192|8|1|1|1|1|1|14451
H100|llama3 70B|64|fp8|128|1|8192|0|4|8|1|5|1|1602
H100|llama3 405B|1024|fp8|512|1|8192|0|8|8|2|8|1|292
H100|gpt-oss 120B|64|bf16|512|4|4096|0|1|4|1|1|8|5630
H100|qwen3 30B|16|fp8|512|2|4096|0|1|2|1|24|8|5275
H100|qwen3 235B|256|fp8|2048|1|4096|0|2|8|1|4|32|1575
GB300|deepseek-v3|256|bf16|4096|1|4096|0|1|2|1|4|32|3848
GB200|deepseek-v3|256|bf16|4096|1|4096|0|1|4|1|4|64|3139
GB200|deepseek-v3|256|fp8|4096|1|4096|0|1|8|1|4|32|4018
GB300|gpt-oss 120B|64|bf16|1280|2|8192|0|1|1|1|1|64|18347
GB200|gpt-oss 120B|64|bf16|1280|1|8192|0|1|1|1|1|64|15876
B200|gpt-oss 120B|64|bf16|512|4|4096|0|1|1|1|1|8|8213
GB300|qwen3 235B|256|bf16|8192|2|4096|0|1|4|1|12|16|6131
GB200|qwen3 235B|256|bf16|8192|1|4096|0|1|8|1|3|32|4916
B200|qwen3 235B|64|fp8|1024|1|4096|0|1|8|1|2|8|3269
"""


def _bridge() -> Iterator[PublishedJob]:
    """Yield the containers 26.02 and 25.11; what is recomputed, and which optimizer is sharded, is not stated."""
    names = ("world_size", "global_batch_size", "micro_batch_size", "seq_len", "tp_degree", "pp_degree", "cp_degree")
    for line in _BRIDGE_ROWS.strip().splitlines():
        device, model, world, precision, whole, micro, length, shards, tp, pp, cp, chunks, ep, speed = line.split("|")
        numbers = (world, whole, micro, length, tp, pp, cp)
        facts: Row = {**MODELS[model], **dict(zip(names, map(int, numbers), strict=True))}
        facts |= {"precision": precision, "ep_degree": int(ep), "virtual_pp_degree": int(chunks), "expert_tp_degree": 1}
        facts |= {"device": f"NVIDIA {device}", "attention_kernel": "transformer_engine"}
        if int(shards):
            facts["sharding_strategy"] = "FULL_SHARD"
        layout = " ".join(
            f"{name}{n}" for name, n in zip(("TP", "PP", "CP", "V", "EP"), (tp, pp, cp, chunks, ep), strict=True)
        )
        name = f"{model}, {world} {device}, {precision}, micro {micro}, {layout}"
        yield PublishedJob(source=BRIDGE, name=name, facts=facts, tokens_per_second=float(speed))


def _automodel() -> Iterator[PublishedJob]:
    rows = (
        ("deepseek-v3", 1024, 8192, 1, 32, 4, 64, 8, "SHARD_GRAD_OP", FULL, 865),
        ("deepseek-v3", 256, 512, 1, 8, 4, 64, 8, "SHARD_GRAD_OP", FULL, 1002),
        ("qwen3 30B", 8, 512, 4, 16, 1, 8, 1, "FULL_SHARD", FULL, 12040),
        ("gpt-oss 20B", 8, 256, 2, 16, 1, 8, 1, "FULL_SHARD", NONE, 13058),
        ("gpt-oss 120B", 64, 512, 2, 4, 1, 64, 1, "FULL_SHARD", NONE, 7626),
    )
    for model, world, whole, micro, rounds, pp, ep, chunks, sharding, recomputed, speed in rows:
        facts: Row = {**MODELS[model], **recomputed, "world_size": world, "global_batch_size": whole, "seq_len": 4096}
        facts |= {"micro_batch_size": micro, "gradient_accumulation_steps": rounds, "pp_degree": pp, "ep_degree": ep}
        facts |= {"virtual_pp_degree": chunks, "sharding_strategy": sharding, "precision": "bf16"}
        facts |= {"device": "NVIDIA H100 80GB HBM3", "attention_kernel": "transformer_engine"}
        name = f"{model}, {world} GPUs, PP{pp} EP{ep}"
        yield PublishedJob(source=AUTOMODEL, name=name, facts=facts, tokens_per_second=speed)


# GPUs, TP, PP, micro batch, accumulation, width, heads, layers, milliseconds per step, MiB as nvidia-smi shows them.
_DLPERF_ROWS = (
    (1, 1, 1, 2, 1, 1536, 16, 16, 464.12, 14362),
    (8, 1, 1, 2, 1, 1536, 16, 16, 480.96, 14938),
    (16, 1, 1, 2, 1, 1536, 16, 16, 664.46, 14508),
    (32, 1, 1, 2, 1, 1536, 16, 16, 683.51, 14508),
    (1, 1, 1, 8, 1, 768, 12, 12, 611.2, 9810),
    (8, 8, 1, 16, 1, 1536, 16, 16, 692.44, 12684),
    (16, 16, 1, 16, 1, 3072, 32, 16, 5610.23, 12150),
    (32, 32, 1, 16, 1, 3072, 32, 32, 13037.85, 8834),
    (8, 1, 1, 2, 1, 1536, 16, 16, 480.22, 14938),
    (8, 8, 1, 16, 1, 1536, 16, 16, 664.64, 12684),
    (8, 4, 1, 8, 1, 1536, 16, 16, 576.48, 9104),
    (8, 2, 1, 4, 1, 1536, 16, 16, 593.68, 9642),
    (16, 8, 1, 8, 1, 2304, 24, 24, 1313.52, 14928),
    (32, 8, 1, 8, 1, 2304, 24, 24, 1508.48, 15004),
    (32, 1, 4, 2, 32, 1536, 16, 16, 4893.55, 7130),
    (32, 8, 4, 16, 32, 2304, 24, 24, 22166.85, 14204),
    (32, 4, 4, 8, 32, 2304, 24, 24, 15331.23, 10018),
    (32, 8, 2, 8, 32, 2304, 24, 24, 16281.51, 10554),
)


def _dlperf() -> Iterator[PublishedJob]:
    """Yield Megatron-LM of 2021 on V100s of 16 GB, four nodes with one card of 100 Gbit/s each for eight GPUs."""
    for world, tp, pp, micro, rounds, width, heads, layers, milliseconds, mebibytes in _DLPERF_ROWS:
        facts: Row = {**_shape(layers, width, heads, heads, 4 * width, 51200), "tied_embeddings": True, "seq_len": 2048}
        facts |= {"world_size": world, "nproc_per_node": 8, "tp_degree": tp, "pp_degree": pp, "micro_batch_size": micro}
        facts |= {
            "gradient_accumulation_steps": rounds,
            "zero_stage": 0,
            "sequence_parallel": False,
            "precision": "fp16",
        }
        facts |= {**FULL, "device": "Tesla V100-SXM2-16GB", "attention_kernel": "math"}
        tokens = micro * rounds * (world // (tp * pp)) * 2048
        yield PublishedJob(
            source=DLPERF,
            name=f"{width} x {layers}, {world} GPUs, TP{tp} PP{pp}, micro {micro} x {rounds}",
            facts=facts,
            tokens_per_second=tokens / world / (milliseconds / 1000.0),
            memory_gib=mebibytes / 1024.0,
        )


def _fms() -> Iterator[PublishedJob]:
    rows = (
        ("llama2 7B", "HYBRID_SHARD", NONE, 2, 3760),
        ("llama2 13B", "HYBRID_SHARD", NONE, 1, 1700),
        ("llama2 70B", "FULL_SHARD", FULL, 6, 380),
    )
    for model, sharding, recomputed, micro, speed in rows:
        facts: Row = {**MODELS[model], **FSDP, **recomputed, "sharding_strategy": sharding, "micro_batch_size": micro}
        facts |= {"world_size": 128, "seq_len": 4096, "precision": "bf16", "device": "NVIDIA A100-SXM4-80GB"}
        yield PublishedJob(source=FMS, name=f"{model}, {sharding}", facts=facts, tokens_per_second=speed)
