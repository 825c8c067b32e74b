"""torchtitan, as ``torchtitan.train`` reads the command.

The config that ``--module`` and ``--config`` (or ``--job.config_file``) choose sets any of these, so that no default is
known: what is to be read must stand in the command.
"""

from __future__ import annotations

from torchx_cubicml.trainers.table import Trainer, TrainerFlag

TORCHTITAN = Trainer(
    name="torchtitan",
    flags={
        "micro_batch_size": TrainerFlag(flag="--training.local_batch_size", choices=(1, 2, 4, 8, 16, 32)),
        "global_batch_size": TrainerFlag(flag="--training.global_batch_size"),
        "seq_len": TrainerFlag(flag="--training.seq_len"),
        "tp_degree": TrainerFlag(flag="--parallelism.tensor_parallel_degree", choices=(1, 2, 4, 8)),
        "pp_degree": TrainerFlag(flag="--parallelism.pipeline_parallel_degree", choices=(1, 2, 4, 8)),
        "cp_degree": TrainerFlag(flag="--parallelism.context_parallel_degree", choices=(1, 2, 4, 8)),
        "ep_degree": TrainerFlag(flag="--parallelism.expert_parallel_degree"),
        "dp_replicate_degree": TrainerFlag(
            flag="--parallelism.data_parallel_replicate_degree", choices=(1, 2, 4, 8, 16)
        ),
        "dp_shard_degree": TrainerFlag(flag="--parallelism.data_parallel_shard_degree"),
        "reshard_after_forward": TrainerFlag(
            flag="--parallelism.fsdp_reshard_after_forward", choices=("default", "always", "never")
        ),
        "async_tp": TrainerFlag(flag="--parallelism.enable_async_tensor_parallel", when="tp_degree > 1"),
        "activation_checkpointing": TrainerFlag(
            flag="--activation_checkpoint.mode", choices=("none", "selective", "full")
        ),
        "compile": TrainerFlag(flag="--compile.enable"),
    },
    accumulation="implied",
    constraints=(
        "dp_degree % dp_replicate_degree == 0",
        "dp_shard_degree == -1 or dp_shard_degree * dp_replicate_degree == dp_degree",
    ),
    other_defaults=("*",),
    both_dashes=True,
    programs=(r"torchtitan\.train", r"(?:.*/)?torchtitan/train\.py"),
    marks=(
        frozenset({"--training.local_batch_size"}),
        frozenset({"--parallelism.tensor_parallel_degree"}),
        frozenset({"--activation_checkpoint.mode"}),
    ),
)
