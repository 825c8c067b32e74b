"""FSDP2 with resharding after forward in some layers only; the batch goes in by name; every layer recomputed."""

import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint

BATCH_SIZE, SEQ_LEN, STEPS, WIDTH = 3, 8, 12, 16
RESHARD = (True, False, True)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(40, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in RESHARD)
        self.head = nn.Linear(WIDTH, 40)

    def forward(self, input_ids, attention_mask=None):
        with torch.autocast("cpu", torch.bfloat16):
            x = self.embedding(input_ids)
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=False)
            return self.head(x)


dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("dp",))
torch.manual_seed(0)
model = Model()
for block, reshard in zip(model.blocks, RESHARD, strict=True):
    fully_shard(block, mesh=mesh, reshard_after_forward=reshard)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
start = time.perf_counter()
for _ in range(STEPS):
    tokens = torch.randint(40, (BATCH_SIZE, SEQ_LEN))
    logits = model(attention_mask=torch.ones(BATCH_SIZE, SEQ_LEN), input_ids=tokens).float()
    nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten()).backward()
    optimizer.step()
    optimizer.zero_grad()
if dist.get_rank() == 0:
    print(f"wall {time.perf_counter() - start:.6f}")
dist.destroy_process_group()
