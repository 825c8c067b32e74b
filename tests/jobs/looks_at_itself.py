"""Trains a little, and at several moments does to its model all that a script may do: says what each came to."""

import copy
import io
import pickle
import sys
import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

warnings.filterwarnings("ignore")


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(2))
        self.head = nn.Linear(8, 2)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def saved(model):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def wrapped(model):
    return DistributedDataParallel(copy.deepcopy(model))


def compiled_step(model):
    model = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(3, 8)).sum().backward()
    torch.compile(optimizer.step, backend="eager", fullgraph=True)()
    return model


def compiled_loss(model):
    @torch.compile(backend="eager", fullgraph=True)
    def loss(x):
        return model(x) * 2

    return loss


def per_sample(model):
    weights = {name: value.detach() for name, value in model.named_parameters()}

    def loss(weights, x):
        return torch.func.functional_call(model, weights, (x[None],)).sum()

    gradients = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(weights, torch.ones(3, 8))
    return lambda x: sum(value.sum() for value in gradients.values())


WAYS = {
    "jit.script": torch.jit.script,
    "jit.trace": lambda model: torch.jit.trace(model, torch.ones(3, 8)),
    "jit.script of a part": lambda model: torch.jit.script(model.blocks[0]),
    "export": lambda model: torch.export.export(model, (torch.ones(3, 8),)).module(),
    "fullgraph": lambda model: torch.compile(model, backend="eager", fullgraph=True),
    "fullgraph around": compiled_loss,
    "compiled step": compiled_step,
    "fx": torch.fx.symbolic_trace,
    "fx around": lambda model: torch.fx.symbolic_trace(nn.Sequential(model)),
    "deepcopy": copy.deepcopy,
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
    "save": saved,
    "ddp": wrapped,
    "func": per_sample,
    "eval": lambda model: copy.deepcopy(model).eval(),
}


def look(model, moment):
    shown = []
    for name, way in WAYS.items():
        try:
            seen = way(model)(torch.ones(3, 8)).sum().item()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is reported
            seen = f"{type(error).__name__}: {error}"
        shown.append(f"{moment} {name}: {seen}")
        torch._dynamo.reset()
    graphs = (torch.jit.trace(model, torch.ones(3, 8)).graph, torch.fx.symbolic_trace(nn.Sequential(model)).graph)
    sizes = [len(list(graph.nodes() if callable(graph.nodes) else graph.nodes)) for graph in graphs]
    print(*shown, f"{moment} {sizes} {list(model.state_dict())} {model}", sep="\n", flush=True)


def main():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    looks = [int(word) for word in sys.argv[1:]]
    for step in range(1, max(looks) + 1):
        model(torch.ones(3, 8)).sum().backward()
        if -step in looks:
            look(model, f"before step {step}")
        optimizer.step()
        optimizer.zero_grad()
        if step in looks:
            look(model, f"after step {step}")
    twin = pickle.loads(pickle.dumps(optimizer))
    print(type(twin).__name__, len(copy.deepcopy(optimizer).param_groups), list(optimizer.state_dict()))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
