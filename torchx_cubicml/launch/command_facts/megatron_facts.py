"""Facts of a command of Megatron-LM, as its argument parser and its GPT model read the flags."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchx_cubicml.launch.command_facts.stated_settings import Setting

if TYPE_CHECKING:
    from collections.abc import Callable

    from torchx_cubicml.launch.command_facts.stated_settings import StatedSettings
    from torchx_cubicml.launch.launch import Launch
    from torchx_cubicml.records.values import Scalar

_SWISH_SHARE = 2.0 / 3.0  # of the inner width of an MLP with a gate, in multiples of 64


def megatron_facts_of_command(launch: Launch, settings: StatedSettings) -> dict[str, Setting]:
    """Return the facts of a command of Megatron-LM besides those of its table of flags.

    The vocabulary of a tokenizer file is not known; a stated one is padded as Megatron-LM pads it.
    """
    del launch
    has = {name: bool(setting.value) for name, setting in settings.arguments.items()}
    has_bias, flags = not has.get("disable_bias_linear", False), _flag_text(settings)
    facts: dict[str, tuple[Scalar | None, str]] = {
        "gated_mlp": (has.get("swiglu", False), flags("swiglu")),
        "tied_embeddings": (
            not has.get("untie_embeddings_and_output_weights", False),
            flags("untie_embeddings_and_output_weights"),
        ),
        "linear_bias": (has_bias, flags("disable_bias_linear")),
        "qkv_bias": (has.get("add_qkv_bias", False) or has_bias, flags("disable_bias_linear", "add_qkv_bias")),
        "norm_bias": (_text(settings, "normalization", "LayerNorm") == "LayerNorm", flags("normalization")),
        "positions": (_positions(settings), flags("position_embedding_type")),
        "n_positions": (_number(settings, "max_position_embeddings"), flags("max_position_embeddings")),
        "d_ff": (_inner_width(settings), flags("ffn_hidden_size")),
        "vocab_size": (_vocabulary(settings), f"{flags('vocab_size')}, padded"),
        "precision": (_precision(settings), flags("bf16", "fp16", "fp8_format")),
        "n_kv_heads": (_groups(settings), flags("num_query_groups")),
        "n_active_experts": (
            (_number(settings, "moe_router_topk") or 2) if "num_experts" in settings.arguments else None,
            flags("moe_router_topk"),
        ),
        "expert_d_ff": (_number(settings, "moe_ffn_hidden_size"), flags("moe_ffn_hidden_size")),
        "zero_stage": (1 if has.get("use_distributed_optimizer", False) else None, flags("use_distributed_optimizer")),
        "sharding_strategy": (_sharding(has), flags("use_distributed_optimizer", "use_torch_fsdp2")),
        "attention_kernel": (_attention(settings), flags("transformer_impl", "attention_backend")),
        "compile": (False, "Megatron-LM"),
        "sequence_parallel": (has.get("sequence_parallel", False), flags("sequence_parallel")),
    }
    return {fact: Setting(value=value, source=source) for fact, (value, source) in facts.items() if value is not None}


def _flag_text(settings: StatedSettings) -> Callable[..., str]:
    """Return a function that names the flags among its arguments that the command states, or those that it lacks."""

    def text(*names: str) -> str:
        flags = {name: f"--{name.replace('_', '-')}" for name in names}
        typed = [flags[name] for name in names if name in settings.arguments]
        return " and ".join(typed) if typed else f"without {' and '.join(flags.values())}"

    return text


def _text(settings: StatedSettings, name: str, default: str) -> str:
    found = settings.arguments.get(name)
    return str(found.value) if found is not None else default


def _number(settings: StatedSettings, name: str) -> int | None:
    found = settings.arguments.get(name)
    return found.value if found is not None and isinstance(found.value, int) else None


def _positions(settings: StatedSettings) -> str:
    kind = _text(settings, "position_embedding_type", "learned_absolute")
    return (
        "learned" if kind == "learned_absolute" and "use_rotary_position_embeddings" not in settings.arguments else kind
    )


def _inner_width(settings: StatedSettings) -> int | None:
    stated, width = _number(settings, "ffn_hidden_size"), _number(settings, "hidden_size")
    if stated is not None or width is None:
        return stated
    return int(4 * width * _SWISH_SHARE / 64) * 64 if "swiglu" in settings.arguments else 4 * width


def _vocabulary(settings: StatedSettings) -> int | None:
    """Return the padded vocabulary: a multiple of a number times the tensor-parallel degree."""
    words = _number(settings, "padded_vocab_size")
    stated = _number(settings, "vocab_size")
    if words is not None or stated is None:
        return words
    multiple = _number(settings, "make_vocab_size_divisible_by") or 128
    multiple *= _number(settings, "tensor_model_parallel_size") or 1
    if _text(settings, "tokenizer_type", "") == "NullTokenizer":
        stated += 1  # its end-of-document token
    return -(-stated // multiple) * multiple


def _precision(settings: StatedSettings) -> str:
    if "fp8_format" in settings.arguments:
        return "fp8"
    return next((name for name in ("bf16", "fp16") if name in settings.arguments), "fp32")


def _groups(settings: StatedSettings) -> int | None:
    return _number(settings, "num_query_groups") if "group_query_attention" in settings.arguments else None


def _sharding(has: dict[str, bool]) -> str | None:
    if has.get("use_torch_fsdp2") or has.get("use_megatron_fsdp"):
        return "FULL_SHARD"
    return None if has.get("use_distributed_optimizer") else "DDP"


def _attention(settings: StatedSettings) -> str | None:
    backend = _text(settings, "attention_backend", "auto")
    if backend in {"unfused", "local"}:
        return "math"
    if _text(settings, "transformer_impl", "transformer_engine") == "local":
        return "flash_attention" if "use_flash_attn" in settings.arguments else "math"
    return "transformer_engine"
