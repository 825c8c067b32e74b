"""A data-parallel training whose ranks come from any launcher, or from this program; its pace is set by sleeping."""

from __future__ import annotations

import argparse
import os
import resource
import sys
import time
from pathlib import Path

import torch
from torch import distributed, multiprocessing, nn

parser = argparse.ArgumentParser()
parser.add_argument("--batch_size", type=int, default=1)
parser.add_argument("--steps", type=int, default=12)
parser.add_argument("--seconds", type=float, default=0.2, help="of all steps together")
parser.add_argument("--ledger", default="", help="file in which rank 0 writes down that it ran, and how")
parser.add_argument("--out_dir", default="", help="folder for the weights")
parser.add_argument("--eat_mib", type=int, default=0)
parser.add_argument("--limit_mib", type=int, default=0)
parser.add_argument("--refused", action="store_true", help="the last rank ends by exit status 2")
parser.add_argument("--port", default="29500")
parser.add_argument("--local_rank", type=int, default=0)
parser.add_argument("--spawn", type=int, default=0, help="ranks that this program starts")
parser.add_argument("--lightning", action="store_true", help="train by Lightning, which starts the second of two ranks")


def variable(*names: str, default: str) -> int:
    return int(next((os.environ[name] for name in names if name in os.environ), default))


def start(rank: int, args: argparse.Namespace) -> None:
    """Write down who runs, and limit the memory."""
    if args.ledger and rank == 0:
        with Path(args.ledger).open("a") as ledger:
            ledger.write(f"{os.environ['TORCHX_CUBICML_LAUNCH']} --batch_size {args.batch_size}\n")
    if args.limit_mib:
        resource.setrlimit(resource.RLIMIT_AS, (args.limit_mib << 20, args.limit_mib << 20))


def begin_step(step: int, args: argparse.Namespace, *, is_last_rank: bool) -> None:
    """Fail if that is asked for, or take the time of a step."""
    if args.eat_mib and args.batch_size > 1 and step == 2:
        torch.empty(args.eat_mib << 20, dtype=torch.uint8).fill_(1)
    if args.refused and is_last_rank and step == 2:
        sys.exit(2)
    time.sleep(args.seconds / args.steps)


def save(net: nn.Module, args: argparse.Namespace) -> None:
    Path(args.out_dir).mkdir(exist_ok=True)
    torch.save({"model": net.state_dict()}, Path(args.out_dir) / "ckpt.pt")


def make_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1))


def train(rank: int, world_size: int, args: argparse.Namespace) -> None:
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", args.port)
    start(rank, args)
    net = make_net()
    if world_size > 1:
        distributed.init_process_group("gloo", rank=rank, world_size=world_size)
        net = nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(net.parameters())
    source = torch.Generator().manual_seed(rank)
    for step in range(args.steps):
        begin_step(step, args, is_last_rank=rank == world_size - 1)
        inputs, wanted = torch.randn(args.batch_size, 16, generator=source), torch.zeros(args.batch_size, 1)
        nn.functional.mse_loss(net(inputs), wanted).backward()
        optimizer.step()
        optimizer.zero_grad()
    if args.out_dir and rank == 0:
        save(net, args)
    if world_size > 1:
        distributed.destroy_process_group()


def train_by_lightning(args: argparse.Namespace) -> None:
    import lightning
    from torch.utils.data import DataLoader, TensorDataset

    class Task(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = make_net()

        def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
            begin_step(index, args, is_last_rank=self.global_rank == 1)
            return nn.functional.mse_loss(self.net(batch[0]), torch.zeros(len(batch[0]), 1))

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters())

    start(int(os.environ.get("LOCAL_RANK", "0")), args)
    task = Task()
    data = DataLoader(TensorDataset(torch.randn(args.steps * args.batch_size * 2, 16)), batch_size=args.batch_size)
    without = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    trainer = lightning.Trainer(accelerator="cpu", devices=2, strategy="ddp", max_steps=args.steps, **without)
    trainer.fit(task, data)
    if args.out_dir and trainer.global_rank == 0:
        save(task.net, args)


def main() -> None:
    args = parser.parse_args()
    if args.lightning:
        train_by_lightning(args)
        return
    if args.spawn:
        multiprocessing.spawn(train, (args.spawn, args), nprocs=args.spawn)
        return
    rank = variable("RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID", default="0")
    train(rank, variable("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS", default="1"), args)


if __name__ == "__main__":
    main()
