"""Megatron-LM (``pretrain_gpt.py`` and similar scripts), as its argument parser reads the command."""

from __future__ import annotations

from torchx_cubicml.space.trainers.base import Trainer, TrainerFlag

MEGATRON_LM = Trainer(
    name="megatron-lm",
    flags={
        "micro_batch_size": TrainerFlag(flag="--micro-batch-size", choices=(1, 2, 4, 8, 16, 32)),
        "global_batch_size": TrainerFlag(flag="--global-batch-size"),
        "tp_degree": TrainerFlag(flag="--tensor-model-parallel-size", choices=(1, 2, 4, 8), default=1),
        "pp_degree": TrainerFlag(flag="--pipeline-model-parallel-size", choices=(1, 2, 4, 8, 16), default=1),
        "cp_degree": TrainerFlag(flag="--context-parallel-size", choices=(1, 2, 4, 8), default=1),
        "ep_degree": TrainerFlag(flag="--expert-model-parallel-size", default=1),
        "activation_checkpointing": TrainerFlag(
            flag="--recompute-granularity",
            choices=("none", "selective", "full"),
            default="none",
            words=(("none", ""),),
            companions=(("full", (("--recompute-method", "uniform"), ("--recompute-num-layers", "1"))),),
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
        "n_layers": TrainerFlag(flag="--num-layers"),
        "n_heads": TrainerFlag(flag="--num-attention-heads"),
        "d_model": TrainerFlag(flag="--hidden-size"),
        "seq_len": TrainerFlag(flag="--seq-length"),
        "rampup_batch_size": TrainerFlag(flag="--rampup-batch-size", default="none"),
    },
    accumulation="implied",
    constraints=(
        "n_heads % tp_degree == 0",
        "n_layers % pp_degree == 0",
        # A growing batch must divide at every size on its way.
        "rampup_batch_size == 'none' and micro_batch_size * dp_degree >= 1",
    ),
    other_defaults=("--yaml-cfg", "--use-checkpoint-args", "--use-mp-args-from-checkpoint-args"),
    programs=(r"(?:.*/)?pretrain_(?:gpt|mamba|bert|t5|vlm)\.py",),
    marks=(frozenset({"--micro-batch-size", "--global-batch-size"}),),
)
