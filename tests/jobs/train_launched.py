"""A data-parallel training whose ranks come from any launcher, or from this program; rank 0 writes its losses."""

import argparse
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import torch
from torch import distributed, multiprocessing, nn

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=2)
parser.add_argument("--steps", type=int, default=20)
parser.add_argument("--fail", default="", help="exit, error or the name of a signal, with which the last rank ends")
parser.add_argument("--port", default="29500")
parser.add_argument("--outcome", default="")
parser.add_argument("--local_rank", type=int, default=0)
parser.add_argument("--starts", default="", help="how this program starts its two ranks")
args = parser.parse_args()
N_OWN = 2


def variable(*names: str, default: str) -> int:
    return int(next((os.environ[name] for name in names if name in os.environ), default))


def fail() -> None:
    if args.fail == "exit":
        sys.exit(7)
    if args.fail == "error":
        raise ValueError("the last rank fails")
    if args.fail.startswith("SIG"):
        os.kill(os.getpid(), getattr(signal, args.fail))


def train(rank: int, world_size: int) -> None:
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", args.port)
    distributed.init_process_group("gloo", rank=rank, world_size=world_size)
    torch.manual_seed(0)
    net = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1)))
    optimizer = torch.optim.AdamW(net.parameters())
    source = torch.Generator().manual_seed(rank)
    losses = []
    for step in range(args.steps):
        inputs, wanted = torch.randn(args.batch_size, 16, generator=source), torch.randn(args.batch_size, 1)
        loss = nn.functional.mse_loss(net(inputs), wanted)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if args.fail and rank == world_size - 1 and step == 5:
            fail()
    if rank == 0 and args.outcome:
        report = {"losses": losses, "world_size": world_size, "argv": sys.argv[1:], "name": __name__}
        Path(args.outcome).write_text(json.dumps(report))
    distributed.destroy_process_group()


def train_own(rank: int) -> None:
    train(rank, N_OWN)


def start_processes() -> None:
    """Start all ranks as processes of multiprocessing, and end as the first one that fails."""
    context = multiprocessing.get_context(args.starts.partition("-")[0])
    processes = [context.Process(target=train_own, args=(rank,)) for rank in range(N_OWN)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    sys.exit(max(abs(process.exitcode or 0) for process in processes))


def start_programs(ranks: range) -> list[subprocess.Popen[bytes]]:
    """Start this program once more for each of the ranks, as Lightning does."""
    command = [sys.executable, str(Path(sys.argv[0]).absolute()), *sys.argv[1:]]
    place = {"WORLD_SIZE": str(N_OWN), "NODE_RANK": "0"}
    return [subprocess.Popen(command, env={**os.environ, **place, "LOCAL_RANK": str(rank)}) for rank in ranks]


if __name__ == "__main__":
    if args.starts.endswith("-processes"):
        start_processes()
    elif args.starts == "all-programs" and "LOCAL_RANK" not in os.environ:
        sys.exit(max(program.wait() for program in start_programs(range(N_OWN))))
    elif args.starts in {"programs", "all-programs"}:
        others = [] if "LOCAL_RANK" in os.environ else start_programs(range(1, N_OWN))
        train_own(int(os.environ.get("LOCAL_RANK", "0")))
        sys.exit(max([program.wait() for program in others], default=0))
    elif args.starts:
        multiprocessing.start_processes(train_own, nprocs=N_OWN, start_method=args.starts)
    else:
        train(
            variable("RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID", default="0"),
            variable("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS", default="1"),
        )
