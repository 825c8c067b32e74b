from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
import torch
from torch.utils.data import DataLoader

from torchx_cubicml.recorder.model.batch import BatchReader, find_batch, loader_batch_size, output_node

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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


def test_a_loader_gives_the_batch_size_where_all_loaders_agree() -> None:
    assert loader_batch_size() is None
    first = DataLoader(list(range(12)), batch_size=3)
    assert loader_batch_size() == 3
    second = DataLoader(list(range(12)), batch_size=3)
    assert loader_batch_size() == 3
    third = DataLoader(list(range(12)), batch_size=4)
    assert loader_batch_size() is None
    del first, second, third
