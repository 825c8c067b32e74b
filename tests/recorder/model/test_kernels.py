from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from torchx_cubicml.recorder.model.kernels import attention_kernel, compile_facts, is_compiled

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


class Node:
    """A node of an autograd graph."""

    def __init__(self, name: str, *following: Node | None) -> None:
        self._name = name
        self.next_functions = tuple((each, 0) for each in following)

    def name(self) -> str:
        return self._name


@pytest.mark.parametrize(
    ("name", "kernel"),
    [
        ("ScaledDotProductFlashAttentionBackward0", "sdpa_flash"),
        ("ScaledDotProductFlashAttentionForCpuBackward0", "sdpa_flash"),
        ("ScaledDotProductEfficientAttentionBackward0", "sdpa_efficient"),
        ("ScaledDotProductCudnnAttentionBackward0", "sdpa_cudnn"),
        ("ScaledDotProductFusedAttentionOverrideableBackward0", "sdpa_overrideable"),
        ("FlexAttentionAutogradOpBackward", "flex_attention"),
        ("FlashAttnFuncBackward", "flash_attention"),
        ("_fMHABackward", "xformers"),
        ("fmhaBackward", "xformers"),
        ("_memory_efficient_attentionBackward", "xformers"),
        ("FusedAttnFuncBackward", "transformer_engine"),
        ("torch::autograd::FlashAttnFuncBackward", "flash_attention"),
        ("MyFlashAttnBackward", ""),
        ("AddBackward0", ""),
    ],
)
def test_kernels_are_known_by_their_nodes(name: str, kernel: str) -> None:
    assert attention_kernel(Node("SumBackward0", None, Node("AddBackward0", Node(name))), 1) == kernel


def test_several_kernels_are_joined_in_order() -> None:
    nodes = [Node(name) for name in ("FlexAttention", "FlashAttn", "FlashAttn")]
    assert attention_kernel(Node("x", *nodes), 9) == "flash_attention+flex_attention"


@pytest.mark.parametrize(
    ("names", "n_layers", "kernel"),
    [
        (["SoftmaxBackward0", "BmmBackward0", "BmmBackward0"], 1, "math"),
        (["SafeSoftmaxBackward0", "MatmulBackward0", "BmmBackward0"], 1, "math"),
        (["SoftmaxBackward0", "BmmBackward0"], 1, ""),
        (["BmmBackward0", "BmmBackward0"], 1, ""),
        (["SoftmaxBackward0", "BmmBackward0", "BmmBackward0"], 0, ""),
        (["SoftmaxBackward0", "BmmBackward0", "BmmBackward0"], 2, ""),
        (["SoftmaxBackward0"] * 2 + ["BmmBackward0"] * 4, 2, "math"),
        (["SoftmaxBackward0"] * 2 + ["BmmBackward0"] * 3, 2, ""),
        (["LogSoftmaxBackward0", "BmmBackward0", "BmmBackward0"], 1, ""),
        (["SoftmaxBackward0", "AddbmmBackward0", "BmmBackward0"], 1, ""),
        (["SoftmaxBackward0", "BmmBackward0", "BmmBackward0", "FlashAttn"], 1, "flash_attention"),
    ],
)
def test_plain_attention_is_two_products_around_a_softmax(names: list[str], n_layers: int, kernel: str) -> None:
    assert attention_kernel(Node("x", *map(Node, names)), n_layers) == kernel


def test_a_shared_node_counts_once_and_a_large_graph_is_cut() -> None:
    shared, product = Node("SoftmaxBackward0"), Node("BmmBackward0")
    assert attention_kernel(Node("x", shared, shared, product, product), 1) == ""
    near, far = ([Node("x") for _ in range(count)] for count in (19_000, 20_100))
    assert attention_kernel(Node("x", *near, Node("FlashAttn")), 1) == "flash_attention"
    assert attention_kernel(Node("x", Node("x", *far), Node("x", Node("FlashAttn"))), 1) == ""


@pytest.mark.parametrize(
    ("options", "mode"),
    [
        ({}, "default"),
        ({"triton.cudagraphs": True}, "reduce-overhead"),
        ({"max_autotune": True, "triton.cudagraphs": True}, "max-autotune"),
        ({"max_autotune": True}, "max-autotune-no-cudagraphs"),
        (None, None),
    ],
)
def test_modes_by_the_options_of_the_compiler(options: dict[str, bool] | None, mode: str | None) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    vars(model[0])["_compiled_call_impl"] = SimpleNamespace(get_compiler_config=lambda: options)
    assert compile_facts(model).get("compile_mode") == mode
    vars(model[1])["_compiled_call_impl"] = SimpleNamespace(get_compiler_config=lambda: {"max_autotune": True})
    expected = mode if mode in {None, "max-autotune-no-cudagraphs"} else None
    assert compile_facts(model).get("compile_mode") == (
        expected if options is not None else "max-autotune-no-cudagraphs"
    )


def test_a_compiler_that_fails_to_answer_has_no_mode() -> None:
    def fail() -> None:
        raise RuntimeError

    model = nn.Linear(2, 2)
    vars(model)["_compiled_call_impl"] = SimpleNamespace(get_compiler_config=fail)
    assert compile_facts(model) == {"compile": True}
    around = SimpleNamespace(of_torchx_cubicml_around=SimpleNamespace(get_compiler_config=dict))
    vars(model)["_compiled_call_impl"] = around
    assert compile_facts(model) == {"compile": True, "compile_mode": "default"}


def test_compiled_functions_show_in_the_counters(monkeypatch: pytest.MonkeyPatch) -> None:
    dynamo = ModuleType("torch._dynamo.utils")
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", dynamo)
    for counters, is_seen in (
        ({}, False),
        ({"stats": {}}, False),
        ({"stats": {"unique_graphs": 0}}, False),
        ({"stats": {"unique_graphs": 2}}, True),
    ):
        dynamo.counters = counters
        assert is_compiled(nn.Linear(2, 2)) is is_seen
    del dynamo.counters
    assert is_compiled(nn.Linear(2, 2)) is False
