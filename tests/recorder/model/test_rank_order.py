"""Orders of axes, as ranks on them tell."""

from __future__ import annotations

from itertools import permutations

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from tests.recorder.model.fake_ranks import fake_ranks
from torchx_cubicml.recorder.model.mesh import read_layout
from torchx_cubicml.recorder.model.rank_order import axis_order, flat


@pytest.mark.parametrize("order", list(permutations(range(3))), ids=str)
def test_each_order_of_axes_is_told_by_the_ranks(order: tuple[int, ...]) -> None:
    sizes = (2, 3, 4)
    ranks = torch.arange(24).view([sizes[axis] for axis in order])
    ranks = ranks.permute([order.index(axis) for axis in range(3)])
    assert axis_order(*flat(ranks)) == order
    assert axis_order(*flat(ranks * 2 + 5)) == order


@pytest.mark.parametrize(
    ("ranks", "order"),
    [
        ([[[0], [2]], [[1], [3]]], (1, 0, 2)),
        ([[0, 1, 2, 3]], (0, 1)),
        ([0, 1, 2], (0,)),
        ([[0, 1], [3, 2]], ()),
        ([[3, 2], [1, 0]], ()),
        ([[0, 1, 3], [2, 4, 5]], ()),
        ([[0, 1], [2]], ()),
        ([[0, 1], 2], ()),
        (None, ()),
    ],
    ids=str,
)
def test_an_order_that_is_not_certain_is_empty(ranks: object, order: tuple[int, ...]) -> None:
    assert axis_order(*flat(ranks)) == order


def test_the_order_of_the_widest_mesh_is_a_fact() -> None:
    with fake_ranks(4):
        permuted = DeviceMesh("cpu", [[0, 2], [1, 3]], mesh_dim_names=("fsdp", "model"))
        facts = read_layout(torch.nn.Linear(1, 1), other_meshes=[permuted["model"]]).facts()
        assert (facts["mesh"], facts["mesh_order"]) == ("fsdp=2,model=2", "tp,dp_shard")
        del permuted
    with fake_ranks(4):
        flat_mesh = init_device_mesh("cpu", (1, 4), mesh_dim_names=("x", "tp"))
        facts = read_layout(torch.nn.Linear(1, 1), other_meshes=[flat_mesh]).facts()
        assert facts["mesh"] == "x=1,tp=4"
        assert "mesh_order" not in facts
