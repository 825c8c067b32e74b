"""Names of the facts that a command may tell of a transformer, and further names that programs have for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchx_cubicml.records.standard_names import EMBEDDING_SHARDINGS, LEFT_TO_PLANNER, standard_flag_name
from torchx_cubicml.records.standard_words import standard_word
from torchx_cubicml.space.spelling import number

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torchx_cubicml.records.values import Scalar, Value

SIZES = frozenset(
    {
        *("n_layers", "d_model", "n_heads", "n_kv_heads", "head_dim", "d_ff", "vocab_size", "n_positions", "n_params"),
        *("n_experts", "n_active_experts", "expert_d_ff", "shared_expert_d_ff", "n_dense_layers", "n_token_types"),
    }
)
"""Sizes of the model."""
COUNTS = SIZES | frozenset(
    {
        *("seq_len", "micro_batch_size", "global_batch_size", "gradient_accumulation_steps", "world_size", "nnodes"),
        *("nproc_per_node", "dp_replicate_degree", "dp_shard_degree", "tp_degree", "pp_degree", "cp_degree"),
        *("ep_degree", "expert_tp_degree", "virtual_pp_degree", "zero_stage", "capacity_factor"),
    }
)
"""Facts that are whole numbers above zero; ``zero_stage`` may be zero, ``capacity_factor`` a fraction."""
_LARGEST = 1e15
SWITCHES = frozenset(
    {
        *("compile", "sequence_parallel", "cpu_offload", "tied_embeddings", "gated_mlp", "linear_bias", "qkv_bias"),
        *("norm_bias", "tp_overlap", "head_bias", "embedding_norm", "final_norm", "head_transform"),
    }
)
"""Facts that are true or false."""
WORDS = frozenset({"precision", "sharding_strategy", "activation_checkpointing", "attention_kernel", "device"})
"""Facts in words."""
_STANDARD = frozenset({"precision", "activation_checkpointing", "sharding_strategy"})
TABLE_LISTS = frozenset({"embedding_rows", "embedding_dims", "embedding_pooling", "layer_n_params"})
"""Facts of a recommender that list one number per table or dense layer."""
TABLE_WORDS = frozenset({"embedding_sharding", "embedding_plan"})
"""Facts of a recommender that list one word per table."""
FACTS = COUNTS | SWITCHES | WORDS | {"selective_recompute", "cp_method", "optimizer", "positions"}

_OTHER_NAMES = {
    **dict.fromkeys(("depth", "n_blocks", "num_blocks", "nlayers", "n_block", "num_layer"), "n_layers"),
    **dict.fromkeys(("dim", "embed_dim", "emb_dim", "embedding_size", "model_dim", "width", "emsize"), "d_model"),
    **dict.fromkeys(("embd_dim", "hidden_dim_model", "n_embed", "dim_model"), "d_model"),
    **dict.fromkeys(("heads", "nhead", "nheads", "num_head"), "n_heads"),
    **dict.fromkeys(("mlp_dim", "ffn_dim", "ff_dim", "dim_feedforward", "n_inner", "d_inner"), "d_ff"),
    **dict.fromkeys(("max_seq_length", "ctx_len", "max_sequence_length", "ctx_length"), "seq_len"),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx"), "n_positions"),
    **dict.fromkeys(("tie_word_embeddings", "enable_weight_tying", "tie_weights", "tie_embeddings"), "tied_embeddings"),
    **dict.fromkeys(("vocab", "vocabulary", "n_vocab", "num_embeddings", "padded_vocab_size"), "vocab_size"),
    **dict.fromkeys(("n_local_heads", "n_kv"), "n_kv_heads"),
    **dict.fromkeys(("bsz", "micro_batch", "device_batch_size", "batch_size_per_gpu"), "micro_batch_size"),
    **dict.fromkeys(("top_k", "n_experts_per_token", "moe_top_k"), "n_active_experts"),
    "type_vocab_size": "n_token_types",
}


def fact_name(key: str) -> str:
    """Return the fact that a flag, a key or a field of a program names; empty for none.

    >>> [fact_name(key) for key in ("n_embd", "model.dim", "num-query-groups", "lr", "use_bf16")]
    ['d_model', 'd_model', 'n_kv_heads', '', '']
    """
    plain = key.strip("-=").rpartition(".")[2].replace("-", "_").lower()
    name = _OTHER_NAMES.get(plain) or standard_flag_name(key)
    return name if name in FACTS else ""


def fact_value(fact: str, value: Value | None) -> Value | None:
    """Return the value of a fact as the formulas take it; ``None`` for what is no legal one.

    >>> [fact_value("precision", "bfloat16"), fact_value("activation_checkpointing", True), fact_value("n_layers", -1)]
    ['bf16', 'full', None]
    """
    if value is None or isinstance(value, tuple) or fact not in FACTS:
        return value if fact == "sharding_strategy" else None
    if fact in COUNTS:
        return value if _is_count(fact, value) else None
    if fact in SWITCHES:
        return value if isinstance(value, bool) else None
    if fact in _STANDARD:
        return standard_word(fact, str(value))
    is_legal = isinstance(value, str) and (fact != "device" or value.lower() == "cpu")  # cuda is no kind of device
    return value if is_legal else None


def _is_count(fact: str, value: Scalar) -> bool:
    if isinstance(value, bool | str) or not 0 <= value <= _LARGEST:
        return False
    is_whole = fact == "capacity_factor" or float(value).is_integer()
    return is_whole and (value > 0 or fact == "zero_stage")


def stated_fact(fact: str, value: Value | None) -> Value | None:
    """Return the value of a fact that a user states; lists of a recommender are spelled with commas.

    >>> stated_fact("embedding_rows", "1000,200"), stated_fact("embedding_sharding", "table_wise")
    ((1000, 200), ('table_wise',))
    """
    if fact in TABLE_LISTS:
        found = tuple(number(word) for word in str(value).split(","))
        numbers = tuple(each for each in found if isinstance(each, int | float) and each > 0)
        return numbers if len(numbers) == len(found) else None
    if fact in TABLE_WORDS:
        words = tuple(str(value).split(","))
        return words if {*words} <= {LEFT_TO_PLANNER, *EMBEDDING_SHARDINGS} else None
    return fact_value(fact, value)


def known_facts(settings: Mapping[str, Value]) -> dict[str, Value]:
    """Return the facts among values by key; a fact that two keys tell differently is left out."""
    found: dict[str, Value] = {}
    doubtful = set()
    for key, stated in settings.items():
        fact = fact_name(key)
        value = fact_value(fact, stated) if fact else None
        if value is None:
            continue
        if fact in found and found[fact] != value:
            doubtful.add(fact)
        found[fact] = value
    return {fact: value for fact, value in found.items() if fact not in doubtful}
