from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
import torch
from torch.utils.data import DataLoader

from torchx_cubicml.recorder.model.batch import BatchReader, find_batch, loader_batch_size, mean_batch_size, output_node

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

TOKENS = torch.zeros(4, 16, dtype=torch.int64)
FLOATS = torch.zeros(4, 16)
IMAGES = torch.zeros(4, 3, 8, 8)
PACKED = torch.zeros(64, dtype=torch.int64)
SCALAR = torch.tensor(1.0)


@dataclass(slots=True)
class Samples:
    ids: list[torch.Tensor]
    mask: torch.Tensor | None = None


@pytest.mark.parametrize(
    ("args", "kwargs", "place", "size"),
    [
        ((TOKENS,), {}, (0,), (4, 64)),
        ((SCALAR, IMAGES), {}, (1,), (4, None)),
        ((FLOATS, TOKENS), {}, (0,), (4, None)),
        ((), {"attention_mask": FLOATS, "input_ids": TOKENS}, ("input_ids",), (4, 64)),
        (({"x": [FLOATS]},), {}, (0, "x", 0), (4, None)),
        (((None, TOKENS),), {"flag": True}, (0, 1), (4, 64)),
        ((torch.zeros(4, 1, dtype=torch.int64),), {}, (0,), (4, None)),
        ((PACKED, FLOATS), {}, (1,), (4, None)),
        ((Samples([TOKENS]),), {}, (0, ".ids", 0), (4, 64)),
        (({".ids": FLOATS, "x": IMAGES},), {}, (0, "x"), (4, None)),
    ],
    ids=[
        "tokens",
        "images",
        "floats first",
        "by name",
        "nested",
        "in a tuple",
        "one id each",
        "packed first",
        "in a dataclass",
        "a key like a field",
    ],
)
def test_the_batch_is_found(
    args: Sequence[object], kwargs: Mapping[str, object], place: tuple[int | str, ...], size: tuple[int, int | None]
) -> None:
    batch = find_batch(args, kwargs)
    assert batch is not None
    assert batch.path == place
    assert batch.read(args, kwargs) == size


@pytest.mark.parametrize(
    "args", [(), (PACKED,), (SCALAR, 3, "x"), (object(),)], ids=["none", "packed", "scalar", "other"]
)
def test_no_batch_is_made_up(args: Sequence[object]) -> None:
    assert find_batch(args, {}) is None


def test_the_graph_behind_a_dataclass_of_outputs_is_found() -> None:
    loss = torch.ones(2, requires_grad=True).sum()
    assert output_node(Samples([TOKENS], loss)) is loss.grad_fn
    assert output_node(Samples([TOKENS])) is None


@pytest.mark.parametrize("args", [(), ([TOKENS],), (None,), (SCALAR,)], ids=["gone", "moved", "none", "scalar"])
def test_a_batch_that_is_not_in_its_place_is_unknown(args: Sequence[object]) -> None:
    assert BatchReader(path=(0,), holds_tokens=True).read(args, {}) is None


@pytest.mark.parametrize(
    ("size", "tensor", "samples"),
    [
        (4, TOKENS, 4),
        (16, TOKENS, None),
        (12, TOKENS, 4),
        (7, TOKENS, None),
        (6, torch.zeros(16, 6, dtype=torch.int64), 6),
        (6, torch.zeros(16, 6, 3), 6),
        (1, torch.zeros(16, 1, 3), None),
        (3, IMAGES, None),
        (None, TOKENS, 4),
    ],
    ids=["first", "second or a part", "a part", "neither", "second", "second of 3", "one", "a channel", "unknown"],
)
def test_the_samples_are_where_a_known_batch_size_is(size: int | None, tensor: torch.Tensor, samples: int) -> None:
    batch = find_batch((tensor,), {})
    assert batch is not None
    found = batch.agreeing(size, (tensor,), {}).read((tensor,), {})
    assert found is not None
    assert found[0] == samples
    assert found[1] == (tensor.numel() if tensor.dtype == torch.int64 else None)


def test_agreeing_loaders_give_the_batch_size() -> None:
    assert loader_batch_size() is None
    first = DataLoader(list(range(12)), batch_size=3)
    assert loader_batch_size() == 3
    second = DataLoader(list(range(12)), batch_size=3)
    assert loader_batch_size() == 3
    third = DataLoader(list(range(12)), batch_size=4)
    assert loader_batch_size() is None
    del first, second, third


@dataclass(slots=True)
class Named:
    x: torch.Tensor
    input_ids: torch.Tensor | None = None
    tokens: torch.Tensor | None = None


@pytest.mark.parametrize(
    ("arguments", "path"),
    [
        ({"x": FLOATS, "input_ids": TOKENS}, ("input_ids",)),
        ({"x": FLOATS, "tokens": TOKENS}, ("tokens",)),
        ({"x": FLOATS, "tokens": TOKENS.int()}, ("tokens",)),
        ({"x": Named(FLOATS, input_ids=TOKENS)}, ("x", ".input_ids")),
        ({"x": Named(FLOATS, tokens=TOKENS)}, ("x", ".tokens")),
        ({"x": FLOATS, "tokens": TOKENS.short()}, ("x",)),
        ({"x": FLOATS, "tokens": TOKENS[:, :1]}, ("x",)),
        ({"x": FLOATS, "tokens": TOKENS[:, :2]}, ("tokens",)),
        ({"x": FLOATS, "tokens": IMAGES.long()}, ("x",)),
        ({"tokens": IMAGES, "input_ids": TOKENS}, ("input_ids",)),
    ],
)
def test_tokens_are_known_by_name_and_kind(arguments: dict[str, object], path: tuple[str, ...]) -> None:
    batch = find_batch((), arguments)
    assert batch is not None
    assert batch.path == path
    is_tokens = path[-1].lstrip(".") in {"tokens", "input_ids"}
    assert batch.holds_tokens is is_tokens
    samples, tokens = batch.read((), arguments)
    assert samples == 4
    assert (tokens is not None) is is_tokens


def test_one_number_for_each_sample_is_a_batch() -> None:
    batch = find_batch((torch.zeros(5),), {})
    assert batch == BatchReader(path=(0,), holds_tokens=False)
    assert batch.read((torch.zeros(7),), {}) == (7, None)


def test_batches_are_found_three_levels_deep() -> None:
    assert find_batch(([[FLOATS]],), {}).path == (0, 0, 0)
    assert find_batch(([[[FLOATS]]],), {}) is None
    assert find_batch((), {"x": {"y": (FLOATS,)}}).path == ("x", "y", 0)


def test_at_most_64_arguments_are_searched() -> None:
    assert find_batch((*[None] * 63, FLOATS), {}).path == (63,)
    assert find_batch((*[None] * 64, FLOATS), {}) is None


@pytest.mark.parametrize(
    ("shape", "sample_dim", "holds_tokens", "sizes"),
    [
        ((4, 16), 0, True, (4, 64)),
        ((4, 16), 1, True, (16, 64)),
        ((4, 16), None, True, (None, 64)),
        ((4,), 1, True, (None, None)),
        ((4, 16, 2), 0, True, (4, None)),
        ((4, 16), 0, False, (4, None)),
        ((), 0, True, None),
        (None, 0, True, None),
    ],
)
def test_sizes_of_a_shape(
    shape: tuple[int, ...], sample_dim: int | None, holds_tokens: bool, sizes: tuple[int | None, int | None] | None
) -> None:
    assert BatchReader(path=(0,), holds_tokens=holds_tokens, sample_dim=sample_dim).sizes(shape) == sizes


@pytest.mark.parametrize(
    ("shape", "size", "sample_dim"),
    [
        ((4, 16), 4, 0),
        ((4, 4), 4, 0),
        ((16, 4), 4, 1),
        ((3, 4, 9), 4, 1),
        ((3, 4, 9, 9), 4, None),
        ((3,), 4, None),
        ((2,), 4, 0),
        ((2, 4), 4, None),
        ((3, 1), 1, None),
        ((3, 2), 2, 1),
        ((0, 4), 4, 1),
        ((0, 3), 4, None),
        ((5, 3), None, 0),
    ],
)
def test_the_dimension_of_the_samples(shape: tuple[int, ...], size: int | None, sample_dim: int | None) -> None:
    batch = BatchReader(path=(0,), holds_tokens=False)
    assert batch.agreeing(size, (torch.zeros(shape),), {}).sample_dim == sample_dim


def test_a_batch_that_is_gone_agrees_with_any_size() -> None:
    batch = BatchReader(path=("x",), holds_tokens=False)
    assert batch.agreeing(3, (), {}) is batch


class Batches:
    def __init__(self, batch_size: object) -> None:
        self.batch_size = batch_size

    def __iter__(self) -> Iterator[list[int]]:
        yield [0]


@pytest.mark.parametrize(("size", "found"), [(6, 6), (1, 1), (0, None), (-1, None), ("6", None), (None, None)])
def test_a_sampler_of_batches_gives_their_size(size: object, found: int | None) -> None:
    loader = DataLoader([0], batch_sampler=Batches(size))
    assert loader_batch_size() == found
    del loader


def test_outputs_of_several_tensors_have_the_first_node() -> None:
    leaf = torch.ones(2, requires_grad=True)
    first, second = leaf * 2, leaf * 3
    assert output_node({"x": leaf, "y": [first, second]}) is first.grad_fn
    assert output_node((leaf, None, "x")) is None


@pytest.mark.parametrize(
    ("shape", "size", "requested", "dim"),
    [
        ((32, 4, 8), 4, None, 1),
        ((32, 4, 8), 4, 8, 1),
        ((32, 4), 4, 4, 1),
        ((4, 32, 8), 4, None, 0),
        ((4, 32, 8), 4, 32, 0),
        ((32, 4, 8), 4, 32, None),
        ((500, 1, 8), 1, None, None),
        ((500, 1, 8), 1, 1, 1),
        ((1, 16, 9, 3), 16, None, 0),
        ((4, 4, 8), 4, None, 0),
        ((32, 4, 8), 128, None, 0),
        ((32,), 32, None, 0),
    ],
)
def test_a_layer_that_takes_the_batch_second_shows_the_dimension(
    shape: tuple[int, ...], size: int, requested: int | None, dim: int | None
) -> None:
    batch = BatchReader(path=(0,), holds_tokens=False)
    assert batch.with_second(size, requested, shape).sample_dim == dim


IDS, ROWS, EDGES = torch.zeros(1, 64, dtype=torch.int64), torch.zeros(9, 8), torch.zeros(2, 30, dtype=torch.int64)


@pytest.mark.parametrize(
    ("args", "kwargs", "path"),
    [
        ((ROWS, EDGES), {}, None),
        ((ROWS, torch.eye(9).to_sparse()), {}, None),
        ((torch.eye(9, 5).to_sparse(),), {}, (0,)),
        ((), {"input_ids": IDS, "image_grid_thw": EDGES}, ("input_ids",)),
        ((ROWS[:2], EDGES), {}, (0,)),
        ((torch.zeros(8, 64, dtype=torch.int64), EDGES), {}, (0,)),
    ],
    ids=["edges", "adjacency", "sparse rows", "tokens and images", "two rows", "tokens and pairs"],
)
def test_rows_of_a_graph_are_no_batch(
    args: Sequence[object], kwargs: Mapping[str, object], path: tuple[int | str, ...] | None
) -> None:
    batch = find_batch(args, kwargs)
    assert (batch and batch.path) == path


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.jagged, torch.strided])
def test_nested_token_ids_have_samples_alone(layout: torch.layout) -> None:
    ids = [torch.zeros(n, dtype=torch.int64) for n in (3, 5)]
    batch = find_batch((torch.nested.nested_tensor(ids, layout=layout),), {})
    assert batch is not None
    assert batch.read((torch.nested.nested_tensor([*ids, *ids], layout=layout),), {}) == (4, None)


class Graphs:
    def __init__(self, bounds: torch.Tensor | None) -> None:
        self.x, self.edge_index, self.ptr = ROWS, EDGES, bounds


def test_a_batch_of_graphs_tells_its_samples_where_it_tells_their_bounds() -> None:
    batch = find_batch((Graphs(torch.tensor([0, 4, 9])),), {})
    assert batch is not None
    assert batch.read((Graphs(torch.tensor([0, 3, 5, 9])),), {}) == (3, None)
    assert batch.agreeing(3, (Graphs(torch.tensor([0, 4, 9])),), {}) is batch
    assert batch.read((ROWS,), {}) is None
    assert find_batch((Graphs(None),), {}) is None


def test_the_mean_of_a_loaders_batches_has_the_smaller_last_one() -> None:
    assert mean_batch_size(None) is None
    assert mean_batch_size(4) == 4
    loader = DataLoader(list(range(10)), batch_size=4)
    short = DataLoader(list(range(5)), batch_size=4)
    assert mean_batch_size(4) == pytest.approx(10 / 3)
    loader = DataLoader(list(range(10)), batch_size=4, drop_last=True)
    del short
    assert mean_batch_size(4) == 4
    loader = DataLoader([0] * 12, batch_sampler=Batches(4))  # tells no length
    assert mean_batch_size(4) == 4
    del loader
