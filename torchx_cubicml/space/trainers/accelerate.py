"""Accelerate, where ``accelerate launch --config_file FILE`` starts the script.

Another value than the file's is an option of the launcher, which takes precedence. The script's own batch and
accumulation are not in accelerate's config.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchx_cubicml.space.trainers.base import Trainer, TrainerFlag, TrainerRelease

if TYPE_CHECKING:
    from torchx_cubicml.records.values import Scalar

_SWITCH: tuple[tuple[Scalar, str], ...] = ((False, "false"), (True, "true"))


def _option(
    name: str,
    choices: tuple[Scalar, ...],
    *,
    section: str = "fsdp_config",
    words: tuple[tuple[Scalar, str], ...] = (),
    file_words: tuple[tuple[Scalar, str], ...] = (),
) -> TrainerFlag:
    return TrainerFlag(
        flag=f"--{name}",
        choices=choices,
        words=words,
        file="--config_file",
        key=f"{section}.{name}",
        file_words=file_words,
        flag_overrides_file=True,
        of_launcher=True,
    )


ACCELERATE = Trainer(
    name="accelerate",
    flags={
        "sharding_strategy": _option(
            "fsdp_sharding_strategy",
            ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"),
            file_words=(
                ("FULL_SHARD", "1"),
                ("SHARD_GRAD_OP", "2"),
                ("NO_SHARD", "3"),
                ("HYBRID_SHARD", "4"),
                ("_HYBRID_SHARD_ZERO2", "5"),
            ),
        ),
        "reshard_after_forward": _option("fsdp_reshard_after_forward", (False, True), words=_SWITCH),
        "backward_prefetch": _option("fsdp_backward_prefetch", ("BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH")),
        "forward_prefetch": _option("fsdp_forward_prefetch", (False, True), words=_SWITCH),
        "activation_checkpointing": _option(
            "fsdp_activation_checkpointing",
            ("none", "full"),
            words=(("none", "false"), ("full", "true")),
            file_words=(("none", "false"), ("full", "true")),
        ),
        "zero_stage": _option("zero_stage", (1, 2, 3), section="deepspeed_config"),
    },
    accumulation="per rank",
    release=TrainerRelease(
        version="1.15.0", checks=("accelerate/utils/dataclasses.py: FullyShardedDataParallelPlugin.__post_init__",)
    ),
    exempt=("heads_by_tp",),  # its DeepSpeed file may turn on automatic tensor parallelism
)
