"""Trainer of Hugging Face transformers, as ``HfArgumentParser`` reads ``TrainingArguments``, and their two files.

Its DeepSpeed file may hold ``auto`` for the value of a flag; any other value there must be the flag's.
"""

from __future__ import annotations

from torchx_cubicml.space.trainers.base import Trainer, TrainerFlag, TrainerRelease
from torchx_cubicml.space.trainers.deepspeed import STAGE, STAGE_WORDS, zero_keys

_DEEPSPEED = "--deepspeed"
_FSDP = "--fsdp_config"

HUGGING_FACE = Trainer(
    name="hf",
    flags={
        "micro_batch_size": TrainerFlag(
            flag="--per_device_train_batch_size",
            choices=(1, 2, 4, 8, 16, 32, 64),
            default=8,
            file=_DEEPSPEED,
            key="train_micro_batch_size_per_gpu",
            file_must_be_auto=True,
        ),
        "gradient_accumulation_steps": TrainerFlag(
            flag="--gradient_accumulation_steps",
            default=1,
            file=_DEEPSPEED,
            key="gradient_accumulation_steps",
            file_must_be_auto=True,
        ),
        "activation_checkpointing": TrainerFlag(
            flag="--gradient_checkpointing",
            choices=("none", "full"),
            default="none",
            words=(("none", "False"), ("full", "True")),
            bare="full",
        ),
        "sharding_strategy": TrainerFlag(
            flag="--fsdp",
            words=(
                ("FULL_SHARD", "full_shard auto_wrap"),
                ("SHARD_GRAD_OP", "shard_grad_op auto_wrap"),
                ("HYBRID_SHARD", "hybrid_shard auto_wrap"),
                ("NO_SHARD", "no_shard auto_wrap"),
            ),
            file=_DEEPSPEED,
            key=STAGE,
            file_default="NO_SHARD",
            file_words=STAGE_WORDS,
        ),
        "compile": TrainerFlag(flag="--torch_compile", default=False),
        "data_workers": TrainerFlag(flag="--dataloader_num_workers", choices=(0, 1, 2, 4, 8), default=0),
        "group_by_length": TrainerFlag(flag="--group_by_length", default=False),
        "forward_prefetch": TrainerFlag(file=_FSDP, key="forward_prefetch", choices=(False, True), file_default=False),
        "backward_prefetch": TrainerFlag(
            file=_FSDP, key="backward_prefetch", choices=("backward_pre", "backward_post")
        ),
        "reshard_after_forward": TrainerFlag(file=_FSDP, key="reshard_after_forward", choices=(False, True)),
        **zero_keys(_DEEPSPEED),
    },
    accumulation="per rank",
    release=TrainerRelease(
        version="5.24.0",
        checks=(
            "transformers/training_args.py: TrainingArguments.__post_init__",
            "DeepSpeed 0.19.8, deepspeed/runtime/config.py: DeepSpeedConfig",
        ),
    ),
    rules={"one_half_precision": ("not both bf16 and fp16", "not (bf16 and fp16)")},
    exempt=("heads_by_tp",),  # its DeepSpeed file may turn on automatic tensor parallelism
    other_defaults=("--config", "*.json", "*.yaml", "*.yml"),
    both_dashes=True,
    marks=(frozenset({"--per_device_train_batch_size", "--output_dir"}), frozenset({"--do_train", "--output_dir"})),
    outputs=("--output_dir",),
)
