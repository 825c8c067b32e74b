"""torchtitan, as ``torchtitan.train`` reads the command.

The config that ``--module`` and ``--config`` choose can set any of these, so no default is known. A value must be in
the command, or in the TOML file that ``--job.config_file`` names, whose keys have the names of the flags.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchx_cubicml.space.trainers.base import Trainer, TrainerFlag

if TYPE_CHECKING:
    from torchx_cubicml.records.trial import Scalar

_FILE = "--job.config_file"


def _flag(name: str, *, choices: tuple[Scalar, ...] = (), when: str = "", is_switch: bool = False) -> TrainerFlag:
    return TrainerFlag(
        flag=f"--{name}",
        choices=choices,
        is_switch=is_switch,
        when=when,
        file=_FILE,
        key=name,
        flag_overrides_file=True,
    )


TORCHTITAN = Trainer(
    name="torchtitan",
    flags={
        "micro_batch_size": _flag("training.local_batch_size", choices=(1, 2, 4, 8, 16, 32)),
        "global_batch_size": _flag("training.global_batch_size"),
        "seq_len": _flag("training.seq_len"),
        "tp_degree": _flag("parallelism.tensor_parallel_degree", choices=(1, 2, 4, 8)),
        "pp_degree": _flag("parallelism.pipeline_parallel_degree", choices=(1, 2, 4, 8)),
        "cp_degree": _flag("parallelism.context_parallel_degree", choices=(1, 2, 4, 8)),
        "ep_degree": _flag("parallelism.expert_parallel_degree"),
        "dp_replicate_degree": _flag("parallelism.data_parallel_replicate_degree", choices=(1, 2, 4, 8, 16)),
        "dp_shard_degree": _flag("parallelism.data_parallel_shard_degree"),
        "reshard_after_forward": _flag(
            "parallelism.fsdp_reshard_after_forward", choices=("default", "always", "never")
        ),
        "async_tp": _flag("parallelism.enable_async_tensor_parallel", when="tp_degree > 1", is_switch=True),
        "activation_checkpointing": _flag("activation_checkpoint.mode", choices=("none", "selective", "full")),
        "compile": _flag("compile.enable", is_switch=True),
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
