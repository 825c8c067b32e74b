"""Standard words of parameters and facts, with the spellings of trainers, papers and logs."""

from __future__ import annotations

import re
from functools import lru_cache

from torchx_cubicml.records.standard_names import EMBEDDING_KERNELS

ON_WORDS = ("true", "yes", "on", "1", "y", "t")
"""Words that switch a flag or variable on, in lower case; ``OFF_WORDS`` has the opposite of each at the same place.

Each is read in any case by one of HF's ``string_to_bool``, ``strtobool`` of distutils, jsonargparse and absl.
"""
OFF_WORDS = ("false", "no", "off", "0", "n", "f")
# In a table, T and F may stand for other words.
_YES = (*ON_WORDS[:-1], "enabled", "enable", "used", "\u2713", "\u2714", "\u2705", "\u2611")
_NO = (
    *(*OFF_WORDS[:-1], "disabled", "disable", "none", "never", "without", "unused"),
    *("\u2717", "\u2718", "\u00d7", "\u274c", "\u2716", "\u2715", "\u2610"),
)

SPELLINGS: dict[str, dict[str, tuple[str, ...]]] = {
    "activation_checkpointing": {
        "full": (
            *_YES,
            *("full", "all", "every_layer", "each_layer", "per_layer", "all_layers", "every_block", "block", "layer"),
            "uniform",
            *("full_recompute", "full_recomputation", "full_uniform", "full_block", "full_ac", "full_checkpointing"),
        ),
        "selective": (
            *("selective", "sel", "partial", "selective_op", "selective_layer", "selective_recompute", "op"),
            *("selective_recomputation", "selective_ac", "attention", "attn", "core_attn", "core_attention"),
            *("attention_only", "attn_only", "selective_attention"),
        ),
        "none": (*_NO, "no_recompute", "no_recomputation", "no_ac", "nothing", "no_checkpointing"),
    },
    "sharding_strategy": {
        "FULL_SHARD": (
            *("full_shard", "fsdp", "fsdp1", "fsdp2", "fsdp_full", "fully_sharded", "full_sharding", "full"),
            *("zero_3", "zero_stage_3", "stage_3", "full_shard_zero3", "fsdp_full_shard", "fsdp_zero3"),
            "full_shard_auto_wrap",
        ),
        "SHARD_GRAD_OP": (
            *("shard_grad_op", "shard_grad", "grad_op", "fsdp_grad_op", "sharded_grad_op", "fsdp_shard_grad_op"),
            *("zero_2", "zero_stage_2", "stage_2", "grad_shard", "grad", "gradients", "fsdp_zero2"),
            *("shard_grad_op_zero2", "shard_grad_op_auto_wrap"),
        ),
        "NO_SHARD": ("no_shard", "no_sharding", "unsharded"),
        "HYBRID_SHARD": (
            *("hybrid_shard", "hybrid", "hsdp", "hybrid_sharding", "hybrid_full_shard", "hybrid_fsdp"),
            "hybrid_shard_auto_wrap",
        ),
        "_HYBRID_SHARD_ZERO2": (
            *("_hybrid_shard_zero2", "hybrid_zero2", "hybrid_shard_grad_op", "hybrid_shard_zero2_auto_wrap"),
        ),
        "DDP": ("ddp", "data_parallel", "distributed_data_parallel", "replicated", "replicate"),
        "NONE": ("none",),
    },
    "embedding_sharding": {
        "data_parallel": ("data_parallel", "dp", "replicated"),
        "table_wise": ("table_wise", "tw"),
        "row_wise": ("row_wise", "rw"),
        "column_wise": ("column_wise", "cw"),
        "table_row_wise": ("table_row_wise", "twrw"),
        "table_column_wise": ("table_column_wise", "twcw"),
        "grid_shard": ("grid_shard", "grid"),
    },
    "embedding_kernel": {word: (word,) for word in EMBEDDING_KERNELS},
    "attention_kernel": {
        "flash_attention": (*_YES, "flash_attention", "flash_attn", "flash", "fa", "flashattention"),
        "flash_attention_2": ("flash_attention_2", "flash_attn_2", "flash2", "fa2", "flash_attention_v2", "flash_2"),
        "flash_attention_3": ("flash_attention_3", "flash_attn_3", "flash3", "fa3", "flash_attention_v3", "flash_3"),
        "sdpa": ("sdpa", "torch_sdpa", "scaled_dot_product_attention", "scaled_dot_product"),
        "sdpa_flash": ("sdpa_flash",),
        "sdpa_efficient": ("sdpa_efficient", "sdpa_mem_efficient", "sdpa_memory_efficient"),
        "sdpa_cudnn": ("sdpa_cudnn", "cudnn", "cudnn_attention"),
        "flex_attention": ("flex_attention", "flex", "flexattention", "flex_attn"),
        "fused": ("fused", "fused_attention", "fused_attn"),
        "xformers": ("xformers", "memory_efficient", "mem_efficient", "memory_efficient_attention"),
        "transformer_engine": ("transformer_engine", "te"),
        "triton": ("triton",),
        "math": (
            *_NO,
            *("math", "eager", "torch", "naive", "plain", "vanilla", "unfused", "standard", "manual", "native"),
        ),
    },
    "pp_schedule": {
        "1F1B": ("1f1b", "one_f_one_b", "one_forward_one_backward", "pipedream_flush", "schedule1f1b"),
        "GPipe": ("gpipe", "afab", "all_forward_all_backward", "schedulegpipe"),
        "Interleaved1F1B": ("interleaved", "interleaved_1f1b", "scheduleinterleaved1f1b", "1f1b_interleaved"),
        "ZeroBubble": ("zero_bubble", "zb", "zb_h1", "zbh1", "zb1p", "zero_bubble_h1"),
        "DualPipe": ("dualpipe", "dual_pipe", "dualpipev", "dual_pipe_v"),
    },
}
"""Standard name -> standard word -> its spellings, compared without case, spaces, hyphens and underscores."""

SWITCHES = frozenset(
    {
        *("activation_cpu_offload", "compile", "cpu_offload", "cuda_graphs", "optimizer_cpu_offload"),
        *("optimizer_fused", "overlap_communication", "sequence_parallel", "tied_embeddings"),
    }
)
"""Standard names whose values are true or false."""

_FORMAT = re.compile(
    r"(?<![a-z])(?:(?P<special>(?:nv|mx|h)?fp[46]|mxfp8|nvfp8|int[48])|(?P<usual>(?:amp|te|trt)?"
    r"(?:bfloat|float|bf|fp|tf)(?:8|16|32|64))|(?P<half>half|(?<![\d.])16)|(?P<single>single|(?<![\d.])32))(?!\d)"
)
_NARROWNESS = ("fp8", "bf16", "fp16", "tf32", "fp32")  # of formats that stand together, the first decides


def squashed(text: str) -> str:
    """Return the letters, digits and marks of a text in lower case: the form in which spellings are compared.

    >>> [squashed(text) for text in ("Every-Layer", "every_layer", " NumLayers", "# GPUs")]
    ['everylayer', 'everylayer', 'numlayers', 'ngpus']
    """
    return re.sub(r"[^a-z0-9\u00d7\u2610\u2611\u2705\u2713-\u2718\u274c]+", "", text.replace("#", "n").lower())


def switch_value(text: str) -> bool | None:
    """Return the value of a switch by any usual spelling, ``None`` where the text is no switch.

    >>> [switch_value(text) for text in ("yes", "Disabled", "1", "0.0", "maybe")]
    [True, False, True, False, None]
    """
    word = squashed(text.removesuffix(".0"))
    return True if word in _SWITCH_ON else False if word in _SWITCH_OFF else None


@lru_cache(maxsize=4096)
def standard_word(name: str, text: str) -> str | None:
    """Return the standard word of the fact ``name`` by any of its spellings, ``None`` where the text is none of them.

    A number format that is not among the standard ones keeps its own word: ``nvfp4`` is not ``bf16``.

    >>> [standard_word("activation_checkpointing", text) for text in ("Every layer", "disabled", "sometimes")]
    ['full', 'none', None]
    >>> [standard_word("precision", text) for text in ("amp_bf16", "BF16-mixed", "fp8 hybrid", "NVFP4", "mixed")]
    ['bf16', 'bf16', 'fp8', 'nvfp4', None]
    """
    if name == "precision":
        return _number_format(text.lower())
    return _WORD_BY_SPELLING.get(name, {}).get(squashed(text.removesuffix(".0")))


def zero_stage(text: str) -> int | None:
    """Return the stage of ZeRO that a text names, ``None`` where it names none.

    >>> [zero_stage(text) for text in ("ZeRO-3", "stage 1", "zero stage 2", "2", "off", "FSDP")]
    [3, 1, 2, 2, 0, None]
    """
    found = re.fullmatch(r"(?:zero|deepspeed|ds|optimizer|os|stage|z)*([0-3])", squashed(text.removesuffix(".0")))
    if found is not None:
        return int(found[1])
    word = switch_value(text)
    return 0 if word is False else None


def _number_format(text: str) -> str | None:
    """Return the narrowest of the formats that a text names, as layers of several formats compute in that one."""
    words = []
    for found in _FORMAT.finditer(re.sub(r"[\s_-]+", " ", text)):
        if found["special"]:
            return found["special"]
        bits = re.sub(r"\D", "", found["usual"] or "") or ("16" if found["half"] else "32")
        kind = "bf" if "bf" in found[0] else "tf" if "tf" in found[0] else "fp"
        words.append(f"{kind}{bits}")
    return next((word for word in _NARROWNESS if word in words), words[0] if words else None)


_SWITCH_ON, _SWITCH_OFF = (frozenset(map(squashed, words)) for words in (_YES, _NO))
_WORD_BY_SPELLING = {
    name: {squashed(spelling): word for word, spellings in words.items() for spelling in (word, *spellings)}
    for name, words in SPELLINGS.items()
}
