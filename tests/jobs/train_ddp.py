"""DDP with gradient accumulation, a data loader, evaluation between steps, two optimizers and a restored checkpoint."""

import time
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

BATCH_SIZE, ACCUMULATE, STEPS = 6, 2, 20


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(32, 32), nn.ReLU()) for _ in range(3))
        self.head = nn.Linear(32, 4)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def evaluate(model, batch):
    model.eval()
    with torch.no_grad():
        model(batch)
    model.train()


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(Classifier())
    body = torch.optim.SGD(model.module.layers.parameters(), lr=0.1)
    head = torch.optim.AdamW(model.module.head.parameters(), lr=0.01)
    # A checkpoint loader asks for the state first, which takes a step of its own without a forward.
    get_optimizer_state_dict(model, head)
    data = TensorDataset(torch.randn(480, 32), torch.randint(4, (480,)))
    loader = DataLoader(data, batch_size=BATCH_SIZE, sampler=DistributedSampler(data))
    start = time.perf_counter()
    for index, (inputs, targets) in enumerate(loader):
        last = index % ACCUMULATE == ACCUMULATE - 1
        with nullcontext() if last else model.no_sync():
            nn.functional.cross_entropy(model(inputs), targets).backward()
        if last:
            time.sleep(0.02)
            for optimizer in (body, head):
                optimizer.step()
                optimizer.zero_grad()
            if index % 8 == 7:
                evaluate(model, inputs)
        if index + 1 == STEPS * ACCUMULATE:
            break
    if dist.get_rank() == 0:
        print(f"wall {time.perf_counter() - start:.6f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
