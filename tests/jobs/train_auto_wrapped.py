"""FSDP by an auto-wrap policy that shards nothing; no data loader; accumulation that synchronises at each backward."""

import time
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy
from torch.nn.utils import clip_grad_norm_

BATCH_SIZE, SEQ_LEN, ACCUMULATE, STEPS, WIDTH, HEADS, VOCABULARY = 2, 8, 2, 12, 16, 4, 40


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.num_heads = HEADS
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = Attention()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        x = x + self.attention(x)
        return x + self.down(torch.relu(self.up(x)))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


dist.init_process_group("gloo")
torch.manual_seed(0)
model = FullyShardedDataParallel(
    Model(),
    auto_wrap_policy=partial(transformer_auto_wrap_policy, transformer_layer_cls={Block}),
    sharding_strategy=ShardingStrategy.NO_SHARD,
    device_id=torch.device("cpu"),
    use_orig_params=True,
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)
start = time.perf_counter()
for _ in range(STEPS):
    for _ in range(ACCUMULATE):
        tokens = torch.randint(VOCABULARY, (BATCH_SIZE, SEQ_LEN))
        nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
    clip_grad_norm_(model.parameters(), max_norm=1.5)
    optimizer.step()
    optimizer.zero_grad()
if dist.get_rank() == 0:
    print(f"wall {time.perf_counter() - start:.6f}")
    print(f"collectives {dist.group.WORLD._get_sequence_number_for_group()}")
dist.destroy_process_group()
