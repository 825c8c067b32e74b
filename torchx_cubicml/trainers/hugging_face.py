"""The Trainer of Hugging Face transformers, as ``HfArgumentParser`` reads ``TrainingArguments``."""

from __future__ import annotations

from torchx_cubicml.trainers.table import Trainer, TrainerFlag

HUGGING_FACE = Trainer(
    name="hf",
    flags={
        "micro_batch_size": TrainerFlag(
            flag="--per_device_train_batch_size", choices=(1, 2, 4, 8, 16, 32, 64), default=8
        ),
        "gradient_accumulation_steps": TrainerFlag(flag="--gradient_accumulation_steps", default=1),
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
        ),
        "compile": TrainerFlag(flag="--torch_compile", default=False),
        "data_workers": TrainerFlag(flag="--dataloader_num_workers", choices=(0, 1, 2, 4, 8), default=0),
        "group_by_length": TrainerFlag(flag="--group_by_length", default=False),
    },
    accumulation="per rank",
    other_defaults=("--config", "*.json", "*.yaml", "*.yml"),
    both_dashes=True,
    marks=(frozenset({"--per_device_train_batch_size", "--output_dir"}),),
    outputs=("--output_dir",),
)
