from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from torchx_cubicml.recorder.model.kernels import attention_kernel

X = torch.randn(2, 4, 8, 16, requires_grad=True)


def eager() -> torch.Tensor:
    return torch.softmax(X @ X.transpose(-1, -2), -1) @ X


def math() -> torch.Tensor:
    with sdpa_kernel(SDPBackend.MATH):
        return functional.scaled_dot_product_attention(X, X, X)


class FlashAttnFunc(torch.autograd.Function):
    """Called as in the library of that name, of which the graph knows no more."""

    @staticmethod
    def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: object, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 2


@pytest.mark.parametrize(
    ("output", "kernel"),
    [
        (lambda: functional.scaled_dot_product_attention(X, X, X, is_causal=True), "sdpa_flash"),
        (math, "math"),
        (eager, "math"),
        (lambda: checkpoint(eager, use_reentrant=False), "math"),
        (lambda: checkpoint(lambda x: x * eager(), X, use_reentrant=True), ""),
        (lambda: FlashAttnFunc.apply(X), "flash_attention"),
        (
            lambda: FlashAttnFunc.apply(X) + functional.scaled_dot_product_attention(X, X, X),
            "flash_attention+sdpa_flash",
        ),
        (lambda: nn.Linear(16, 3)(X), ""),
        (lambda: torch.softmax(nn.Linear(16, 3)(X), -1), ""),
    ],
    ids=["flash", "math", "eager", "recomputed", "hidden", "library", "two", "none", "softmax alone"],
)
def test_the_kernel_shows_in_the_graph(output: object, kernel: str) -> None:
    node = output().sum().grad_fn
    assert attention_kernel(node, 1) == kernel


def test_one_softmax_is_not_the_attention_of_many_layers() -> None:
    assert attention_kernel(eager().grad_fn, 2) == ""
    assert attention_kernel((eager() + eager()).grad_fn, 2) == "math"
