"""A model with dropout and without a flag for activation checkpointing; prints each loss. Arguments: how it is wrapped.

With ``script-in-layers`` its layers recompute a part of themselves.
"""

import functools
import gc
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

WIDTH, LAYERS, STEPS = 16, 4, 9
HOW = sys.argv[1]


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(0.2)

    def forward(self, x, *, scale):
        inside = checkpoint(self.up, x, use_reentrant=False) if HOW == "script-in-layers" else self.up(x)
        return x + scale * self.dropout(self.down(torch.relu(inside)))


class Model(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.embedding = nn.Embedding(40, WIDTH)
        self.blocks = nn.ModuleList([Block() for _ in range(layers)])
        self.head = nn.Linear(WIDTH, 40)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, scale=x.new_ones(()))
        return self.head(x)


def wrapped(model):
    if HOW.startswith("fsdp1"):
        policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block})
        device, originals = torch.device("cpu"), HOW == "fsdp1-originals"
        return FullyShardedDataParallel(model, auto_wrap_policy=policy, device_id=device, use_orig_params=originals)
    if HOW == "fsdp2":
        for block in model.blocks:
            fully_shard(block)
        return fully_shard(model)
    return DistributedDataParallel(model)


def train():
    torch.manual_seed(0)
    model = wrapped(Model(LAYERS))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    torch.manual_seed(dist.get_rank())
    for step in range(STEPS):
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
gc.collect()  # as in train_wrapped.py
dist.barrier()
dist.destroy_process_group()
