"""torchtitan, as ``torchtitan.train`` reads the command.

The config that ``--module`` and ``--config`` choose can set any of these, so no default is known. A value must be in
the command, or in the TOML file that ``--job.config_file`` names, whose keys have the names of the flags.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchx_cubicml.space.trainers.base import Trainer, TrainerFlag, TrainerRelease

if TYPE_CHECKING:
    from torchx_cubicml.records.values import Scalar

_FILE = "--job.config_file"


def _flag(
    name: str,
    *,
    choices: tuple[Scalar, ...] = (),
    when: str = "",
    is_switch: bool = False,
    words: tuple[tuple[Scalar, str], ...] = (),
    aliases: tuple[str, ...] = (),
) -> TrainerFlag:
    return TrainerFlag(
        flag=f"--{name}",
        choices=choices,
        is_switch=is_switch,
        when=when,
        file=_FILE,
        key=name,
        words=words,
        file_words=words,
        aliases=aliases,
        flag_overrides_file=True,
    )


_STAGES = "ceil((n_layers + first_stage_less_layers + last_stage_less_layers) / layers_per_stage)"

TORCHTITAN = Trainer(
    name="torchtitan",
    flags={
        "micro_batch_size": _flag("training.local_batch_size", choices=(1, 2, 4, 8, 16, 32)),
        "global_batch_size": _flag("training.global_batch_size"),
        "seq_len": _flag("training.seq_len"),
        "tp_degree": _flag("parallelism.tensor_parallel_degree", choices=(1, 2, 4, 8)),
        "pp_degree": _flag("parallelism.pipeline_parallel_degree", choices=(1, 2, 4, 8)),
        "cp_degree": _flag("parallelism.context_parallel_degree", choices=(1, 2, 4, 8)),
        "ep_degree": _flag("parallelism.expert_parallel_degree", choices=(1, 2, 4, 8)),
        "dp_replicate_degree": _flag("parallelism.data_parallel_replicate_degree", choices=(1, 2, 4, 8, 16)),
        "dp_shard_degree": _flag("parallelism.data_parallel_shard_degree"),
        "reshard_after_forward": _flag(
            "parallelism.fsdp_reshard_after_forward", choices=("default", "always", "never")
        ),
        # Release 0.3 has it among the options of compilation.
        "tp_overlap": _flag(
            "parallelism.enable_async_tensor_parallel",
            choices=(False, True),
            when="tp_degree > 1",
            aliases=("--compile.enable_async_tensor_parallel",),
        ),
        # Releases before 0.3 have the next three; 0.3 chooses recomputation by a word without a flag.
        "cp_method": _flag(
            "parallelism.context_parallel_rotate_method",
            choices=("all_gather", "p2p"),
            when="cp_degree > 1",
            words=(("all_gather", "allgather"), ("p2p", "alltoall")),  # that collective passes keys on in a ring
        ),
        "activation_checkpointing": _flag("activation_checkpoint.mode", choices=("none", "selective", "full")),
        "selective_recompute": _flag(
            "activation_checkpoint.selective_ac_option",
            choices=("op", "2", "3", "4"),  # per operation, or every n-th layer
            when="activation_checkpointing == 'selective'",
        ),
        "compile": _flag("compile.enable", is_switch=True),
        # Sizes and switches that the rules read; the model's own sizes are not in the command.
        "sequence_parallel": _flag("parallelism.enable_sequence_parallel", is_switch=True),
        "pipeline_schedule": _flag("parallelism.pipeline_parallel_schedule"),
        "pipeline_microbatch_size": _flag("parallelism.pipeline_parallel_microbatch_size"),
        "layers_per_stage": _flag("parallelism.pipeline_parallel_layers_per_stage"),
        "first_stage_less_layers": _flag("parallelism.pipeline_parallel_first_stage_less_layers"),
        "last_stage_less_layers": _flag("parallelism.pipeline_parallel_last_stage_less_layers"),
    },
    accumulation="implied",
    release=TrainerRelease(
        version="0.3.0",
        checks=(
            "torchtitan/distributed/parallel_dims.py: ParallelDims",
            "torchtitan/models/common/token_dispatcher.py: AllToAllTokenDispatcher.dispatch",
            "torchtitan/models/common/decoder.py: Decoder.Config.update_from_config",
            "torchtitan/trainer.py: Trainer.Config.__post_init__ and Trainer.__init__",
            "torchtitan/distributed/pipeline_parallel.py: _get_pipeline_metadata",
            "torchtitan/config/configs.py: CompileConfig.__post_init__",
        ),
    ),
    rules={
        "heads_by_tp": ("tp_degree divides the attention heads", "n_heads % tp_degree == 0"),
        # It does not replicate key-value heads.
        "kv_heads_by_tp": ("tp_degree divides the key-value heads", "n_kv_heads % tp_degree == 0"),
        "dp_shard_in_world": (
            "dp_shard_degree * dp_replicate_degree is dp_degree",
            "dp_shard_degree == -1 or dp_shard_degree * dp_replicate_degree == dp_degree",
        ),
        "seq_by_cp": ("twice cp_degree divides the sequence", "cp_degree == 1 or seq_len % (2 * cp_degree) == 0"),
        "seq_by_tp": (
            "tp_degree, times twice cp_degree, divides the sequence with sequence parallelism",
            "not sequence_parallel or seq_len % (tp_degree * (2 * cp_degree if cp_degree > 1 else 1)) == 0",
        ),
        # The number of experts is in the model's own config; it is known once a launch was observed.
        "experts_by_ep": ("ep_degree divides the experts", "n_experts < 1 or n_experts % ep_degree == 0"),
        "ep_in_stage": (
            "ep_degree divides the ranks that shard a pipeline stage",
            "(dp_degree // dp_replicate_degree * cp_degree * tp_degree) % ep_degree == 0",
        ),
        "pipeline_microbatch": (
            "the pipeline's micro batch divides the local batch",
            "pp_degree == 1 or micro_batch_size % pipeline_microbatch_size == 0",
        ),
        "stages_by_pp": ("pp_degree divides the virtual stages", f"pp_degree == 1 or {_STAGES} % pp_degree == 0"),
        "stages_by_schedule": (
            "a single-stage schedule has one stage per rank, another at least two",
            f"pp_degree == 1 or ({_STAGES} == pp_degree if pipeline_schedule in ('1F1B', 'GPipe') "
            f"else {_STAGES} >= 2 * pp_degree)",
        ),
        "tp_overlap_needs_compile": (
            "overlapped tensor-parallel communication needs compilation",
            "not tp_overlap or compile",
        ),
    },
    other_defaults=("*",),
    both_dashes=True,
    programs=(r"torchtitan\.train", r"(?:.*/)?torchtitan/train\.py"),
    marks=(
        frozenset({"--training.local_batch_size"}),
        frozenset({"--parallelism.tensor_parallel_degree"}),
        frozenset({"--activation_checkpoint.mode"}),
    ),
)
