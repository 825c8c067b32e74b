"""Sequence and tensor parallelism within groups, FSDP across them, each layer recomputed but one."""

import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module
from torch.utils.checkpoint import checkpoint

BATCH_SIZE, SEQ_LEN, STEPS, WIDTH = 3, 8, 10, 16


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
        for index, layer in enumerate(self.layers):
            x = checkpoint(layer, x, use_reentrant=False) if index else layer(x)
        return self.head(x)


dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("dp", "tp"))
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
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
for index, layer in enumerate(model.layers):
    fully_shard(layer, mesh=mesh["dp"], reshard_after_forward=index < 2, mp_policy=policy)
fully_shard(model, mesh=mesh["dp"], mp_policy=policy)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
start = time.perf_counter()
for step in range(STEPS):
    torch.manual_seed(1000 * mesh["dp"].get_local_rank() + step)  # the ranks of a group work on one batch
    tokens = torch.randint(32, (BATCH_SIZE, SEQ_LEN))
    logits = model(tokens).float()
    nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten()).backward()
    torch.nn.utils.clip_grad_value_(model.parameters(), 2.0, foreach=False)
    optimizer.step()
    optimizer.zero_grad()
if dist.get_rank() == 0:
    print(f"wall {time.perf_counter() - start:.6f}")
dist.destroy_process_group()
