"""Layout of transformer trainings over devices: the inputs of the roofline formulas, derived from facts.

The depth, the width (or the number of parameters), the sequence length, the micro batch and the number of devices are
required. All else has a default: no parallelism, four times the width inside the MLP, bf16, one head per 128. For an
unknown kernel of attention, way of sharding or vocabulary no default would do: see ``unknown_facts``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, TypeAlias

import numpy as np

from torchx_cubicml.predictors.roofline.device_peaks import device_fields
from torchx_cubicml.predictors.roofline.model_shape import model_fields
from torchx_cubicml.predictors.roofline.parallelism import batch_fields, degree_fields, sharding_fields
from torchx_cubicml.predictors.roofline.pipeline_schedule import pipeline_fields
from torchx_cubicml.predictors.roofline.stated_words import kernel_fields, offload_fields, recompute_fields
from torchx_cubicml.predictors.roofline.unknown_facts import unknown_fields

if TYPE_CHECKING:
    from torchx_cubicml.predictors.roofline.facts import Facts

Array: TypeAlias = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingLayout:
    """Models and parallel layouts of ``n`` trainings; every field is float64 ``[n]``.

    Args:
        layers: transformer blocks.
        width: of the residual stream.
        heads: of attention.
        kv_share: width of keys (or values) relative to that of queries.
        queries: width of all heads' queries relative to the residual stream.
        matrices: of an MLP: 2, or 3 with a gate.
        inner: width of the MLP relative to the residual stream, counting the tensors that it keeps for backward.
        active_inner: channels inside the MLP that one token passes, the mean over the blocks.
        sequence: tokens of one sample.
        vocabulary: 0.0 where unknown.
        unknown_words: 1.0 where the vocabulary is unknown and cannot be solved for.
        embedded_words: vocabulary times its copies among the parameters, where it is solved for; else 0.0.
        end_copies: matrices of vocabulary and width on one device: 2.0 where input and output have their own.
        layer_params: of one block, the mean over the blocks.
        expert_share: share of them in experts, which are split over ``ep``.
        active_params: of one block, used by one token.
        routed_params: of those, in experts.
        experts: of one layer.
        active_experts: experts that one token is sent to.
        expert_layers: share of the blocks that have experts.
        expert_width: the narrower side of an expert's matrices.
        capacity: most tokens of an expert over the mean; 0.0 where none is known.
        micro: samples per micro batch and data-parallel rank.
        rounds: micro batches per step and rank.
        world: devices.
        per_node: devices joined by fast links.
        dp: data-parallel ranks.
        shard: ranks over which parameters or optimizer states are sharded, <= ``dp`` times ``cp``; the harmonic mean
            over layers.
        tp: tensor-parallel degree.
        pp: pipeline stages.
        cp: context-parallel degree.
        ep: expert-parallel degree.
        etp: tensor-parallel degree of the experts.
        gathers_keys: 1.0 where context parallelism gathers keys and values before attention.
        exchanges_heads: 1.0 where it exchanges heads for positions around attention.
        chunks: of layers per stage (interleaved schedule).
        bubble: share of the plain bubble that remains with the schedule.
        in_flight: micro batches whose activations the first stage holds.
        param_copies: of each stage on a device.
        batches_overlap: 1.0 where one micro batch is computed while another is exchanged among experts.
        tensor_overlap: 1.0 where tensor parallelism communicates under its own products.
        data_overlap: 0.0 where the trainer is told not to reduce gradients under backward.
        gathered_each_time: share of layers whose parameters are gathered for forward and for backward.
        gathered_once: share of layers whose parameters are gathered once per micro batch.
        hybrid: share of layers sharded inside a node and replicated across.
        states_sharded: share of layers whose optimizer states are sharded, with or without anything else.
        gradients_sharded: share of layers whose gradients are.
        defers_reduction: 1.0 where sharded gradients are reduced once a step, not once a micro batch.
        full_recompute: share of layers whose activations are recomputed.
        selective_recompute: share of layers with attention alone recomputed.
        operation_recompute: share of layers with every second matrix product recomputed.
        offloaded_params: share of parameters, gradients and optimizer states that are in the host's memory.
        offloaded_optimizer: share of the optimizer's states and work that is on the host.
        offloaded_activations: 1.0 where activations wait in the host's memory.
        plain_attention: 1.0 where the scores of attention go through memory; 0.0 where the kernel is unknown.
        unknown_attention: 1.0 where the kernel of attention is unknown.
        unknown_sharding: 1.0 where it is unknown what is sharded; then the four shares above are 0.0.
        sequence_parallel: 1.0 where tensor parallelism splits all activations.
        compiled: 1.0 where kernels are fused by a compiler.
        width_bytes: bytes of a weight, an activation or a gradient in transfer.
        low_bit: 1.0 for fp8.
        peak: FLOP/s of one device in the precision of the training.
        matmul_share: share of the bf16 peak that the largest matrix products reach on the device.
        attention_peak: FLOP/s of one device in the precision of attention.
        memory: bytes of one device.
        memory_bandwidth: bytes per second.
        link: bytes per second to a device of the node.
        network: bytes per second to a device of another node.
        host_link: bytes per second to the host's memory.
    """

    layers: Array
    width: Array
    heads: Array
    kv_share: Array
    queries: Array
    matrices: Array
    inner: Array
    active_inner: Array
    sequence: Array
    vocabulary: Array
    unknown_words: Array
    embedded_words: Array
    end_copies: Array
    layer_params: Array
    expert_share: Array
    active_params: Array
    routed_params: Array
    experts: Array
    active_experts: Array
    expert_layers: Array
    expert_width: Array
    capacity: Array
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
    etp: Array
    gathers_keys: Array
    exchanges_heads: Array
    chunks: Array
    bubble: Array
    in_flight: Array
    param_copies: Array
    batches_overlap: Array
    tensor_overlap: Array
    data_overlap: Array
    gathered_each_time: Array
    gathered_once: Array
    hybrid: Array
    states_sharded: Array
    gradients_sharded: Array
    defers_reduction: Array
    full_recompute: Array
    selective_recompute: Array
    operation_recompute: Array
    offloaded_params: Array
    offloaded_optimizer: Array
    offloaded_activations: Array
    plain_attention: Array
    unknown_attention: Array
    unknown_sharding: Array
    sequence_parallel: Array
    compiled: Array
    width_bytes: Array
    low_bit: Array
    peak: Array
    matmul_share: Array
    attention_peak: Array
    memory: Array
    memory_bandwidth: Array
    link: Array
    network: Array
    host_link: Array

    @classmethod
    def of(cls, facts: Facts) -> Self:
        """Return the layout of ``facts``; where ``covered`` is false, its numbers are meaningless and may be NaN."""
        with np.errstate(invalid="ignore", divide="ignore"):
            fields = degree_fields(facts) | model_fields(facts) | device_fields(facts)
            fields |= batch_fields(facts, fields["dp"])
            fields |= sharding_fields(facts, fields)
            fields |= recompute_fields(facts) | offload_fields(facts) | kernel_fields(facts)
            fields |= pipeline_fields(facts, fields, fields["full_recompute"]) | unknown_fields(facts, fields)
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
        block = self.layer_params * (1.0 - self.expert_share)
        ends = self.vocabulary * self.width * self.end_copies
        dense = (block * self.layers / self.pp + ends) / self.tp * self.param_copies
        return np.asarray(dense + self.stage_experts)

    @property
    def stage_experts(self) -> Array:
        """Of those, the parameters of experts."""
        held = self.layer_params * self.expert_share / (self.ep * self.etp)
        return np.asarray(held * self.layers / self.pp * self.param_copies)
