"""Samples of a forward, over drawn models: the batch first, second, packed, nested, or in rows of a graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data import DataLoader

from tests.recorder.bare import bare
from torchx_cubicml.recorder.steps.training import Training

if TYPE_CHECKING:
    from collections.abc import Callable

    Inputs = tuple[Any, ...]

WIDTH = 8
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # of torch, on such batches


class Net(nn.Module):
    """A model of a core between a first and a last layer; ``call`` runs the core."""

    def __init__(self, first: nn.Module, core: nn.Module, call: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.first, self.core, self.last, self.call = first, core, nn.Linear(WIDTH, 1), call

    def forward(self, x: Any, *others: Any) -> torch.Tensor:
        return self.last(self.call(self.core, self.first(x), *others))


def drawn_core(rng: np.random.Generator, *, batch_first: bool) -> tuple[nn.Module, Callable[..., torch.Tensor]]:
    kind = rng.choice(["lstm", "gru", "rnn", "attention", "encoder", "transformer"])
    if kind == "attention":
        return nn.MultiheadAttention(WIDTH, 2, batch_first=batch_first), lambda core, x: core(x, x, x)[0]
    if kind == "encoder":
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 16, batch_first=batch_first)
        return nn.TransformerEncoder(layer, 1, enable_nested_tensor=False), lambda core, x: core(x)
    if kind == "transformer":
        return nn.Transformer(WIDTH, 2, 1, 1, 16, batch_first=batch_first), lambda core, x: core(x, x)
    made = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}[str(kind)](WIDTH, WIDTH, batch_first=batch_first)
    return made, lambda core, x: core(x)[0]


class Drawn:
    """Sizes of one model, and what its inputs are made of."""

    def __init__(self, kind: str, number: int) -> None:
        self.number, self.rng = number, np.random.default_rng([len(kind), number])
        self.batch, self.length = int(self.rng.choice([1, 2, 3, 4, 8, 16, 32])), int(self.rng.choice([3, 5, 8, 16, 32]))
        self.requested = [None, self.batch, 2 * self.batch][int(self.rng.integers(3))]
        self.has_tokens = bool(self.rng.random() < 0.4)
        self.kept: Any = None  # alive as long as the model
        self.first: nn.Module = nn.Embedding(50, WIDTH) if self.has_tokens else nn.Linear(WIDTH, WIDTH)

    def sequences(self, *shape: int) -> Inputs:
        return (torch.randint(50, shape) if self.has_tokens else torch.randn(*shape, WIDTH),)

    def lists(self) -> list[torch.Tensor]:
        return [torch.randn(int(n), WIDTH) for n in self.rng.integers(1, self.length + 1, self.batch)]


def second(of: Drawn) -> tuple[nn.Module, Callable[[], Inputs]]:
    return Net(of.first, *drawn_core(of.rng, batch_first=False)), lambda: of.sequences(of.length, of.batch)


def turned_within(of: Drawn) -> tuple[nn.Module, Callable[[], Inputs]]:
    core, call = drawn_core(of.rng, batch_first=False)
    turned = lambda core, x: call(core, x.transpose(0, 1)).transpose(0, 1)  # noqa: E731
    return Net(of.first, core, turned), lambda: of.sequences(of.batch, of.length)


def first(of: Drawn) -> tuple[nn.Module, Callable[[], Inputs]]:
    return Net(of.first, *drawn_core(of.rng, batch_first=True)), lambda: of.sequences(of.batch, of.length)


def packed(of: Drawn) -> tuple[nn.Module, Callable[[], Inputs]]:
    net = Net(nn.Identity(), nn.LSTM(WIDTH, WIDTH), lambda core, x: core(x)[0].data)
    return net, lambda: (pack_sequence(of.lists(), enforce_sorted=False),)


def nested(of: Drawn) -> tuple[nn.Module, Callable[[], Inputs]]:
    layout = [torch.jagged, torch.strided][of.number % 2]
    pooled = lambda core, x: core(torch.cat([each.mean(0, keepdim=True) for each in x.unbind()]))  # noqa: E731
    net = Net(nn.Identity(), nn.Linear(WIDTH, WIDTH), pooled)
    return net, lambda: (torch.nested.nested_tensor(of.lists(), layout=layout),)


class Graphs:
    """A batch of graphs as PyG makes it: rows of all nodes, edges, the graph of each row, and perhaps its first row."""

    def __init__(self, sizes: list[int], *, has_bounds: bool) -> None:
        n_nodes, n_graphs = sum(sizes), len(sizes)
        self.x, self.edge_index = torch.randn(n_nodes, WIDTH), torch.randint(n_nodes, (2, 3 * n_nodes))
        self.batch = torch.arange(n_graphs).repeat_interleave(torch.tensor(sizes))
        if has_bounds:
            self.ptr = torch.tensor([0, *sizes]).cumsum(0)


class GraphNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1)

    def forward(self, *given: Any) -> torch.Tensor:
        x, edges, owner = (given[0].x, given[0].edge_index, given[0].batch) if len(given) == 1 else given
        gathered = torch.zeros(len(x), WIDTH).index_add(0, edges[1], self.first(x)[edges[0]])
        return self.last(torch.zeros(int(owner.max()) + 1, WIDTH).index_add(0, owner, gathered))


def graph(of: Drawn) -> tuple[nn.Module, Callable[[], Inputs]]:
    """A model that takes graphs as one object or as tensors; a loader yields them, or the object has their bounds."""
    is_object, has_loader = of.number % 2 == 0, of.number % 3 != 0
    sizes = [int(n) for n in of.rng.integers(3, 9, 3 * of.batch)]
    collate = lambda each: Graphs(each, has_bounds=not has_loader)  # noqa: E731
    of.kept = DataLoader(sizes, batch_size=of.batch, collate_fn=collate) if has_loader else None

    def inputs() -> Inputs:
        graphs = next(iter(of.kept or [collate(sizes[: of.batch])]))
        return (graphs,) if is_object else (graphs.x, graphs.edge_index, graphs.batch)

    return GraphNet(), inputs


def images(of: Drawn) -> tuple[nn.Module, Callable[[], Inputs]]:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 1))
    return net, lambda: (torch.randn(of.batch, 3, 8, 8),)


def rows(of: Drawn) -> tuple[nn.Module, Callable[[], Inputs]]:
    net = nn.Sequential(nn.Linear(WIDTH, 16), nn.ReLU(), nn.Linear(16, 1))
    return net, lambda: (torch.randn(of.batch, WIDTH),)


def recorded(kind: Callable[[Drawn], tuple[nn.Module, Callable[[], Inputs]]], number: int) -> tuple[float | None, int]:
    """Return the samples of a step as the recorder counts them, and those that it has."""
    torch.manual_seed(number)
    of = Drawn(kind.__name__, number)
    model, inputs = kind(of)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    training = Training(bare, world_size=1, requested={"micro_batch_size": of.requested} if of.requested else {})
    for _ in range(12):
        model(*inputs()).sum().backward()
        optimizer.step()
        training.step(optimizer)
        optimizer.zero_grad()
    samples, _ = training.work_of_this_rank()
    training.release()
    return samples, of.batch


@pytest.mark.parametrize(("kind", "count", "right"), [(second, 12, 10), (packed, 4, 4), (nested, 4, 4), (graph, 6, 5)])
def test_no_wrong_number_is_recorded_and_most_are_known(kind: Any, count: int, right: int) -> None:
    found = [recorded(kind, number) for number in range(count)]
    assert [pair for pair in found if pair[0] not in {None, pair[1]}] == []
    assert sum(samples is not None for samples, _ in found) >= right


@pytest.mark.parametrize(("kind", "count"), [(first, 8), (turned_within, 6), (images, 3), (rows, 4)])
def test_a_batch_that_comes_first_is_known(kind: Any, count: int) -> None:
    found = [recorded(kind, number) for number in range(count)]
    assert [pair for pair in found if pair[0] != pair[1]] == []
