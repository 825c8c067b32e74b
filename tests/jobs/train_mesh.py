"""FSDP2 and tensor parallelism on a mesh of named axes, with fixed sizes and without a flag for them.

Every data-parallel rank takes its share of one global batch, so that the loss is the same under each mesh. The first
argument changes that: ``ranks-by-hand`` calculates the data-parallel rank from the global rank, ``by-ranks``
constructs the mesh from its ranks, and ``unflattened`` makes it from one of one axis, as torchtitan does.
"""

import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module

BATCH_SIZE, SEQ_LEN, STEPS, WIDTH = 8, 8, 10, 16
seen = []  # length of the sequence that a layer gets
HOW = sys.argv[1] if len(sys.argv) > 1 else "plain"


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        seen.append(x.shape[1])
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
names = ("fsdp", "tp")
shape = (dist.get_world_size() // 2, 2)
if HOW == "by-ranks":
    mesh = DeviceMesh("cpu", torch.arange(dist.get_world_size()).view(shape), mesh_dim_names=names)
elif HOW == "unflattened":
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("world",))._unflatten(0, shape, names)
else:
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
data, tensor = mesh[names[0]], mesh[names[1]]
torch.manual_seed(0)
model = Model()
parallelize_module(
    model,
    tensor,
    {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "layers.*.norm": SequenceParallel(),
        "layers.*.up": ColwiseParallel(input_layouts=Shard(1)),
        "layers.*.down": RowwiseParallel(output_layouts=Shard(1)),
        "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    },
)
for layer in model.layers:
    fully_shard(layer, mesh=data)
fully_shard(model, mesh=data)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
rank, count = data.get_local_rank(), data.size()
if HOW == "ranks-by-hand":
    rank, count = dist.get_rank() // 2, dist.get_world_size() // 2
share = BATCH_SIZE // count
start = time.perf_counter()
for step in range(STEPS):
    torch.manual_seed(step)
    batch = torch.randint(32, (BATCH_SIZE, SEQ_LEN))
    tokens = batch[share * rank : share * (rank + 1)]
    loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    total = loss.detach() / data.size()
    dist.all_reduce(total, group=data.get_group())
    if dist.get_rank() == 0:
        print(f"loss {total.item():.6f}")
if dist.get_rank() == 0:
    print(f"mesh {data.size()} {tensor.size()} {dist.get_process_group_ranks(tensor.get_group())}")
    print(f"sequence {seen[-1]}")
    print(f"wall {time.perf_counter() - start:.6f}")
dist.destroy_process_group()
