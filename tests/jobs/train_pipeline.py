"""A pipeline of torch's own: two stages of unlike size, or with an argument two interleaved stages on each rank."""

import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe, ScheduleInterleaved1F1B

BATCH_SIZE, SEQ_LEN, MICRO_BATCHES, STEPS, WIDTH, VOCABULARY = 8, 6, 4, 12, 16, 32


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU())

    def forward(self, x):
        return x + self.mlp(x)


class Part(nn.Module):
    def __init__(self, n_layers, first, last):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH) if first else None
        self.layers = nn.ModuleList(Block() for _ in range(n_layers))
        self.head = nn.Linear(WIDTH, VOCABULARY) if last else None

    def forward(self, x):
        x = self.embedding(x) if self.embedding is not None else x
        for layer in self.layers:
            x = layer(x)
        return self.head(x) if self.head is not None else x


def loss(logits, targets):
    return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
layers = (1, 0, 2, 1) if sys.argv[1:] == ["interleaved"] else (1, 2)
mine = range(rank, len(layers), 2)
parts = [Part(n_layers=layers[number], first=number == 0, last=number == len(layers) - 1) for number in mine]
stages = [
    PipelineStage(part, number, len(layers), torch.device("cpu")) for number, part in zip(mine, parts, strict=True)
]
if len(stages) > 1:
    schedule = ScheduleInterleaved1F1B(stages, MICRO_BATCHES, loss_fn=loss)
else:
    schedule = ScheduleGPipe(stages[0], MICRO_BATCHES, loss_fn=loss)
optimizer = torch.optim.AdamW([weight for part in parts for weight in part.parameters()], lr=1e-3)
start = time.perf_counter()
for _ in range(STEPS):
    tokens = torch.randint(VOCABULARY, (BATCH_SIZE, SEQ_LEN))
    if rank == 0:
        schedule.step(tokens)
    else:
        schedule.step(target=tokens, losses=[])
    time.sleep(0.03)  # else the first steps are most of the whole
    optimizer.step()
    optimizer.zero_grad()
if rank == 0:
    print(f"wall {time.perf_counter() - start:.6f}")
dist.destroy_process_group()
