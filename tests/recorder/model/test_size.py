from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from torchx_cubicml.recorder.model.size import (
    count_float8_modules,
    count_parameters,
    device_kind,
    parameter_format,
    read_widths,
    short_format,
)


def test_parameters_are_counted_once_and_trained_ones_apart() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4, bias=False))
    model[1].weight = model[0].weight
    model[0].bias.requires_grad_(False)
    assert count_parameters(model) == (20, 16)


def test_the_format_is_that_of_most_parameters() -> None:
    model = nn.Sequential(nn.Linear(8, 8).bfloat16(), nn.LayerNorm(8))
    assert parameter_format(model) == "bf16"
    assert parameter_format(nn.ReLU()) == ""


def test_the_kind_of_device() -> None:
    assert device_kind(nn.Linear(2, 2)) == "cpu"
    assert device_kind(nn.Linear(2, 2, device=torch.device("meta"))) == "meta"
    assert device_kind(nn.ReLU()) == ""


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        (torch.float32, "fp32"),
        (torch.bfloat16, "bf16"),
        (torch.float16, "fp16"),
        (torch.float64, "fp64"),
        (torch.float8_e4m3fn, "fp8_e4m3"),
        (torch.float8_e5m2, "fp8_e5m2"),
        (torch.complex64, "complex64"),
    ],
)
def test_short_names_of_number_formats(dtype: torch.dtype, name: str) -> None:
    assert short_format(str(dtype)) == name


def test_empty_parameters_have_a_format_too() -> None:
    model = nn.ParameterList([torch.zeros(0, dtype=torch.float64), torch.zeros(3)])
    assert parameter_format(model) == "fp32"
    assert parameter_format(nn.ParameterList([torch.zeros(0, dtype=torch.float64)])) == "fp64"
    assert parameter_format(nn.ParameterList([torch.zeros(0).double(), torch.zeros(0).double(), torch.zeros(1)])) == (
        "fp64"
    )


class Flattened(nn.Module):
    """FSDP1's wrapper, which leaves this rank a shard of one flat parameter."""

    def __init__(self, **facts: object) -> None:
        super().__init__()
        flat = nn.Parameter(torch.zeros(5))
        vars(flat).update(facts)
        self.flat = flat
        vars(self)["_handle"] = SimpleNamespace(flat_param=flat)


def test_flattened_parameters_count_by_their_shapes() -> None:
    model = nn.Sequential(Flattened(_shapes=[(4, 3), (2,)]), nn.Linear(2, 2))
    assert count_parameters(model) == (14 + 6, 14 + 6)
    model[0].flat.requires_grad_(False)
    assert count_parameters(model) == (20, 6)


def test_flattened_parameters_may_keep_their_originals() -> None:
    originals = [nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(1), requires_grad=False)]
    model = nn.Sequential(Flattened(_shapes=[(4, 3), (2,)], _params=originals), nn.Linear(2, 2))
    model.originals = nn.ParameterList(originals)
    assert count_parameters(model) == (20, 12 + 6)


def test_flattened_parameters_of_unknown_shapes_are_not_counted() -> None:
    assert count_parameters(nn.Sequential(nn.Linear(2, 2), Flattened())) == (None, None)


def test_a_wrapper_that_forwards_attributes_counts_once() -> None:
    class Forwarding(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def __getattr__(self, name: str) -> object:
            return getattr(super().__getattr__("inner"), name)

    assert count_parameters(nn.Sequential(Forwarding(Flattened(_shapes=[(4, 3)])))) == (12, 12)


def test_a_shard_of_float8_weights_is_known() -> None:
    class Float8Shard(torch.Tensor):
        pass

    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[0].weight._local_tensor = torch.zeros(2).as_subclass(Float8Shard)
    assert count_float8_modules(model) == 1


@pytest.mark.parametrize(
    ("attributes", "heads"),
    [
        ({}, {}),
        ({"n_kv_heads": 2}, {}),
        ({"num_heads": 8}, {"n_heads": 8}),
        ({"num_heads": 8, "n_kv_heads": 2}, {"n_heads": 8, "n_kv_heads": 2}),
        ({"num_heads": True, "n_head": 4}, {"n_heads": 4}),
        ({"num_heads": 0}, {}),
        ({"num_heads": 1}, {"n_heads": 1}),
    ],
)
def test_heads_are_read_from_a_layer(attributes: dict[str, object], heads: dict[str, int]) -> None:
    blocks = nn.ModuleList(nn.Sequential(nn.Linear(4, 4)) for _ in range(2))
    vars(blocks[0]).update(attributes)
    facts = read_widths(nn.Sequential(nn.Embedding(9, 4), blocks))
    assert {name: count for name, count in facts.items() if name.endswith("heads")} == heads
