"""Train a small classifier with DDP on one or more processes, on the CPU: the script of the pages' commands."""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--batch_size", type=int, default=4, help="samples of a micro batch on a process")
parser.add_argument("--accumulate", type=int, default=1, help="micro batches of a step")
parser.add_argument("--n_layer", type=int, default=4)
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--steps", type=int, default=40)
parser.add_argument("--out_dir", default="out", help="folder for the checkpoint")
options = parser.parse_args()

torch.set_num_threads(1)
torch.manual_seed(0)
dist.init_process_group("gloo")
layers = [nn.Sequential(nn.Linear(256, 256), nn.ReLU()) for _ in range(options.n_layer)]
model = DistributedDataParallel(nn.Sequential(*layers, nn.Linear(256, 8)))
optimizer = torch.optim.SGD(model.parameters(), lr=options.lr)
for _ in range(options.steps):
    for _ in range(options.accumulate):
        inputs, targets = torch.randn(options.batch_size, 256), torch.randint(8, (options.batch_size,))
        (nn.functional.cross_entropy(model(inputs), targets) / options.accumulate).backward()
    optimizer.step()
    optimizer.zero_grad()
if dist.get_rank() == 0:
    os.makedirs(options.out_dir, exist_ok=True)
    torch.save(model.module.state_dict(), os.path.join(options.out_dir, "model.pt"))
dist.destroy_process_group()
