"""A model with dropout, without a flag for its sharding or for checkpointing; prints each loss.

Arguments: how it is wrapped. With ``script-in-layers`` its layers recompute a part of themselves.
"""

import functools
import gc
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, fully_shard
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

WIDTH, LAYERS, STEPS = 16, 4, 9
HOW = sys.argv[1]


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(0.0 if "compiled" in HOW else 0.2)  # a compiled one draws other numbers

    def forward(self, x, *, scale):
        inside = checkpoint(self.up, x, use_reentrant=False) if HOW == "script-in-layers" else self.up(x)
        return x + scale * self.dropout(self.down(torch.relu(inside)))


def wrapped_early(block):
    if HOW == "fsdp1-in-constructor":
        return fsdp1(block)
    return fully_shard(block) if HOW == "fsdp2-in-constructor" else block


class Model(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.embedding = nn.Embedding(40, WIDTH)
        self.blocks = nn.ModuleList([wrapped_early(Block()) for _ in range(layers)])
        self.head = nn.Linear(WIDTH, 40)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, scale=x.new_ones(()))
        return self.head(x)


def two_copies():
    return init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("dp_replicate", "dp_shard"))


def fsdp1(module, **changes):
    return FullyShardedDataParallel(module, device_id=torch.device("cpu"), **changes)


def in_fsdp1(model):
    if HOW in {"fsdp1-policy", "fsdp1-originals", "fsdp1-hybrid"}:
        changes = {"use_orig_params": HOW == "fsdp1-originals"}
        if HOW == "fsdp1-hybrid":
            changes |= {"device_mesh": two_copies(), "sharding_strategy": ShardingStrategy.HYBRID_SHARD}
        policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block})
        return fsdp1(model, auto_wrap_policy=policy, **changes)
    if HOW == "fsdp1-by-hand":
        model.embedding = fsdp1(model.embedding)
        for index, block in enumerate(model.blocks):
            model.blocks[index] = fsdp1(block)
    return fsdp1(model)


def in_fsdp2(model):
    if HOW == "fsdp2-in-constructor":
        return fully_shard(model)
    if HOW == "fsdp2-compiled-blocks":  # as torchtitan does
        for index, block in enumerate(model.blocks):
            model.blocks[index] = torch.compile(block, backend="aot_eager", fullgraph=True)
    mesh = two_copies() if HOW == "fsdp2-hybrid" else None
    in_order = HOW in {"fsdp2-in-order", "fsdp2-compiled-blocks"}
    for block in model.blocks if dist.get_rank() == 0 or in_order else reversed(model.blocks):
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def wrapped(model):
    if HOW in {"ddp", "script-in-layers"}:
        return DistributedDataParallel(model)
    return in_fsdp1(model) if HOW.startswith("fsdp1") else in_fsdp2(model)


def train():
    torch.manual_seed(0)
    model = wrapped(Model(LAYERS + (HOW == "ranks-differ" and dist.get_rank() == 1)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    torch.manual_seed(dist.get_rank())
    for step in range(0 if HOW == "ranks-differ" else STEPS):
        tokens = torch.randint(40, (2, 8))
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if dist.get_rank() == 0:
            print(f"loss {loss.item():.7f}", flush=True)
        if step == 4:  # an evaluation, which keeps nothing for backward
            with torch.no_grad():
                model(tokens)


dist.init_process_group("gloo")
train()
# A thread of gloo that still holds tensors when the interpreter ends would abort the process (PyTorch pull 179291).
gc.collect()
dist.barrier()
dist.destroy_process_group()
