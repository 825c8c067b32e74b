"""Tensor and sequence parallelism over all ranks on a mesh that has names."""

import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

BATCH_SIZE, SEQ_LEN, STEPS, WIDTH = 3, 8, 12, 16


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(32, WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(WIDTH, 32)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (1, dist.get_world_size()), mesh_dim_names=("dp", "tp"))
torch.manual_seed(0)
model = Model()
parallelize_module(
    model,
    mesh["tp"],
    {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "layers.*.norm": SequenceParallel(),
        "layers.*.up": ColwiseParallel(input_layouts=Shard(1)),
        "layers.*.down": RowwiseParallel(output_layouts=Shard(1)),
        "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    },
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
start = time.perf_counter()
for step in range(STEPS):
    torch.manual_seed(step)  # all ranks work on one batch
    tokens = torch.randint(32, (BATCH_SIZE, SEQ_LEN))
    nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
    optimizer.step()
    optimizer.zero_grad()
if dist.get_rank() == 0:
    print(f"wall {time.perf_counter() - start:.6f}")
dist.destroy_process_group()
