"""A small DDP training over gloo whose last rank raises an error at its fifth step."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)
dist.init_process_group("gloo")
model = DistributedDataParallel(nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(20):
    if step == 4 and dist.get_rank() == dist.get_world_size() - 1:
        raise ValueError("no such sample")
    nn.functional.cross_entropy(model(torch.randn(8, 16)), torch.randint(4, (8,))).backward()
    optimizer.step()
    optimizer.zero_grad()
