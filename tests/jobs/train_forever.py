"""Never ends by itself, synchronises gradients by hand, and saves a checkpoint however it is ended."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
step = 0
try:
    while True:
        model(torch.randn(5, 8)).sum().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        sys.stdout.write(f"rank {dist.get_rank()} took step {step}\n")
finally:
    Path(sys.argv[1]).write_text("checkpoint")
