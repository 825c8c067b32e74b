"""Heads of transformers in many styles, none of which names them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from tests.recorder.model.transformers import CALLS, N_SAMPLES, N_WORDS, PROJECTIONS, SEQUENCE, Style, Transformer, draw
from torchx_cubicml.recorder.model.heads import Attention, attention_calls, head_counts
from torchx_cubicml.recorder.model.operations import Operation, compiled_operations, differentiated_operations

if TYPE_CHECKING:
    from collections.abc import Callable

STYLE = Style(
    heads=4, kv_heads=2, head_width=8, width=32, call="sdpa", projection="separate", position="halves", layers=2
)


def tokens() -> torch.Tensor:
    return torch.randint(0, N_WORDS, (N_SAMPLES, SEQUENCE), generator=torch.Generator().manual_seed(0))


def heads_of(output: torch.Tensor, tp_degree: int | None = 1) -> dict[str, int]:
    return head_counts(attention_calls(differentiated_operations(output.grad_fn)), tp_degree=tp_degree)


def test_forty_random_transformers_have_their_heads() -> None:
    rng = np.random.default_rng(0)
    styles = [draw(rng) for _ in range(40)]
    found = [heads_of(Transformer(style)(tokens())) for style in styles]
    assert found == [{"n_heads": style.heads, "n_kv_heads": style.kv_heads} for style in styles]


@settings(max_examples=25)
@given(seed=st.integers(0, 10**9))
def test_no_random_transformer_has_wrong_heads(seed: int) -> None:
    style = draw(np.random.default_rng(seed))
    found = heads_of(Transformer(style)(tokens()))
    assert found == {"n_heads": style.heads, "n_kv_heads": style.kv_heads}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("projection", PROJECTIONS)
def test_every_call_with_every_projection(call: str, projection: str) -> None:
    style = replace(STYLE, call=call, projection=projection, layers=1)
    assert heads_of(Transformer(style)(tokens())) == {"n_heads": 4, "n_kv_heads": 2}


class Encoder(nn.Module):
    """A model of torch's own layers, called in the manner of ``call``."""

    def __init__(self, call: Callable[[nn.MultiheadAttention, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(32, 4, batch_first=True)
        self.call = call

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.call(self.attention, x)


@pytest.mark.parametrize(
    "model",
    [
        Encoder(lambda attention, x: attention(x, x, x)[0]),
        Encoder(lambda attention, x: attention(x, x, x, need_weights=False)[0]),
        nn.TransformerEncoderLayer(32, 4, 64, batch_first=True),
        nn.TransformerEncoderLayer(32, 4, 64, batch_first=False),
        nn.Transformer(32, 4, 1, 1, 64, batch_first=True),
    ],
    ids=["weights", "fast path", "encoder", "sequence first", "encoder and decoder"],
)
def test_torch_own_attention(model: nn.Module) -> None:
    x = torch.randn(3, 12, 32)
    output = model(x, x) if isinstance(model, nn.Transformer) else model(x)
    assert heads_of(output) == {"n_heads": 4, "n_kv_heads": 4}


def test_recomputed_layers_are_not_recomputed_for_their_heads() -> None:
    layer, calls = Transformer(STYLE).stack[0], []

    def run(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return layer(x, x)

    output = checkpoint(run, torch.randn(3, 12, 32, requires_grad=True), use_reentrant=False)
    assert heads_of(output) == {"n_heads": 4, "n_kv_heads": 2}
    assert len(calls) == 1


def test_reading_changes_no_gradient() -> None:
    def gradients(*, read: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = Transformer(STYLE)
        output = model(tokens())
        if read:
            assert heads_of(output)
        output.sum().backward()
        return [each.grad for each in model.parameters() if each.grad is not None]

    plain, read = gradients(read=False), gradients(read=True)
    assert all(torch.equal(one, other) for one, other in zip(plain, read, strict=True))


def test_frozen_weights_with_adapters() -> None:
    model = Transformer(STYLE)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    for block in model.stack:
        inner = block.mixing.b
        low, high = nn.Linear(32, 3, bias=False), nn.Linear(3, 16, bias=False)
        block.mixing.b = Adapted(inner, low, high)
        block.mixing.a, block.mixing.c = (
            Adapted(block.mixing.a, low, nn.Linear(3, 32)),
            Adapted(block.mixing.c, low, nn.Linear(3, 16)),
        )
    assert heads_of(model(tokens())) == {"n_heads": 4, "n_kv_heads": 2}


class Adapted(nn.Module):
    """A linear layer with a low-rank addition (LoRA)."""

    def __init__(self, inner: nn.Module, low: nn.Module, high: nn.Module) -> None:
        super().__init__()
        self.inner, self.low, self.high = inner, low, high

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) + self.high(self.low(x))


def _attend(x: torch.Tensor, out: nn.Module, heads: int) -> torch.Tensor:
    q = x.unflatten(-1, (heads, -1)).transpose(1, 2)
    return out(functional.scaled_dot_product_attention(q, q, q).transpose(1, 2).flatten(2))


X = torch.randn(3, 12, 32, requires_grad=True)
OUT, ROUTER = nn.Linear(32, 32), nn.Linear(32, 5)


def _as_if_flash(x: torch.Tensor) -> torch.Tensor:
    q = x.unflatten(-1, (4, 8))
    return OUT(functional.scaled_dot_product_attention(q, q, q).flatten(2))  # attends over the heads by mistake


def _samples_in_heads(x: torch.Tensor) -> torch.Tensor:
    q = x.unflatten(-1, (4, 8)).transpose(1, 2).flatten(0, 1)[None]
    mixed = functional.scaled_dot_product_attention(q, q, q)[0].unflatten(0, (3, 4))
    return OUT(mixed.transpose(1, 2).flatten(2))


@pytest.mark.parametrize(
    "output",
    [
        lambda: _attend(_attend(X, OUT, 4), OUT, 8),
        lambda: _as_if_flash(X),
        lambda: _samples_in_heads(X),
        lambda: OUT(X),
        lambda: OUT(X * ROUTER(X).softmax(-1)[..., :1]),
        lambda: ROUTER(X).softmax(-1),
        lambda: functional.scaled_dot_product_attention(X[:, None], X[:, None], X[:, None]),
    ],
    ids=["two counts", "wrong layout", "samples in heads", "none", "router", "output", "no projection"],
)
def test_uncertain_heads_are_left_out(output: Callable[[], torch.Tensor]) -> None:
    assert heads_of(output()) == {}


def test_a_router_beside_attention_does_not_matter() -> None:
    gate = ROUTER(X).softmax(-1)[..., :1]
    assert heads_of(_attend(X, OUT, 4) * gate) == {"n_heads": 4, "n_kv_heads": 4}


def test_keys_without_gradients_have_no_count() -> None:
    keys = X.detach().unflatten(-1, (4, 8)).transpose(1, 2)
    q = X.unflatten(-1, (4, 8)).transpose(1, 2)
    mixed = functional.scaled_dot_product_attention(q, keys, keys).transpose(1, 2).flatten(2)
    assert heads_of(OUT(mixed)) == {"n_heads": 4}


LOCAL = Attention(heads=4, kv_heads=2, head_width=8, merged=32, width=64)


@pytest.mark.parametrize(
    ("call", "tp_degree", "heads"),
    [
        (LOCAL, 1, {"n_heads": 4, "n_kv_heads": 2}),  # heads narrower than the model
        (LOCAL, 2, {"n_heads": 8}),  # a rank may hold copies of the keys
        (replace(LOCAL, merged=64), 2, {"n_heads": 8}),
        (replace(LOCAL, merged=64, kv_projected=32), 2, {"n_heads": 8, "n_kv_heads": 4}),
        (replace(LOCAL, merged=64, kv_projected=16), 2, {"n_heads": 8}),
        (replace(LOCAL, width=32), 2, {"n_heads": 4, "n_kv_heads": 2}),  # all ranks attend with all heads
        (replace(LOCAL, width=32), None, {"n_heads": 4, "n_kv_heads": 2}),
        (LOCAL, None, {}),
        (LOCAL, 4, {}),
        (replace(LOCAL, merged=64), 1, {}),  # heads shared with ranks of which no mesh tells
        (replace(LOCAL, width=32, merged=64), 1, {}),
    ],
)
def test_heads_of_all_tensor_parallel_ranks(call: Attention, tp_degree: int | None, heads: dict[str, int]) -> None:
    assert head_counts([call], tp_degree=tp_degree) == heads


def test_calls_that_disagree_leave_out_what_they_disagree_on() -> None:
    assert head_counts([LOCAL, replace(LOCAL, kv_heads=4)], tp_degree=1) == {"n_heads": 4}
    assert head_counts([LOCAL, replace(LOCAL, heads=2, head_width=16)], tp_degree=1) == {}
    assert head_counts([LOCAL, None], tp_degree=1) == {}
    assert head_counts([], tp_degree=1) == {}


def test_a_traced_graph_shows_the_same_heads() -> None:
    graphs = []

    def backend(module: torch.fx.GraphModule, example: object) -> object:
        graphs.append(module.graph)
        return module.forward

    torch.compile(Transformer(STYLE), backend=backend, fullgraph=True)(tokens())
    calls = attention_calls(compiled_operations(graphs[0]))
    assert head_counts(calls, tp_degree=1) == {"n_heads": 4, "n_kv_heads": 2}


def test_an_operation_without_shapes_is_no_attention() -> None:
    softmax = Operation(name="SoftmaxBackward0", shape=(), operands=((1, ()),))
    product = Operation(name="BmmBackward0", shape=(), operands=((None, ()), (None, ())))
    assert attention_calls([softmax, product]) == frozenset()
    fused = Operation(name="ScaledDotProductFlashAttentionBackward0", shape=(), operands=())
    assert attention_calls([fused]) == {None}
