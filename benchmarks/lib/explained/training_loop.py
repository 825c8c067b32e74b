"""Loop of the small trainings of ``explain_commands.py``: process group, data parallelism, precision, steps; on CPU."""

from __future__ import annotations

import os
from contextlib import nullcontext
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import AbstractContextManager

    from torch import Tensor, nn


def start() -> None:
    """Join the process group, if there are several processes."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        dist.init_process_group("gloo")


def parallel(model: nn.Module, blocks: Iterable[nn.Module], sharding: str) -> nn.Module:
    """Return a model whose gradients the processes average, replicated (``ddp``) or sharded per block (``fsdp2``)."""
    if not dist.is_initialized():
        return model
    if sharding == "ddp":
        return DistributedDataParallel(model)
    for block in blocks:
        fully_shard(block)
    fully_shard(model)
    return model


def train(
    model: nn.Module,
    batch: Callable[[], tuple[Tensor, Tensor]],
    loss_of: Callable[[Tensor, Tensor], Tensor],
    *,
    steps: int,
    accumulate: int = 1,
    bf16: bool = False,
) -> None:
    """Train with AdamW for a number of steps."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(steps):
        for _ in range(accumulate):
            inputs, targets = batch()
            with precision(bf16=bf16):
                loss = loss_of(model(inputs), targets)
            (loss / accumulate).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    if dist.is_initialized():
        dist.destroy_process_group()


def precision(*, bf16: bool) -> AbstractContextManager[object]:
    """Return autocast to bfloat16, or nothing."""
    return torch.autocast("cpu", dtype=torch.bfloat16) if bf16 else nullcontext()
