"""Accelerate, where ``python -m accelerate.commands.launch --config_file FILE`` starts the script.

The script's own batch and accumulation are not in accelerate's config.
"""

from __future__ import annotations

from torchx_cubicml.space.trainers.base import Trainer, TrainerFlag, TrainerRelease

_FILE = "--config_file"

ACCELERATE = Trainer(
    name="accelerate",
    flags={
        "sharding_strategy": TrainerFlag(
            file=_FILE,
            key="fsdp_config.fsdp_sharding_strategy",
            choices=("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"),
            file_words=(
                ("FULL_SHARD", "1"),
                ("SHARD_GRAD_OP", "2"),
                ("NO_SHARD", "3"),
                ("HYBRID_SHARD", "4"),
                ("_HYBRID_SHARD_ZERO2", "5"),
            ),
        ),
        "reshard_after_forward": TrainerFlag(
            file=_FILE, key="fsdp_config.fsdp_reshard_after_forward", choices=(False, True)
        ),
        "backward_prefetch": TrainerFlag(
            file=_FILE,
            key="fsdp_config.fsdp_backward_prefetch",
            choices=("BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH"),
        ),
        "forward_prefetch": TrainerFlag(file=_FILE, key="fsdp_config.fsdp_forward_prefetch", choices=(False, True)),
        "activation_checkpointing": TrainerFlag(
            file=_FILE,
            key="fsdp_config.fsdp_activation_checkpointing",
            choices=("none", "full"),
            file_words=(("none", "false"), ("full", "true")),
        ),
        "zero_stage": TrainerFlag(file=_FILE, key="deepspeed_config.zero_stage", choices=(1, 2, 3)),
    },
    accumulation="per rank",
    release=TrainerRelease(
        version="1.15.0", checks=("accelerate/utils/dataclasses.py: FullyShardedDataParallelPlugin.__post_init__",)
    ),
    exempt=("heads_by_tp",),  # its DeepSpeed file may turn on automatic tensor parallelism
    programs=(r"accelerate\.commands\.launch",),
)
