"""FSDP on a mesh of two dimensions: copies of the model, each spread over shards; one layer keeps its weights."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("dp_replicate", "dp_shard"))
torch.manual_seed(0)
model = nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.ReLU()) for _ in range(2)), nn.Linear(16, 4))
for index, layer in enumerate(list(model)[:2]):
    fully_shard(layer, mesh=mesh, reshard_after_forward=index == 0)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(12):
    model(torch.randn(5, 16)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
