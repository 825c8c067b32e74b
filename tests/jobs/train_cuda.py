"""A small transformer under DDP on one CUDA device, in bfloat16; says itself what its steps took."""

import itertools
import json
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

BATCH_SIZE, SEQ_LEN, STEPS, WIDTH, HEADS, VOCABULARY = 8, 256, 40, 512, 8, 1000


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n_heads = HEADS
        self.norm, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = (p.unflatten(-1, (HEADS, -1)).transpose(1, 2) for p in self.qkv(self.norm(x)).chunk(3, dim=-1))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(6))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


how = sys.argv[1]
torch.cuda.set_device(0)
dist.init_process_group("nccl")
torch.manual_seed(0)
module = Model().cuda()
model = DistributedDataParallel(module, device_ids=[0])
called = torch.compile(model) if how == "compiled" else model
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
events, hoard = [], []
for step in range(STEPS):
    tokens = torch.randint(VOCABULARY, (BATCH_SIZE, SEQ_LEN), device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        logits = called(tokens)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    events.append(torch.cuda.Event(enable_timing=True))
    events[-1].record()
    if how == "outgrow" and step > STEPS // 2:
        hoard.append(torch.empty(1 << 34, dtype=torch.uint8, device="cuda"))
torch.cuda.synchronize()
steps = [before.elapsed_time(after) / 1000 for before, after in itertools.pairwise(events)]
print(
    json.dumps(
        {
            "step_s": steps,
            "peak_gib": torch.cuda.max_memory_allocated() / 2**30,
            "n_params": sum(weight.numel() for weight in module.parameters()),
        }
    )
)
dist.destroy_process_group()
