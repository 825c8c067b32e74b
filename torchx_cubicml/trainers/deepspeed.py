"""DeepSpeed, where a script takes these as flags, as DeepSpeed-Chat's do."""

from __future__ import annotations

from torchx_cubicml.trainers.table import Trainer, TrainerFlag

DEEPSPEED = Trainer(
    name="deepspeed",
    flags={
        "micro_batch_size": TrainerFlag(flag="--per_device_train_batch_size", choices=(1, 2, 4, 8, 16, 32), default=16),
        "gradient_accumulation_steps": TrainerFlag(flag="--gradient_accumulation_steps", default=1),
        "sharding_strategy": TrainerFlag(
            flag="--zero_stage",
            choices=("NO_SHARD", "SHARD_GRAD_OP", "FULL_SHARD"),
            default="NO_SHARD",
            words=(("NO_SHARD", "0"), ("SHARD_OPTIMIZER", "1"), ("SHARD_GRAD_OP", "2"), ("FULL_SHARD", "3")),
        ),
        "activation_checkpointing": TrainerFlag(
            flag="--gradient_checkpointing",
            choices=("none", "full"),
            default="none",
            words=(("none", ""),),
            bare="full",
        ),
        "offload": TrainerFlag(
            flag="--offload", choices=(False, True), default=False, when="sharding_strategy != 'NO_SHARD'"
        ),
        "seq_len": TrainerFlag(flag="--max_seq_len", default=512),
    },
    accumulation="per rank",
    other_defaults=("--deepspeed_config",),
    marks=(frozenset({"--per_device_train_batch_size", "--zero_stage"}),),
)
