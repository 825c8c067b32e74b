"""FSDP with a strategy of its own for each layer, accumulation, clipping, one layer checkpointed, low precision."""

import os
import time
from contextlib import nullcontext

os.environ["TOKENIZERS_PARALLELISM"] = "false"  # scripts set such things before they import torch

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, ShardingStrategy

BATCH_SIZE, SEQ_LEN, ACCUMULATE, STEPS, WIDTH = 2, 16, 3, 14, 24
STRATEGIES = ("FULL_SHARD", "NO_SHARD", "SHARD_GRAD_OP")


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        return x + self.mlp(self.norm(x))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(50, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in STRATEGIES)
        self.head = nn.Linear(WIDTH, 50)
        self.head.bias.requires_grad_(False)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def wrap(module, strategy):
    return FullyShardedDataParallel(
        module,
        sharding_strategy=ShardingStrategy[strategy],
        mixed_precision=MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
        device_id=torch.device("cpu"),
        use_orig_params=True,
    )


dist.init_process_group("gloo")
torch.manual_seed(0)
model = Model()
for index, strategy in enumerate(STRATEGIES):
    block = checkpoint_wrapper(model.blocks[index]) if index == 1 else model.blocks[index]
    model.blocks[index] = wrap(block, strategy)
model = wrap(model, "SHARD_GRAD_OP")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
start = time.perf_counter()
for step in range(STEPS):
    for micro in range(ACCUMULATE):
        tokens = torch.randint(50, (BATCH_SIZE, SEQ_LEN))
        with model.no_sync() if micro < ACCUMULATE - 1 else nullcontext():
            logits = model(tokens).float()
            nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten()).backward()
    model.clip_grad_norm_(0.5)
    optimizer.step()
    optimizer.zero_grad()
    if dist.get_rank() == 0:
        print(f"step {step + 1}", flush=True)
if dist.get_rank() == 0:
    print(f"wall {time.perf_counter() - start:.6f}")
dist.destroy_process_group()
