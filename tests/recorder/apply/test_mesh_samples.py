from __future__ import annotations

import pytest
import torch
from torch import nn

from torchx_cubicml.recorder.apply.mesh_samples import MeshSamples, mismatch


class Store:
    """Ranks of a job that share one dictionary."""

    def __init__(self, world_size: int) -> None:
        self.world_size, self.rank = world_size, 0
        self.posts: dict[str, str] = {}

    def post(self, name: str, value: str) -> None:
        self.posts[name] = value

    def ask(self, name: str, *, within_s: float) -> str:
        return self.posts.get(name, "")


class Mesh:
    def __init__(
        self, shape: tuple[int, ...], place: list[int] | None, names: tuple[str, ...] = ("fsdp", "tp")
    ) -> None:
        self.mesh_dim_names, self.shape, self.place = names, shape, place

    def get_coordinate(self) -> list[int] | None:
        return self.place


def trained(store: Store, shape: tuple[int, int], samples: list[float]) -> str:
    """Return the verdict on a job whose ranks train on the samples, rank by rank."""
    models = []
    for rank, sample in enumerate(samples):
        store.rank = rank
        models.append(MeshSamples(store, lambda call: call))
        models[-1].watch(Mesh(shape, [rank // shape[1], rank % shape[1]]))
        model = nn.Sequential(nn.Linear(2, 2))
        with torch.no_grad():
            model(torch.zeros(1, 2))
        model.eval()(torch.zeros(1, 2))
        model.train()(torch.full((1, 2), sample))
        model(torch.full((1, 2), 9.0))
    store.rank = 0
    return models[0].mismatch()


@pytest.mark.parametrize(
    ("shape", "samples", "why"),
    [
        ((2, 2), [1.0, 1.0, 2.0, 2.0], ""),
        ((4, 1), [1.0, 2.0, 3.0, 4.0], ""),
        ((4, 1), [1.0, 1.0, 1.0, 1.0], ""),  # a benchmark with one batch for all
        ((2, 2), [1.0, 2.0, 1.0, 2.0], "ranks of one data-parallel coordinate train on different samples"),
        ((4, 1), [1.0, 1.0, 2.0, 2.0], "data-parallel ranks train on the same samples"),
    ],
)
def test_the_first_training_inputs_tell(shape: tuple[int, int], samples: list[float], why: str) -> None:
    assert why in trained(Store(4), shape, samples)
    assert bool(trained(Store(4), shape, samples)) == bool(why)


def test_an_unknown_input_tells_nothing() -> None:
    assert trained(Store(5), (2, 2), [1.0, 2.0, 1.0, 2.0]) == ""


@pytest.mark.parametrize(
    "mesh",
    [Mesh((2, 2), [0, 0], ("cp", "tp")), Mesh((2, 2), [0, 0], ("pp", "dp")), Mesh((2, 2), None)],
    ids=["context", "pipeline", "elsewhere"],
)
def test_ranks_with_parts_of_a_sample_are_not_compared(mesh: Mesh) -> None:
    store = Store(1)
    samples = MeshSamples(store, lambda call: call)
    samples.watch(mesh)
    nn.Linear(2, 2)(torch.ones(1, 2))
    assert (store.posts, samples.mismatch()) == ({}, "")
    samples.release()


def test_all_samples_alike_tell_nothing() -> None:
    assert mismatch([("0", "a"), ("1", "a"), ("2", "a")]) == ""
