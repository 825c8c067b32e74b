"""Command line of ``accelerate launch`` (accelerate 1.15): the script behind its options, and the size of the job.

https://github.com/huggingface/accelerate/blob/v1.15.0/src/accelerate/commands/launch.py
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from torchx_cubicml.errors import LaunchError
from torchx_cubicml.launch.config_text import parse_yaml
from torchx_cubicml.launch.launchers.option_table import OptionTable, option_names
from torchx_cubicml.launch.torchrun_command import LaunchCommand, check_program
from torchx_cubicml.settings import accelerate_config_file
from torchx_cubicml.user_files import read_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torchx_cubicml.launch.launchers.option_table import TypedOptions

NAME = "accelerate"
MODULES = ("accelerate.commands.launch",)

OPTIONS = OptionTable(
    launcher="accelerate launch",
    with_value=option_names(
        "config_file mixed_precision num_processes num_machines num_cpu_threads_per_process gpu_ids machine_rank "
        "main_process_ip main_process_port tee log_dir role rdzv_backend rdzv_conf max_restarts monitor_interval vm "
        "env main_training_function zero_stage gradient_accumulation_steps gradient_clipping mpirun_hostfile"
    )
    | option_names("backend mode", before="dynamo_")
    | option_names(
        "config_file hostfile exclusion_filter inclusion_filter multinode_launcher moe_layer_cls_names",
        before="deepspeed_",
    )
    | option_names("optimizer_device param_device optimizer_nvme_path param_nvme_path", before="offload_")
    | option_names("init_flag save_16bit_model", before="zero3_")
    | option_names(
        "version offload_params min_num_params sharding_strategy reshard_after_forward auto_wrap_policy "
        "transformer_layer_cls_to_wrap backward_prefetch state_dict_type forward_prefetch use_orig_params "
        "cpu_ram_efficient_loading sync_module_states activation_checkpointing activation_checkpointing_offload",
        before="fsdp_",
    )
    | option_names(
        "tp_degree use_custom_fsdp no_load_optim eod_mask_loss overlap_cpu_optimizer_d2h_h2d no_save_optim "
        "optimizer_cpu_offload use_precision_aware_optimizer decoder_last_pipeline_num_layers pp_degree "
        "num_micro_batches sequence_parallelism recompute_activations use_distributed_optimizer gradient_clipping "
        "recompute_granularity recompute_method recompute_num_layers attention_backend expert_model_parallel_size "
        "context_parallel_size attention_dropout hidden_dropout attention_softmax_in_fp32 "
        "expert_tensor_parallel_size calculate_per_token_loss use_rotary_position_embeddings",
        before="megatron_lm_",
    )
    | option_names(
        "backend margin interval format amax_history_len amax_compute_algo override_linear_precision opt_level "
        "enable_fsdp_float8_all_gather pad_inner_dim",
        before="fp8_",
    )
    | option_names("access_key_id secret_access_key", before="aws_")
    | option_names(
        "dp_replicate_size dp_shard_size tp_size cp_size cp_backend cp_comm_strategy sp_size sp_backend sp_seq_length "
        "sp_seq_length_is_variable sp_attn_implementation",
        before="parallelism_config_",
    ),
    without_value=option_names(
        "help quiet cpu multi_gpu tpu enable_cpu_affinity dynamo_use_fullgraph dynamo_use_dynamic "
        "dynamo_use_regional_compilation use_deepspeed use_fsdp use_parallelism_config use_megatron_lm "
        "same_network module no_python tpu_cluster no_tpu_cluster tpu_use_sudo downcast_bf16 "
        "fp8_use_autocast_during_eval debug"
    ),
    short={"h": "help", "q": "quiet", "m": "module", "t": "tee"},
)
"""Options of ``accelerate launch``; a test compares them with accelerate's own parser."""

_ELASTIC = ("use_deepspeed", "use_fsdp", "use_megatron_lm", "multi_gpu")  # switches with which torch's agent starts it
_SWITCH_OF_TYPE = {"DEEPSPEED": "use_deepspeed", "FSDP": "use_fsdp", "MEGATRON_LM": "use_megatron_lm", "MULTI_CPU": ""}
_MULTI = "MULTI_"  # beginning of a distributed_type with the switch multi_gpu, except for that of CPUs


def first_option(words: Sequence[str]) -> int | None:
    """Return the index behind the words that start accelerate's launcher; ``None`` if another program starts.

    >>> first_option("accelerate launch --cpu train.py".split()), first_option(["accelerate", "test"])
    (2, None)
    """
    name = words[0].rpartition("/")[2] if words else ""
    if name == "accelerate-launch":
        return 1
    return 2 if name == "accelerate" and list(words[1:2]) == ["launch"] else None


def parse(words: Sequence[str], start: int, *, python: slice | None = None) -> LaunchCommand:
    """Parse a command of ``accelerate launch``.

    Args:
        words: the command.
        start: index of the first option.
        python: words that start accelerate's Python; ``None`` where its script does.

    Raises:
        LaunchError: the command starts no Python process that can be recorded, or has an unknown option.
    """
    options = OPTIONS.parse(words, start)
    ended = list(words[options.stop : options.stop + 1]) == ["--"]
    program_at = options.stop + ended
    config = _config(options)
    check_recordable(options, config or {})
    size = _size(options, config)
    # Its parser drops one "--" that follows the script, unless another came before it.
    dropped = not ended and list(words[program_at + 1 : program_at + 2]) == ["--"]
    return LaunchCommand(
        program=check_program(words, program_at),
        is_module="module" in options.switches,
        head_stop=options.stop,
        args_start=program_at + 1 + dropped,
        python=python,
        is_torchrun=size.is_elastic,
        picks_python=True,
        module_options=options.switches.get("module", ()),
        nnodes=size.nnodes,
        nproc_per_node=size.nproc_per_node,
        left_open=size.left_open,
        options_start=start,
        launcher=NAME,
        size_place=options.places.get("num_processes") if size.nnodes == 1 and size.is_elastic else None,
    )


def check_recordable(options: TypedOptions, config: Mapping[str, object]) -> None:
    """Check that options and config file start the script in Python processes of torch's agent or of accelerate itself.

    Raises:
        LaunchError: they do not, so that the script's place must stay as it is.
    """
    for name, what in _NOT_RECORDED.items():
        if name in options.values:
            raise LaunchError(f"accelerate's --{name} {what}")
    switch = _elastic_switch(options, config)
    if not switch and config.get("compute_environment") == "AMAZON_SAGEMAKER":
        raise LaunchError(f"accelerate's config file {_NOT_RECORDED['aws_access_key_id']}")
    if not switch and "cpu" not in options.switches and config.get("distributed_type") in {"XLA", "TPU"}:
        raise LaunchError(f"accelerate's config file {_NOT_RECORDED['tpu']}")
    name = "deepspeed_multinode_launcher"
    launcher = options.values.get(name) or _mapping(config.get("deepspeed_config")).get(name)
    if switch == "use_deepspeed" and _machines(options, config) > 1 and launcher != "standard":
        raise LaunchError("accelerate starts another launcher, deepspeed, on several machines")


_NOT_RECORDED = {
    "no_python": "starts a program that is no Python script",
    "tpu": "runs the script in the launcher's own process",
    "aws_access_key_id": "starts the script at SageMaker",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Size:
    nnodes: int | None = 1
    nproc_per_node: int | None = 1
    left_open: str = ""
    is_elastic: bool = False


def _size(options: TypedOptions, config: Mapping[str, object] | None) -> _Size:
    """Return the size of the job, and whether the agent of torch starts its processes."""
    if config is None:
        return _Size(nnodes=None, nproc_per_node=None, left_open="the size in accelerate's config file")
    if "mpirun_hostfile" in options.values or _mapping(config.get("mpirun_config")).get("mpirun_hostfile"):
        return _Size(nnodes=None, nproc_per_node=None, left_open="the number of processes that mpirun starts")
    if "cpu" in options.switches:
        return _Size()  # one process, whatever --num_processes says
    is_elastic = bool(_elastic_switch(options, config))
    processes = options.number("num_processes") or _whole(config.get("num_processes"))
    if not is_elastic and (config or processes == 1):
        return _Size()
    if not is_elastic or processes is None:
        open_size = "the number of processes, for which accelerate counts the devices,"
        return _Size(nnodes=None, nproc_per_node=None, left_open=open_size, is_elastic=True)
    machines = _machines(options, config)
    return _Size(nnodes=machines, nproc_per_node=processes // machines, is_elastic=True)


def _elastic_switch(options: TypedOptions, config: Mapping[str, object]) -> str:
    """Return the switch with which torch's agent starts the script, typed or of the config file; empty without one."""
    if "cpu" in options.switches:
        return ""
    kind = str(config.get("distributed_type", ""))
    of_file = _SWITCH_OF_TYPE.get(kind, "multi_gpu" if kind.startswith(_MULTI) else "")
    return next((switch for switch in _ELASTIC if switch in options.switches), of_file)


def _machines(options: TypedOptions, config: Mapping[str, object]) -> int:
    return options.number("num_machines") or _whole(config.get("num_machines")) or 1


def _config(options: TypedOptions) -> Mapping[str, object] | None:
    """Return accelerate's config file, empty where it reads none; ``None`` where it cannot be read here."""
    path = Path(options.values["config_file"]) if "config_file" in options.values else accelerate_config_file()
    if "config_file" not in options.values and (path is None or "cpu" in options.switches):
        return {}
    try:
        content = parse_yaml(read_text(path or ""))  # JSON is YAML, too
    except ValueError:  # a LaunchError is a ValueError
        return None
    return _mapping(content)


def _mapping(value: object) -> Mapping[str, object]:
    return {str(name): each for name, each in value.items()} if isinstance(value, dict) else {}


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
