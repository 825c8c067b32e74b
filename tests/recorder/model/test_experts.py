"""Layers of experts are found by their structure, and nothing else is taken for one."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.recorder.model.experts_model import HIDDEN, WIDTH, Bank, Feed, SparseModel
from torchx_cubicml.recorder.model.experts import find_expert_layers


class Scores(nn.Module):
    """Router whose weight is no linear layer."""

    def __init__(self, n_experts: int, *, is_turned: bool = False) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.zeros(WIDTH, n_experts) if is_turned else torch.zeros(n_experts, WIDTH))


def layer(router: nn.Module, **others: nn.Module) -> nn.ModuleDict:
    return nn.ModuleDict({"router": router, **others})


def counts(root: nn.Module) -> list[tuple[int, int, int]]:
    return [(found.n_experts, found.n_held, found.degree) for found in find_expert_layers(root)]


def test_grouped_experts_need_no_name() -> None:
    model = SparseModel(n_experts=6, n_layers=3)
    assert counts(model) == [(6, 6, 1)] * 3
    (first, *_) = find_expert_layers(model)
    assert (first.outer, first.router, first.experts) == (
        model.blocks[0],
        model.blocks[0].scores,
        model.blocks[0].bank,
    )
    assert [tuple(each.shape) for each in first.parameters()] == [(6, WIDTH, HIDDEN), (6, HIDDEN, WIDTH)]


@pytest.mark.parametrize("is_turned", [False, True])
def test_a_router_may_be_a_plain_matrix(is_turned: bool) -> None:
    assert counts(layer(Scores(4, is_turned=is_turned), bank=Bank(4))) == [(4, 4, 1)]


def test_a_list_of_experts_in_each_layer() -> None:
    blocks = [layer(nn.Linear(WIDTH, 4), each=nn.ModuleList(Feed() for _ in range(4))) for _ in range(2)]
    assert counts(nn.ModuleList(blocks)) == [(4, 4, 1)] * 2
    named = layer(nn.Linear(WIDTH, 4), experts=nn.ModuleList(Feed() for _ in range(4)))
    assert counts(named) == [(4, 4, 1)]


def test_experts_of_this_rank_alone() -> None:
    assert counts(layer(nn.Linear(WIDTH, 8), experts=nn.ModuleList(Feed() for _ in range(2)))) == [(8, 2, 4)]
    assert counts(layer(nn.Linear(WIDTH, 8), experts=Bank(4))) == [(8, 4, 2)]
    stated = nn.ModuleDict({"scores": nn.Linear(WIDTH, 8), "experts": Bank(1)})
    stated.num_experts = 8
    assert counts(stated) == [(8, 1, 8)]


def test_a_shared_expert_beside_them_is_no_router() -> None:
    made = layer(nn.Linear(WIDTH, 8), experts=Bank(4), shared=Feed())
    assert HIDDEN % 4 == 0
    assert counts(made) == [(8, 4, 2)]


@pytest.mark.parametrize(
    "made",
    [
        nn.Sequential(nn.Conv1d(4, 8, 3), nn.Linear(8, 4)),
        nn.ModuleDict({"layers": nn.ModuleList(Feed() for _ in range(4)), "head": nn.Linear(WIDTH, 4)}),
        nn.ModuleDict({"layers": nn.ModuleList(Feed() for _ in range(2)), "head": nn.Linear(WIDTH, 32)}),
        nn.ModuleDict({"bank": Bank(4), "out": nn.Linear(WIDTH, WIDTH)}),
        nn.ModuleDict({"experts": Bank(4), "table": nn.Embedding(4, WIDTH)}),
        nn.ModuleDict({"experts": nn.ModuleList([Feed(), nn.Linear(WIDTH, WIDTH)]), "gate": nn.Linear(WIDTH, 2)}),
        nn.ModuleDict({"experts": nn.ModuleList(), "gate": nn.Linear(WIDTH, 2)}),
        nn.Linear(WIDTH, WIDTH),
    ],
    ids=["convolution", "classes as layers", "classes", "heads", "table", "two classes", "no experts", "dense"],
)
def test_other_models_have_no_experts(made: nn.Module) -> None:
    assert find_expert_layers(made) == []


def test_two_routers_that_disagree_hide_the_layer() -> None:
    made = nn.ModuleDict({"gate": nn.Linear(WIDTH, 4), "router": nn.Linear(WIDTH, 8), "experts": Bank(2)})
    assert find_expert_layers(made) == []
