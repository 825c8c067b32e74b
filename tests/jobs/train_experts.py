"""A mixture of experts whose tokens go to their experts by all-to-all; the axes of the mesh bear free names.

``distributed``: the weights of all experts are one distributed tensor. ``local``: each rank holds its own experts.
"""

import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

MODE = sys.argv[1] if len(sys.argv) > 1 else "distributed"
BATCH_SIZE, SEQ_LEN, STEPS, WIDTH, HIDDEN, EXPERTS, VOCABULARY = 2, 8, 10, 16, 24, 4, 32


class Feeds(nn.Module):
    """Experts as one tensor for each of their two layers."""

    def __init__(self, n_experts):
        super().__init__()
        self.up = nn.Parameter(torch.randn(n_experts, WIDTH, HIDDEN) / WIDTH**0.5)
        self.down = nn.Parameter(torch.randn(n_experts, HIDDEN, WIDTH) / HIDDEN**0.5)

    def forward(self, x):
        up, down = (w.to_local() if isinstance(w, DTensor) else w for w in (self.up, self.down))
        return torch.bmm(torch.relu(torch.bmm(x, up)), down)


class Feed(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, HIDDEN, bias=False), nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


class SparseLayer(nn.Module):
    def __init__(self, group, ways):
        super().__init__()
        self.group, self.ways, self.top_k, self.capacity_factor = group, ways, 2, 1.5
        self.gate = nn.Linear(WIDTH, EXPERTS, bias=False)
        if MODE == "local":
            self.experts = nn.ModuleList(Feed() for _ in range(EXPERTS // ways))
        else:
            self.experts = Feeds(EXPERTS)

    def forward(self, x):
        tokens = x.flatten(0, 1)
        weights, chosen = torch.topk(torch.softmax(self.gate(tokens), dim=-1), self.top_k)
        capacity = int(self.capacity_factor * tokens.shape[0] * self.top_k / EXPERTS)
        places = nn.functional.one_hot(chosen, EXPERTS)  # [tokens, top_k, experts]
        slots = (places.flatten(0, 1).cumsum(0).view_as(places) - 1).masked_fill(places == 0, capacity)
        sent = nn.functional.one_hot(slots.clamp(max=capacity), capacity + 1)[..., :capacity].float()
        dispatched = torch.einsum("tkec,td->ecd", sent, tokens).contiguous()
        here = self.exchange(dispatched)  # [ways * local experts, capacity, width]: from each rank, for own experts
        local = EXPERTS // self.ways
        grouped = here.unflatten(0, (self.ways, local)).transpose(0, 1).flatten(1, 2).contiguous()
        if MODE == "local":
            done = torch.stack([expert(part) for expert, part in zip(self.experts, grouped, strict=True)])
        else:
            done = self.experts(grouped)
        back = done.unflatten(1, (self.ways, capacity)).transpose(0, 1).flatten(0, 1).contiguous()
        returned = self.exchange(back)
        return x + torch.einsum("tkec,ecd,tk->td", sent, returned, weights).view_as(x)

    def exchange(self, x):
        return all_to_all_single_autograd(x, None, None, self.group)


class Model(nn.Module):
    def __init__(self, group, ways):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(SparseLayer(group, ways) for _ in range(2))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("planets", "moons"))
torch.manual_seed(0)
model = Model(mesh["moons"].get_group(), mesh["moons"].size())
if MODE == "distributed":
    for block in model.blocks:
        for name in ("up", "down"):
            whole = getattr(block.experts, name).detach()
            setattr(block.experts, name, nn.Parameter(distribute_tensor(whole, mesh["moons"], [Shard(0)])))
experts = {id(parameter) for block in model.blocks for parameter in block.experts.parameters()}
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
start = time.perf_counter()
for step in range(STEPS):
    torch.manual_seed(1000 * dist.get_rank() + step)  # each rank has a batch of its own
    tokens = torch.randint(VOCABULARY, (BATCH_SIZE, SEQ_LEN))
    nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
    for parameter in model.parameters():
        group = mesh["planets"].get_group() if id(parameter) in experts else None
        gradient = parameter.grad.to_local() if isinstance(parameter.grad, DTensor) else parameter.grad
        dist.all_reduce(gradient, group=group)
        gradient /= dist.get_world_size()
    optimizer.step()
    optimizer.zero_grad()
if dist.get_rank() == 0:
    print(f"wall {time.perf_counter() - start:.6f}")
dist.destroy_process_group()
