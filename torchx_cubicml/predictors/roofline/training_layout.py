"""Layout of transformer trainings over devices: the inputs of the roofline formulas, derived from facts.

The depth, the width (or the number of parameters), the sequence length, the micro batch and the number of devices are
required. All else has a default: no parallelism, four times the width inside the MLP, bf16, one head per 128. For an
unknown kernel of attention, way of sharding or vocabulary no default would do: see ``unknown_facts``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Self, TypeAlias

import numpy as np

from torchx_cubicml.predictors.features.device_specs import PRECISIONS, REFERENCE, find_hardware, precision_word
from torchx_cubicml.predictors.roofline.unknown_facts import misfit_of_words, unknown_fields
from torchx_cubicml.records.standard_names import RESHARD_SIZES

if TYPE_CHECKING:
    from torchx_cubicml.predictors.features.device_specs import Hardware
    from torchx_cubicml.predictors.roofline.facts import Facts

Array: TypeAlias = np.ndarray[tuple[int, ...], np.dtype[np.float64]]

_BYTES = {"fp32": 4.0, "tf32": 4.0}  # of a weight, an activation or a gradient in transfer; 2 for all others
_GATHERED_EACH_TIME = ("FULL_SHARD", "HYBRID_SHARD", *RESHARD_SIZES)
_GATHERED_ONCE = ("SHARD_GRAD_OP", "_HYBRID_SHARD_ZERO2")
_HYBRID = ("HYBRID_SHARD", "_HYBRID_SHARD_ZERO2")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingLayout:
    """Models and parallel layouts of ``n`` trainings; every field is float64 ``[n]``.

    Args:
        layers: transformer blocks.
        width: of the residual stream.
        heads: of attention.
        kv_share: width of keys (or values) relative to the residual stream.
        inner: width of the MLP relative to the residual stream, counting the tensors that it keeps for backward.
        sequence: tokens of one sample.
        vocabulary: 0.0 where unknown.
        unknown_words: 1.0 where the vocabulary is unknown and cannot be solved for.
        embedded_words: vocabulary times its copies among the parameters, where it is solved for; else 0.0.
        layer_params: of one block.
        expert_share: share of them in experts, which are split over ``ep``.
        active_params: of one block, used by one token.
        active_experts: experts that one token is sent to.
        micro: samples per micro batch and data-parallel rank.
        rounds: micro batches per step and rank.
        world: devices.
        per_node: devices joined by fast links.
        dp: data-parallel ranks.
        shard: ranks over which parameters or optimizer states are sharded, <= ``dp``; the harmonic mean over layers.
        tp: tensor-parallel degree.
        pp: pipeline stages.
        cp: context-parallel degree.
        ep: expert-parallel degree.
        chunks: of layers per stage (interleaved schedule).
        bubble: share of the plain bubble that remains with the schedule.
        in_flight: micro batches whose activations the first stage holds.
        gathered_each_time: share of layers whose parameters are gathered for forward and for backward.
        gathered_once: share of layers whose parameters are gathered once per micro batch.
        hybrid: share of layers sharded inside a node and replicated across.
        states_sharded: share of layers whose optimizer states are sharded, with or without anything else.
        gradients_sharded: share of layers whose gradients are.
        full_recompute: share of layers whose activations are recomputed.
        selective_recompute: share of layers with attention alone recomputed.
        plain_attention: 1.0 where the scores of attention go through memory; 0.0 where the kernel is unknown.
        unknown_attention: 1.0 where the kernel of attention is unknown.
        unknown_sharding: 1.0 where it is unknown what is sharded; then the four shares above are 0.0.
        sequence_parallel: 1.0 where tensor parallelism splits all activations.
        compiled: 1.0 where kernels are fused by a compiler.
        width_bytes: bytes of a weight, an activation or a gradient in transfer.
        low_bit: 1.0 for fp8.
        peak: FLOP/s of one device in the precision of the training.
        memory: bytes of one device.
        memory_bandwidth: bytes per second.
        link: bytes per second to a device of the node.
        network: bytes per second to a device of another node.
    """

    layers: Array
    width: Array
    heads: Array
    kv_share: Array
    inner: Array
    sequence: Array
    vocabulary: Array
    unknown_words: Array
    embedded_words: Array
    layer_params: Array
    expert_share: Array
    active_params: Array
    active_experts: Array
    micro: Array
    rounds: Array
    world: Array
    per_node: Array
    dp: Array
    shard: Array
    tp: Array
    pp: Array
    cp: Array
    ep: Array
    chunks: Array
    bubble: Array
    in_flight: Array
    gathered_each_time: Array
    gathered_once: Array
    hybrid: Array
    states_sharded: Array
    gradients_sharded: Array
    full_recompute: Array
    selective_recompute: Array
    plain_attention: Array
    unknown_attention: Array
    unknown_sharding: Array
    sequence_parallel: Array
    compiled: Array
    width_bytes: Array
    low_bit: Array
    peak: Array
    memory: Array
    memory_bandwidth: Array
    link: Array
    network: Array

    @classmethod
    def of(cls, facts: Facts) -> Self:
        """Return the layout of ``facts``; where ``covered`` is false, its numbers are meaningless and may be NaN."""
        with np.errstate(invalid="ignore", divide="ignore"):
            fields = _degrees(facts) | _model(facts) | _devices(facts)
            fields |= _batch(facts, fields["dp"]) | _sharding(facts, fields)
            fields |= _pipeline(facts, fields) | _kernels(facts) | unknown_fields(facts, fields)
        return cls(**fields)

    @property
    def covered(self) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
        """Mask of the rows where all required facts are known and consistent, bool ``[n]``."""
        needed = (
            *(self.layers, self.width, self.layer_params, self.sequence, self.micro, self.world, self.dp),
            self.peak,  # unknown in an unknown number format
        )
        with np.errstate(invalid="ignore"):
            positive = np.all([np.isfinite(value) & (value > 0) for value in needed], axis=0)
            return np.asarray(positive & (self.dp >= 1 - 1e-9), dtype=np.bool_)

    def rows(self, chosen: np.ndarray[tuple[int, ...], np.dtype[np.bool_ | np.int64]]) -> Self:
        """Return the rows selected by a mask or by indices."""
        return type(self)(**{name: getattr(self, name)[chosen] for name in self.__slots__})

    @property
    def tokens(self) -> Array:
        """Tokens of one micro batch on one device."""
        return self.micro * self.sequence / self.cp

    @property
    def tokens_per_step(self) -> Array:
        """Tokens of one step of the whole job."""
        return self.micro * self.sequence * self.rounds * self.dp

    @property
    def layers_per_stage(self) -> Array:
        """Blocks of the fullest pipeline stage."""
        return np.ceil(self.layers / self.pp)

    @property
    def stage_params(self) -> Array:
        """Parameters per device: those of one pipeline stage, split by tensor and expert parallelism."""
        block = self.layer_params * (1.0 - self.expert_share + self.expert_share / self.ep)
        ends = self.vocabulary * self.width
        return np.asarray((block * self.layers / self.pp + ends) / self.tp)


def _degrees(facts: Facts) -> dict[str, Array]:
    tp, pp, cp, ep = (facts.number(f"{name}_degree", 1.0) for name in ("tp", "pp", "cp", "ep"))
    dp = facts.number("dp_degree", facts.number("dp_shard_degree") * facts.number("dp_replicate_degree", 1.0))
    nodes = facts.number("nnodes") * facts.number("nproc_per_node")
    world = facts.number("world_size", np.where(np.isnan(nodes), dp * tp * pp * cp, nodes))
    # The remaining ranks are data parallel, as in all frameworks; a stated data-parallel degree does not override that.
    return {"tp": tp, "pp": pp, "cp": cp, "ep": ep, "world": world, "dp": world / (tp * pp * cp)}


def _model(facts: Facts) -> dict[str, Array]:
    layers = facts.number("n_layers")
    vocabulary = facts.number("vocab_size", 0.0)
    total = facts.number("n_params")
    implied_width = np.sqrt(total / (12.0 * layers))
    width = facts.number("d_model", implied_width)
    heads = facts.number("n_heads", np.maximum(np.round(width / 128.0), 1.0))
    kv_share = np.minimum(facts.number("n_kv_heads", heads) / heads, 1.0)
    stated_d_ff = facts.number("d_ff")
    inner = np.where(np.isnan(stated_d_ff), 4.0, stated_d_ff / width)
    gated = _gated(facts, stated_d_ff, {"width": width, "layers": layers, "kv_share": kv_share, "inner": inner})
    matrices = np.where(gated, 3.0, 2.0)
    experts = facts.number("n_experts", 1.0)
    active = np.minimum(facts.number("n_active_experts", 2.0), experts)
    attention = (2.0 + 2.0 * kv_share) * width**2
    mlp = matrices * inner * width**2
    return {
        "layers": layers,
        "width": width,
        "heads": heads,
        "kv_share": kv_share,
        "inner": inner * np.where(gated, 4.0, 2.0),
        "sequence": facts.number("seq_len"),
        "vocabulary": vocabulary,
        "layer_params": attention + mlp * experts,
        "expert_share": np.where(experts > 1, mlp * experts / (attention + mlp * experts), 0.0),
        "active_params": attention + mlp * active,
        "active_experts": active,
    }


def _gated(
    facts: Facts, stated_d_ff: Array, shape: dict[str, Array]
) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    """Return a mask of gated MLPs (three matrices rather than two): those fit the number of parameters better.

    Without that number, any inner width but the classical four times the width counts as a gated MLP.
    """
    total = facts.number("n_params")
    vocabulary = facts.number("vocab_size", 0.0)
    square = shape["width"] ** 2
    misfits = []
    for matrices in (2.0, 3.0):
        block = (2.0 + 2.0 * shape["kv_share"] + matrices * shape["inner"]) * square * shape["layers"]
        # The stated number may count the embeddings not at all (0), tied (1) or untied (2).
        counted = [np.abs(np.log((block + times * vocabulary * shape["width"]) / total)) for times in (0.0, 1.0, 2.0)]
        without = misfit_of_words(block, total, shape["width"])
        misfits.append(np.where(facts.told("vocab_size"), np.min(counted, axis=0), without))
    classical = np.isnan(stated_d_ff) | (np.abs(shape["inner"] - 4.0) < 0.01)
    is_decidable = np.isfinite(total) & np.isfinite(stated_d_ff) & (facts.number("n_experts", 1.0) <= 1)
    return np.where(is_decidable, misfits[1] < misfits[0], ~classical)


def _batch(facts: Facts, dp: Array) -> dict[str, Array]:
    micro = facts.number("micro_batch_size")
    implied = facts.number("global_batch_size") / (micro * dp)
    rounds = facts.number("gradient_accumulation_steps", np.where(np.isnan(implied), 1.0, np.maximum(implied, 1.0)))
    return {"micro": micro, "rounds": np.maximum(rounds, 1.0)}


def _devices(facts: Facts) -> dict[str, Array]:
    names = tuple(facts.shares.get("device", {}))
    precision = _precision(facts, names)
    table: dict[str, Array] = {name: np.zeros(facts.n) for name in ("peak", *_FACTS)}
    weight = np.zeros(facts.n)
    for name, share in facts.shares.get("device", {}).items():
        weight = weight + share
        _add_device(table, _hardware(name), share, precision)
    _add_device(table, REFERENCE, 1.0 - weight, precision)
    stated_per_node = facts.number("nproc_per_node", table["per_node"])
    # Fast links may join a whole rack, which contains several of the scheduler's nodes.
    table["per_node"] = np.where(table["per_node"] > 8, table["per_node"], stated_per_node)
    fp8 = precision["fp8"]
    width_bytes = sum((share * (_BYTES.get(word, 2.0)) for word, share in precision.items()), np.zeros(facts.n))
    return {**table, "width_bytes": width_bytes, "low_bit": fp8}


_FACTS = ("memory", "memory_bandwidth", "link", "network", "per_node")


def _add_device(table: dict[str, Array], hardware: Hardware, share: Array, precision: dict[str, Array]) -> None:
    peak = sum((part * hardware.peak(word) for word, part in precision.items()), np.zeros(len(share)))
    table["peak"] = table["peak"] + share * peak
    for name in _FACTS:
        table[name] = table[name] + share * float(getattr(hardware, name))


@cache
def _hardware(device: str) -> Hardware:
    return find_hardware(device) or REFERENCE


def _precision(facts: Facts, devices: tuple[str, ...]) -> dict[str, Array]:
    shares: dict[str, Array] = {word: np.zeros(facts.n) for word in PRECISIONS}
    for text, share in facts.shares.get("precision", {}).items():
        word = precision_word(text)
        if word is None:  # such as nvfp4: its peak is unknown, and none of the formats stands in for it
            shares["bf16"] = np.where(share > 0.0, np.nan, shares["bf16"])
        else:
            shares[word] = shares[word] + share
    cpu = facts.share("device", [name for name in devices if _hardware(name).name == "cpu"])
    old = facts.share("device", [name for name in devices if _hardware(name).fp16])  # no bf16: trained in fp16
    unknown = 1.0 - facts.known("precision")
    shares["fp32"] = shares["fp32"] + unknown * cpu
    shares["fp16"] = shares["fp16"] + unknown * old
    shares["bf16"] = shares["bf16"] + unknown * (1.0 - cpu - old)
    return shares


def _sharding(facts: Facts, fields: dict[str, Array]) -> dict[str, Array]:
    stage = facts.number("zero_stage", 0.0)
    gathered_each_time = np.maximum(facts.share("sharding_strategy", _GATHERED_EACH_TIME), stage >= 3)
    # Two sources may disagree; no layer counts twice.
    gathered_once = np.minimum(facts.share("sharding_strategy", _GATHERED_ONCE), 1.0 - gathered_each_time)
    hybrid = facts.share("sharding_strategy", _HYBRID)
    dp = fields["dp"]
    within_node = np.clip(fields["per_node"] / (fields["tp"] * fields["cp"]), 1.0, dp)
    of_hybrid, of_others = (
        np.clip(facts.number("dp_shard_degree", ranks), 1.0, dp) for ranks in (within_node, np.asarray(dp))
    )
    # Of different layers, the mean of the part that a rank holds counts: the harmonic mean of the ranks.
    among_sharded = np.clip(hybrid / np.maximum(gathered_each_time + gathered_once, hybrid), 0.0, 1.0)
    mean = 1.0 / (among_sharded / of_hybrid + (1.0 - among_sharded) / of_others)
    return {
        "shard": np.where(among_sharded >= 1.0, of_hybrid, np.where(among_sharded > 0.0, mean, of_others)),
        "gathered_each_time": gathered_each_time,
        "gathered_once": gathered_once,
        "hybrid": hybrid,
        "states_sharded": np.maximum(gathered_each_time + gathered_once, stage >= 1),
        "gradients_sharded": np.maximum(gathered_each_time + gathered_once, stage >= 2),
    }


def _pipeline(facts: Facts, fields: dict[str, Array]) -> dict[str, Array]:
    spellings = {text: text.lower().replace("-", "_") for text in facts.shares.get("pp_schedule", {})}
    chunks = facts.number("virtual_pp_degree", 1.0)
    interleaved = facts.share("pp_schedule", [text for text, word in spellings.items() if "interleaved" in word])
    zero_bubble = facts.share(
        "pp_schedule", [text for text, word in spellings.items() if "zero" in word or "zb" in word]
    )
    dual = facts.share("pp_schedule", [text for text, word in spellings.items() if "dual" in word])
    all_forward = facts.share("pp_schedule", [text for text, word in spellings.items() if word in {"gpipe", "afab"}])
    chunks = np.maximum(chunks, 1.0 + interleaved)
    rounds, pp = fields["rounds"], fields["pp"]
    return {
        "chunks": chunks,
        # Zero Bubble (arXiv 2401.10241) fills the bubble with weight gradients; DualPipe roughly halves it.
        "bubble": (1.0 - 0.9 * zero_bubble) * (1.0 - 0.5 * dual) / chunks,
        # 1F1B holds as many micro batches as there are stages, GPipe all of them.
        "in_flight": np.where(all_forward > 0.5, rounds, np.minimum(pp * np.where(chunks > 1, 1.5, 1.0), rounds)),
    }


def _kernels(facts: Facts) -> dict[str, Array]:
    plain = ("eager", "math", "torch", "naive", "plain", "none")
    return {
        "full_recompute": facts.share("activation_checkpointing", ("full", "True", "1.0", "1", "yes", "on")),
        "selective_recompute": facts.share("activation_checkpointing", ("selective",)),
        "plain_attention": facts.share("attention_kernel", plain),
        "sequence_parallel": 1.0 - facts.share("sequence_parallel", ("False", "0.0", "0", "no", "off")),
        "compiled": facts.share("compile", ("True", "1.0", "1", "yes", "on")),
    }
