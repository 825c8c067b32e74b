"""The keys of DeepSpeed's JSON file that change how it runs and not what it computes.

Names and defaults: https://www.deepspeed.ai/docs/config-json/
"""

from __future__ import annotations

from torchx_cubicml.space.trainers.base import TrainerFlag

STAGE = "zero_optimization.stage"
STAGE_WORDS = (("NO_SHARD", "0"), ("SHARD_OPTIMIZER", "1"), ("SHARD_GRAD_OP", "2"), ("FULL_SHARD", "3"))
_SHARDS = "sharding_strategy != 'NO_SHARD'"


def zero_keys(file: str) -> dict[str, TrainerFlag]:
    """Return what stands in the file that the flag ``file`` names."""
    return {
        # Its default depends on the stage, so that it is tuned only where the file says it.
        "overlap_comm": TrainerFlag(file=file, key="zero_optimization.overlap_comm", choices=(False, True)),
        "reduce_bucket_size": TrainerFlag(
            file=file,
            key="zero_optimization.reduce_bucket_size",
            choices=(50_000_000, 200_000_000, 500_000_000),
            file_default=500_000_000,
            when=_SHARDS,
        ),
        "allgather_bucket_size": TrainerFlag(
            file=file,
            key="zero_optimization.allgather_bucket_size",
            choices=(50_000_000, 200_000_000, 500_000_000),
            file_default=500_000_000,
            when=_SHARDS,
        ),
        "offload_optimizer": TrainerFlag(
            file=file, key="zero_optimization.offload_optimizer.device", file_default="none", when=_SHARDS
        ),
        "bf16": TrainerFlag(file=file, key="bf16.enabled", file_default=False),
        "fp16": TrainerFlag(file=file, key="fp16.enabled", file_default=False),
    }
