"""Computes gradients, and looks at them only: there is an optimizer that never steps."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = DistributedDataParallel(nn.Sequential(nn.Linear(300, 300), nn.ReLU(), nn.Linear(300, 2)))
optimizer = torch.optim.Adam(model.parameters())
for _ in range(20):
    model(torch.randn(6, 300)).sum().backward()
    optimizer.zero_grad()
dist.destroy_process_group()
