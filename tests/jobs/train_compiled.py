"""A compiled model under DDP that saves a distributed checkpoint between steps, and has begun from another."""

import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn.parallel import DistributedDataParallel

STEPS = 16


def save(model, optimizer, path):
    of_model, of_optimizer = get_state_dict(model, optimizer)
    dcp.save({"model": of_model, "optimizer": of_optimizer}, checkpoint_id=path)


def load(model, optimizer, path):
    of_model, of_optimizer = get_state_dict(model, optimizer)
    dcp.load({"model": of_model, "optimizer": of_optimizer}, checkpoint_id=path)
    set_state_dict(model, optimizer, model_state_dict=of_model, optim_state_dict=of_optimizer)


dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
save(model, optimizer, f"{sys.argv[1]}/0")
load(model, optimizer, f"{sys.argv[1]}/0")
compiled = torch.compile(model, backend="aot_eager")
for step in range(1, STEPS + 1):
    compiled(torch.randn(6, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step == STEPS // 2:
        save(model, optimizer, f"{sys.argv[1]}/{step}")
dist.destroy_process_group()
