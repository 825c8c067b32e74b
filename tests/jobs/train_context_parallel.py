"""Each rank works on its part of every sequence and gathers the keys and values of the others; weights are sharded."""

import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.nn.functional import all_gather

BATCH_SIZE, SEQ_LEN, STEPS, WIDTH, HEADS, VOCABULARY = 2, 12, 10, 16, 2, 32


class Block(nn.Module):
    def __init__(self, group):
        super().__init__()
        self.group, self.n_heads = group, HEADS
        self.q, self.kv, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        keys_values = torch.cat(all_gather(self.kv(x).contiguous(), group=self.group), dim=1)
        q, k, v = (
            part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in (self.q(x), *keys_values.chunk(2, dim=-1))
        )
        scores = torch.softmax(q @ k.transpose(-1, -2) / 8**0.5, dim=-1)
        return x + self.out((scores @ v).transpose(1, 2).flatten(2))


class Model(nn.Module):
    def __init__(self, group):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block(group) for _ in range(2))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (1, dist.get_world_size()), mesh_dim_names=("dp_shard", "cp"))
torch.manual_seed(0)
model = Model(mesh["cp"].get_group())
over_both = mesh["dp_shard", "cp"]._flatten("dp_shard_cp")
for block in model.blocks:
    fully_shard(block, mesh=over_both)
fully_shard(model, mesh=over_both)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
start = time.perf_counter()
for step in range(STEPS):
    torch.manual_seed(step)
    tokens = torch.randint(VOCABULARY, (BATCH_SIZE, SEQ_LEN)).chunk(dist.get_world_size(), dim=1)[dist.get_rank()]
    nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
    optimizer.step()
    optimizer.zero_grad()
if dist.get_rank() == 0:
    print(f"wall {time.perf_counter() - start:.6f}")
dist.destroy_process_group()
