"""A small real training: DDP over gloo on as many processes as there are, for as many steps as the command says."""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=30)
parser.add_argument("--batch_size", type=int, default=128)
options = parser.parse_args()

torch.set_num_threads(1)
torch.manual_seed(0)
dist.init_process_group("gloo")
model = DistributedDataParallel(nn.Sequential(*(nn.Linear(256, 256) for _ in range(8)), nn.Linear(256, 8)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(options.steps):
    inputs, targets = torch.randn(options.batch_size, 256), torch.randint(8, (options.batch_size,))
    nn.functional.cross_entropy(model(inputs), targets).backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
