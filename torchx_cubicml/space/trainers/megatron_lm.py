"""Megatron-LM (``pretrain_gpt.py`` and similar scripts), as its argument parser reads the command."""

from __future__ import annotations

from torchx_cubicml.space.trainers.base import Trainer, TrainerFlag, TrainerRelease

_OTHER_SPLIT = "pipeline_layout != 'none' or hybrid_pattern != 'none' or hybrid_override != 'none'"
_UNEVEN = "first_stage_layers + last_stage_layers > 0"
_LAYERS = "(n_layers + (1 if embedding_in_split else 0) + (1 if loss_in_split else 0))"
_MIDDLE_LAYERS = "(n_layers - first_stage_layers - last_stage_layers)"
_MIDDLE_STAGES = "(pp_degree - (1 if first_stage_layers > 0 else 0) - (1 if last_stage_layers > 0 else 0))"
_INTERLEAVED = (
    f"virtual_pp_degree > 1 or (layers_per_virtual_stage > 0 and {_LAYERS} > pp_degree * layers_per_virtual_stage)"
)
_GROUP = "(microbatch_group if microbatch_group > 0 else pp_degree)"
_EXPERT_TP = "(expert_tp_degree if expert_tp_degree > 0 else tp_degree)"
_KV_HEADS_OF_RANK = "(max(n_kv_heads // tp_degree, 1) if group_query_attention else n_heads // tp_degree)"

MEGATRON_LM = Trainer(
    name="megatron-lm",
    flags={
        "micro_batch_size": TrainerFlag(flag="--micro-batch-size", choices=(1, 2, 4, 8, 16, 32)),
        "global_batch_size": TrainerFlag(flag="--global-batch-size"),
        "tp_degree": TrainerFlag(flag="--tensor-model-parallel-size", choices=(1, 2, 4, 8), default=1),
        "pp_degree": TrainerFlag(flag="--pipeline-model-parallel-size", choices=(1, 2, 4, 8, 16), default=1),
        "cp_degree": TrainerFlag(flag="--context-parallel-size", choices=(1, 2, 4, 8), default=1),
        "ep_degree": TrainerFlag(flag="--expert-model-parallel-size", choices=(1, 2, 4, 8), default=1),
        # Zero stands for tp_degree, which Megatron-LM takes without the flag.
        "expert_tp_degree": TrainerFlag(
            flag="--expert-tensor-parallel-size",
            choices=(0, 1, 2, 4),
            default=0,
            words=((0, ""),),
            when="n_experts > 0",
        ),
        "activation_checkpointing": TrainerFlag(
            flag="--recompute-granularity",
            choices=("none", "selective", "full"),
            default="none",
            words=(("none", ""),),
            companions=(("full", (("--recompute-method", "uniform"), ("--recompute-num-layers", "1"))),),
        ),
        "selective_recompute": TrainerFlag(
            flag="--recompute-modules",
            choices=("core_attn", "mlp", "core_attn mlp"),
            default="core_attn",
            # Modules that some models lack, or that some number formats exclude.
            words=tuple((name, name) for name in ("layernorm", "mla_up_proj", "moe", "moe_act", "shared_experts")),
            when="activation_checkpointing == 'selective'",
            takes_list=True,
        ),
        "cp_method": TrainerFlag(
            flag="--cp-comm-type",
            choices=("p2p", "all_gather", "a2a"),
            default="p2p",
            words=(("a2a+p2p", "a2a+p2p"),),  # needs the degrees of both
            when="cp_degree > 1",
            takes_list=True,
        ),
        "tp_overlap": TrainerFlag(
            flag="--tp-comm-overlap",
            choices=(False, True),
            default=False,
            when="sequence_parallel and tp_degree > 1",
        ),
        "sequence_parallel": TrainerFlag(
            flag="--sequence-parallel", choices=(False, True), default=False, when="tp_degree > 1"
        ),
        "distributed_optimizer": TrainerFlag(flag="--use-distributed-optimizer", choices=(False, True), default=False),
        "overlap_grad_reduce": TrainerFlag(flag="--overlap-grad-reduce", choices=(False, True), default=False),
        "overlap_param_gather": TrainerFlag(
            flag="--overlap-param-gather",
            choices=(False, True),
            default=False,
            when="distributed_optimizer and overlap_grad_reduce",
        ),
        # Sizes and switches that the rules read.
        "n_layers": TrainerFlag(flag="--num-layers"),
        "n_heads": TrainerFlag(flag="--num-attention-heads"),
        "d_model": TrainerFlag(flag="--hidden-size"),
        "seq_len": TrainerFlag(flag="--seq-length"),
        "rampup_batch_size": TrainerFlag(flag="--rampup-batch-size", default="none"),
        "n_kv_heads": TrainerFlag(flag="--num-query-groups", default=1),
        "group_query_attention": TrainerFlag(flag="--group-query-attention", default=False),
        "head_dim": TrainerFlag(flag="--kv-channels", default=0),
        "d_ff": TrainerFlag(flag="--ffn-hidden-size"),
        "n_experts": TrainerFlag(flag="--num-experts", default=0),
        "n_active_experts": TrainerFlag(flag="--moe-router-topk", default=2),
        "router_pre_softmax": TrainerFlag(flag="--moe-router-pre-softmax", default=False),
        "router_score": TrainerFlag(flag="--moe-router-score-function", default="softmax"),
        "router_balancing": TrainerFlag(flag="--moe-router-load-balancing-type", default="aux_loss"),
        # A negative factor stands for no limit.
        "capacity_factor": TrainerFlag(flag="--moe-expert-capacity-factor", default=-1.0),
        "pad_to_capacity": TrainerFlag(flag="--moe-pad-expert-input-to-capacity", default=False),
        "no_bias": TrainerFlag(flag="--disable-bias-linear", default=False),
        "virtual_pp_degree": TrainerFlag(flag="--num-virtual-stages-per-pipeline-rank", default=0),
        "layers_per_virtual_stage": TrainerFlag(flag="--num-layers-per-virtual-pipeline-stage", default=0),
        "microbatch_group": TrainerFlag(flag="--microbatch-group-size-per-virtual-pipeline-stage", default=0),
        "overlap_p2p": TrainerFlag(flag="--overlap-p2p-communication", default=True),
        "first_stage_layers": TrainerFlag(flag="--decoder-first-pipeline-num-layers", default=0),
        "last_stage_layers": TrainerFlag(flag="--decoder-last-pipeline-num-layers", default=0),
        "embedding_in_split": TrainerFlag(flag="--account-for-embedding-in-pipeline-split", default=False),
        "loss_in_split": TrainerFlag(flag="--account-for-loss-in-pipeline-split", default=False),
        "pipeline_layout": TrainerFlag(flag="--pipeline-model-parallel-layout", default="none"),
        "hybrid_pattern": TrainerFlag(flag="--hybrid-layer-pattern", default="none"),
        "hybrid_override": TrainerFlag(flag="--hybrid-override-pattern", default="none"),
        "torch_fsdp2": TrainerFlag(flag="--use-torch-fsdp2", default=False),
        "optimizer_instances": TrainerFlag(flag="--num-distributed-optimizer-instances", default=1),
        "fp8": TrainerFlag(flag="--fp8-format", default="none"),
    },
    accumulation="implied",
    release=TrainerRelease(
        version="core 0.19.2",
        checks=(
            "megatron/training/arguments.py: validate_args",
            "megatron/core/transformer/transformer_config.py: TransformerConfig.__post_init__",
            "megatron/core/transformer/transformer_block.py: get_num_layers_to_build",
            "megatron/core/parallel_state.py: initialize_model_parallel",
            "megatron/core/transformer/moe/moe_layer.py: MoELayer.forward",
            "megatron/core/transformer/moe/moe_utils.py: topk_routing_with_score_function",
            "megatron/core/tensor_parallel/mappings.py: _split_along_first_dim",
            "megatron/core/pipeline_parallel/schedules.py: forward_backward_pipelining_with_interleaving",
            "Transformer Engine, transformer_engine/pytorch/utils.py: assert_dim_for_fp8_exec",
            "Transformer Engine, transformer_engine/pytorch/attention/dot_product_attention/context_parallel.py: "
            "AttnFuncWithCPAndQKVOA2A",
        ),
    ),
    rules={
        "heads_by_tp": ("tp_degree divides the attention heads", "n_heads % tp_degree == 0"),
        "kv_heads_by_tp": (
            "tp_degree divides the key-value heads or is a multiple of them",
            "not group_query_attention or n_kv_heads % tp_degree == 0 or tp_degree % n_kv_heads == 0",
        ),
        "layers_by_pp": ("pp_degree divides the layers", f"{_OTHER_SPLIT} or {_UNEVEN} or {_LAYERS} % pp_degree == 0"),
        "middle_layers_by_pp": (
            "the middle stages have equally many layers",
            f"{_OTHER_SPLIT} or not ({_UNEVEN}) or ({_MIDDLE_LAYERS} == 0 and {_MIDDLE_STAGES} == 0) "
            f"or ({_MIDDLE_LAYERS} != 0 and {_MIDDLE_STAGES} != 0 and {_MIDDLE_LAYERS} % {_MIDDLE_STAGES} == 0)",
        ),
        "layers_by_virtual_stages": (
            "each virtual stage has equally many layers",
            f"{_OTHER_SPLIT} or {_UNEVEN} or virtual_pp_degree < 1 or {_LAYERS} % (pp_degree * virtual_pp_degree) == 0",
        ),
        "layers_per_virtual_stage": (
            "each virtual stage has the layers that the command states",
            f"{_OTHER_SPLIT} or layers_per_virtual_stage < 1 "
            f"or {_LAYERS} % (pp_degree * layers_per_virtual_stage) == 0",
        ),
        "middle_layers_by_virtual_stages": (
            "each virtual stage of the middle stages has equally many layers",
            f"{_OTHER_SPLIT} or not ({_UNEVEN}) or virtual_pp_degree < 1 "
            f"or {_MIDDLE_STAGES} == 0 or {_MIDDLE_LAYERS} % ({_MIDDLE_STAGES} * virtual_pp_degree) == 0",
        ),
        "end_layers_by_virtual_stages": (
            "virtual stages divide the layers of the first and the last stage",
            f"{_OTHER_SPLIT} or virtual_pp_degree < 1 "
            "or (first_stage_layers % virtual_pp_degree == 0 and last_stage_layers % virtual_pp_degree == 0)",
        ),
        "virtual_stages_by_pp": (
            "virtual stages need several pipeline stages",
            f"not ({_INTERLEAVED}) or pp_degree > (1 if overlap_p2p else 2)",
        ),
        "microbatches_by_pp": (
            "micro batches come in groups of at least pp_degree with virtual stages",
            f"not ({_INTERLEAVED}) or gradient_accumulation_steps >= {_GROUP} >= pp_degree "
            f"and (gradient_accumulation_steps % {_GROUP} == 0 or gradient_accumulation_steps % {_GROUP} >= pp_degree)",
        ),
        "seq_by_cp": ("twice cp_degree divides the sequence", "cp_degree == 1 or seq_len % (2 * cp_degree) == 0"),
        "seq_by_tp": (
            "tp_degree * cp_degree divides the sequence with sequence parallelism",
            "not sequence_parallel or tp_degree == 1 or seq_len % (cp_degree * tp_degree) == 0",
        ),
        "experts_by_ep": (
            "ep_degree divides the experts",
            "ep_degree == 1 or (n_experts > 0 and n_experts % ep_degree == 0)",
        ),
        "ep_in_stage": (
            "expert parallelism times its tensor parallelism divides the ranks of a pipeline stage",
            f"world_size % ({_EXPERT_TP} * ep_degree * pp_degree) == 0",
        ),
        "experts_with_tp": (
            "experts with tensor parallelism need sequence parallelism",
            "n_experts < 1 or tp_degree == 1 or sequence_parallel",
        ),
        "top_k_in_experts": (
            "a token has at most all experts",
            "n_experts < 1 or 1 <= n_active_experts <= n_experts",
        ),
        "softmax_of_one_expert": (
            "one expert for each token needs a softmax before the choice",
            "n_experts < 1 or n_active_experts > 1 or router_pre_softmax or router_score != 'softmax' "
            "or router_balancing == 'sinkhorn'",
        ),
        "capacity_by_balancing": (
            "a capacity factor needs an auxiliary loss or no balancing",
            "n_experts < 1 or capacity_factor < 0 "
            "or router_balancing in ('aux_loss', 'seq_aux_loss', 'global_aux_loss', 'none')",
        ),
        "capacity_to_pad": (
            "padding to the capacity needs a capacity factor",
            "n_experts < 1 or not pad_to_capacity or capacity_factor >= 0",
        ),
        "expert_bias_by_tp": (
            "experts with biases need an expert tensor parallelism of 1",
            f"n_experts < 1 or no_bias or {_EXPERT_TP} == 1",
        ),
        "heads_by_cp": (
            "with a2a, cp_degree divides the attention heads of a rank",
            "cp_degree == 1 or cp_method != 'a2a' "
            f"or (n_heads // tp_degree % cp_degree == 0 and {_KV_HEADS_OF_RANK} % cp_degree == 0)",
        ),
        "tp_overlap": (
            "overlapped tensor-parallel communication needs sequence parallelism",
            "not tp_overlap or (sequence_parallel and tp_degree > 1)",
        ),
        "torch_fsdp2": (
            "torch FSDP2 excludes pipeline and expert parallelism and the distributed optimizer",
            "not torch_fsdp2 or (pp_degree == 1 and ep_degree == 1 and not distributed_optimizer)",
        ),
        "optimizer_instances": (
            "distributed-optimizer instances divide the data-parallel ranks",
            "(dp_degree * cp_degree) % optimizer_instances == 0",
        ),
        "expert_optimizer_instances": (
            "distributed-optimizer instances divide the data-parallel ranks of the experts",
            "optimizer_instances == 1 "
            f"or world_size % ({_EXPERT_TP} * ep_degree * pp_degree * optimizer_instances) == 0",
        ),
        # Transformer Engine: rows of an operand in eights, columns in sixteens.
        "fp8_rows": (
            "8 divides the tokens of a rank in FP8",
            "fp8 == 'none' or (seq_len * micro_batch_size) % "
            "(8 * cp_degree * (tp_degree if sequence_parallel else 1)) == 0",
        ),
        "fp8_attention": (
            "16 divides the attention width of a rank in FP8",
            "fp8 == 'none' or (n_heads * head_dim if head_dim > 0 else d_model) % (16 * tp_degree) == 0",
        ),
        "fp8_feed_forward": (
            "16 divides the feed-forward width of a rank in FP8",
            "fp8 == 'none' or n_experts > 0 or d_ff % (16 * tp_degree) == 0",
        ),
    },
    # A growing batch must divide at every size on its way.
    constraints=("rampup_batch_size == 'none' and micro_batch_size * dp_degree >= 1",),
    other_defaults=("--yaml-cfg", "--use-checkpoint-args", "--use-mp-args-from-checkpoint-args"),
    programs=(r"(?:.*/)?pretrain_(?:gpt|mamba|bert|t5|vlm)\.py",),
    marks=(frozenset({"--micro-batch-size", "--global-batch-size"}),),
)
