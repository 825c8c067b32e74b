"""A data-parallel training whose ranks may come from any launcher; rank 0 writes its losses."""

import argparse
import json
import os
import sys
from pathlib import Path

import torch
from torch import distributed, nn

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=2)
parser.add_argument("--steps", type=int, default=20)
parser.add_argument("--fail", action="store_true")
parser.add_argument("--port", default="29500")
parser.add_argument("--outcome", default="")
parser.add_argument("--local_rank", type=int, default=0)
args = parser.parse_args()


def variable(*names: str, default: str) -> int:
    return int(next((os.environ[name] for name in names if name in os.environ), default))


rank = variable("RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID", default="0")
world_size = variable("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS", default="1")
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
        sys.exit(7)
if rank == 0 and args.outcome:
    Path(args.outcome).write_text(json.dumps({"losses": losses, "world_size": world_size, "argv": sys.argv[1:]}))
distributed.destroy_process_group()
