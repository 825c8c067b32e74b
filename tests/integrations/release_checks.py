"""The argument checks of trainers' own releases, run on a command without a GPU: ``None`` or the reason to refuse."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from typing import TYPE_CHECKING
from unittest import mock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

REFUSALS = (AssertionError, ValueError, RuntimeError)
"""Errors by which a check refuses a command."""


def megatron_lm(command: Sequence[str], world_size: int) -> str | None:
    """Check with Megatron-LM: arguments, the model's config, its stages, the process groups, and a sequence's split."""
    import torch
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel.mappings import _split_along_first_dim
    from megatron.core.transformer.transformer_block import get_num_layers_to_build
    from megatron.training import arguments

    words = [*command, "--bf16", "--train-iters", "1", "--lr", "1e-4", "--mock-data"]
    variables = {"RANK": "0", "WORLD_SIZE": str(world_size), "CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    with (
        mock.patch.object(sys, "argv", ["pretrain_gpt.py", *words]),
        mock.patch.dict(os.environ, variables),
        mock.patch.object(arguments, "get_device_arch_version", return_value=9),  # there is no GPU to ask
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        args = arguments.parse_args()
        try:
            arguments.validate_args(args, {})
            config = arguments.core_transformer_config_from_args(args)
            for stage in range(args.virtual_pipeline_model_parallel_size or 1):
                for rank in range(args.pipeline_model_parallel_size):
                    several = args.virtual_pipeline_model_parallel_size is not None
                    get_num_layers_to_build(config, vp_stage=stage if several else None, pp_rank=rank)
            with _fake_ranks(world_size):
                try:
                    parallel_state.initialize_model_parallel(
                        args.tensor_model_parallel_size,
                        args.pipeline_model_parallel_size,
                        args.virtual_pipeline_model_parallel_size,
                        context_parallel_size=args.context_parallel_size,
                        expert_model_parallel_size=args.expert_model_parallel_size,
                        num_distributed_optimizer_instances=args.num_distributed_optimizer_instances,
                        expert_tensor_parallel_size=args.expert_tensor_parallel_size,
                        create_gloo_process_groups=False,
                    )
                    if args.sequence_parallel:
                        group = parallel_state.get_tensor_model_parallel_group()
                        _split_along_first_dim(torch.zeros(args.seq_length // args.context_parallel_size, 1), group)
                finally:
                    parallel_state.destroy_model_parallel()
        except REFUSALS as error:
            return str(error) or type(error).__name__
    return None


def torchtitan(command: Sequence[str], world_size: int) -> str | None:
    """Check with torchtitan: its mesh on so many ranks."""
    from torchtitan.config.configs import ParallelismConfig
    from torchtitan.distributed.parallel_dims import ParallelDims

    parallelism = ParallelismConfig(**_torchtitan_flags(command))
    try:
        with _fake_ranks(world_size):
            ParallelDims.from_config(parallelism, world_size).build_mesh()
    except REFUSALS as error:
        return str(error) or type(error).__name__
    return None


def _torchtitan_flags(command: Sequence[str]) -> dict[str, object]:
    flags: dict[str, object] = {}
    for word, after in zip(command, [*command[1:], "--"], strict=True):
        section, _, name = word.removeprefix("--").partition(".")
        if section == "parallelism":
            value = (not name.startswith("no-")) if after.startswith("--") else int(after)
            flags[name.removeprefix("no-")] = value
    return flags


@contextlib.contextmanager
def _fake_ranks(world_size: int) -> Iterator[None]:
    """Process groups of so many ranks in this process, by torch's own fake backend."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=world_size, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


CHECKS: dict[str, Callable[[Sequence[str], int], str | None]] = {"megatron-lm": megatron_lm, "torchtitan": torchtitan}


def deepspeed_batch(global_batch: int, micro_batch: int, world_size: int) -> bool:
    """Whether DeepSpeed's config takes a batch on so many data-parallel ranks."""
    from deepspeed.runtime.config import DeepSpeedConfig

    try:
        config = DeepSpeedConfig({"train_batch_size": global_batch, "train_micro_batch_size_per_gpu": micro_batch})
        config.world_size = world_size  # this process alone is one rank: its check again, for so many
        config.gradient_accumulation_steps = None
        config._configure_train_batch_size()
    except AssertionError:
        return False
    return True


def hugging_face_precision(*, bf16: bool, fp16: bool) -> bool:
    """Whether the arguments of the HF Trainer take these number formats."""
    from transformers import TrainingArguments

    try:
        TrainingArguments(output_dir="out", bf16=bf16, fp16=fp16, use_cpu=True, report_to="none")
    except ValueError as error:
        return "one of fp16 and bf16" not in str(error)
    return True
