"""DeepSpeed: its flags, and the keys of its JSON config."""

from __future__ import annotations

from torchx_cubicml.space.trainers.base import Trainer, TrainerFlag, TrainerRelease

STAGE = "zero_optimization.stage"
STAGE_WORDS = (("NO_SHARD", "0"), ("SHARD_OPTIMIZER", "1"), ("SHARD_GRAD_OP", "2"), ("FULL_SHARD", "3"))
_SHARDS = "sharding_strategy != 'NO_SHARD'"


def zero_keys(file: str) -> dict[str, TrainerFlag]:
    """Return the ZeRO and precision keys of the file that the flag ``file`` names."""
    return {
        # Its default depends on the stage, so it is tuned only if the file states it.
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


_FILE = "--deepspeed_config"

DEEPSPEED = Trainer(
    name="deepspeed",
    flags={
        "micro_batch_size": TrainerFlag(
            flag="--per_device_train_batch_size",
            file=_FILE,
            key="train_micro_batch_size_per_gpu",
            choices=(1, 2, 4, 8, 16, 32),
            default=16,
        ),
        # If it is absent, DeepSpeed computes it from the other two batch sizes, if the file states both.
        "gradient_accumulation_steps": TrainerFlag(
            flag="--gradient_accumulation_steps",
            file=_FILE,
            key="gradient_accumulation_steps",
            default=1,
            file_default=1,
            implied=True,
        ),
        "global_batch_size": TrainerFlag(file=_FILE, key="train_batch_size"),
        "sharding_strategy": TrainerFlag(
            flag="--zero_stage",
            file=_FILE,
            key=STAGE,
            choices=("NO_SHARD", "SHARD_GRAD_OP", "FULL_SHARD"),
            default="NO_SHARD",
            file_default="NO_SHARD",
            words=STAGE_WORDS,
            file_words=STAGE_WORDS,
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
        "ep_degree": TrainerFlag(
            file=_FILE,
            key="expert_parallel.autoep_size",
            choices=(1, 2, 4, 8),
            file_default=1,
            when="auto_ep",
        ),
        # Sizes and switches that the rules read; the numbers of experts are in the model's own config.
        "auto_ep": TrainerFlag(file=_FILE, key="expert_parallel.enabled", file_default=False),
        "expert_tp_degree": TrainerFlag(
            file=_FILE, key="expert_parallel.expert_tensor_parallel_size", file_default=1, when="auto_ep"
        ),
        "seq_len": TrainerFlag(flag="--max_seq_len", default=512),
        **zero_keys(_FILE),
    },
    accumulation="per rank",
    release=TrainerRelease(
        version="0.19.8",
        checks=(
            "deepspeed/runtime/config.py: DeepSpeedConfig",
            "deepspeed/module_inject/auto_ep_folding.py: build_folding_spec and validate_folding_global",
            "deepspeed/module_inject/auto_ep_config.py: validate_autoep_post_detection",
        ),
    ),
    rules={
        "one_half_precision": ("not both bf16 and fp16", "not (bf16 and fp16)"),
        "ep_in_world": (
            "expert parallelism times its tensor parallelism divides the world size",
            "not auto_ep or world_size % (ep_degree * expert_tp_degree) == 0",
        ),
        "experts_by_ep": (
            "ep_degree divides the experts",
            "not auto_ep or n_experts < 1 or n_experts % ep_degree == 0",
        ),
        "whole_experts": ("each expert is on one rank", "not auto_ep or expert_tp_degree == 1"),
    },
    exempt=("heads_by_tp",),  # automatic tensor parallelism divides heads unevenly
    other_defaults=(_FILE,),
    marks=(
        frozenset({"--per_device_train_batch_size", "--zero_stage"}),
        frozenset({"--zero_stage", "--deepspeed"}),
        frozenset({_FILE}),
    ),
)
