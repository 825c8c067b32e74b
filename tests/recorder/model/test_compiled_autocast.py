"""Autocast that a compiled forward enters itself, read from the graphs that the compiler traced."""

from __future__ import annotations

import gc
from contextlib import nullcontext

import pytest
import torch
from torch import nn

from torchx_cubicml.recorder.model.compiled_autocast import compiled_autocast_type

BF16, FP16 = torch.bfloat16, torch.float16


class Model(nn.Module):
    """Two layers, each within contexts of its own, the outer one first."""

    def __init__(self, *contexts: tuple[object, ...]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in contexts)
        self.contexts = contexts

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer, (outer, inner) in zip(self.layers, self.contexts, strict=True):
            with outer, inner:
                x = layer(x)
        return x.float()


def autocast(dtype: torch.dtype | None = None, *, enabled: bool = True, device: str = "cpu") -> torch.autocast:
    return torch.autocast(device, dtype, enabled=enabled)


PLAIN = nullcontext()


@pytest.mark.parametrize(
    ("contexts", "found"),
    [
        ([(PLAIN, PLAIN), (PLAIN, PLAIN)], ""),
        ([(autocast(BF16), PLAIN), (autocast(BF16), PLAIN)], "torch.bfloat16"),
        ([(PLAIN, PLAIN), (autocast(), PLAIN), (autocast(), PLAIN)], "torch.bfloat16"),
        ([(autocast(BF16, enabled=False), PLAIN)], ""),
        ([(autocast(BF16), autocast(enabled=False))], ""),
        ([(PLAIN, PLAIN), (PLAIN, PLAIN), (autocast(BF16), PLAIN)], ""),
        ([(autocast(BF16), PLAIN), (autocast(FP16), PLAIN), (autocast(FP16), PLAIN)], "torch.float16"),
    ],
    ids=["none", "all", "default", "off", "off within", "the head alone", "two"],
)
def test_the_format_is_that_of_most_products(contexts: list[tuple[object, ...]], found: str) -> None:
    torch._dynamo.reset()
    gc.collect()  # the graphs of other tests
    model = Model(*contexts)
    assert compiled_autocast_type(model) == ""
    graphs: list[object] = []  # kept alive

    def backend(module: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> object:
        graphs.append(module)
        return module.forward

    torch.compile(model, backend=backend)(torch.randn(2, 4))
    assert graphs
    assert compiled_autocast_type(model) == found
