"""Train a small classifier with Accelerate, as its users write it."""

import argparse

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch_size", type=int, default=4)
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--steps", type=int, default=30)
options = parser.parse_args()

torch.set_num_threads(1)
torch.manual_seed(0)
accelerator = Accelerator(gradient_accumulation_steps=options.accumulate)
n_samples = options.steps * options.accumulate * options.batch_size * accelerator.num_processes
data = TensorDataset(torch.randn(n_samples, 64), torch.randint(8, (n_samples,)))
model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(4)), nn.Linear(64, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data, batch_size=options.batch_size))
for inputs, targets in loader:
    with accelerator.accumulate(model):
        accelerator.backward(nn.functional.cross_entropy(model(inputs), targets))
        optimizer.step()
        optimizer.zero_grad()
accelerator.end_training()
if torch.distributed.is_initialized():
    torch.distributed.destroy_process_group()
