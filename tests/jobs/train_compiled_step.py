"""The step of the optimizer is compiled, after that of the model, or with it as a whole; evaluations now and then."""

import sys

import torch
from torch import nn

STEPS, ACCUMULATE = 20, 2

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
compiled = torch.compile(model, backend="aot_eager")
optimizer = getattr(torch.optim, sys.argv[1])(model.parameters(), lr=0.01)
take_step = torch.compile(optimizer.step, backend="aot_eager")


@torch.compile(backend="aot_eager")
def whole_step(x):
    model(x).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


for step in range(STEPS):
    if "whole" in sys.argv:
        whole_step(torch.randn(6, 8))
        continue
    for _ in range(ACCUMULATE):
        compiled(torch.randn(6, 8)).sum().backward()
    take_step()
    optimizer.zero_grad()
    if step % 5 == 4:
        model.eval()
        with torch.no_grad():
            compiled(torch.randn(9, 8))
        model.train()
print(f"{STEPS} steps, {sum(weight.sum() for weight in model.parameters()):.6f}")
