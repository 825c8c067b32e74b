"""One process without a launcher: trains a little, with a forward of evaluation, and says how far it came."""

import torch
from torch import nn

STEPS = 12

layers = [nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(2)]
model = nn.Sequential(*layers, nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _ in range(STEPS):
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
model.eval()
print(f"{STEPS} steps, {sum(parameter.numel() for parameter in model.parameters())} parameters")
