"""Modules whose forwards carry outputs of a layer element-wise to another one, or also elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as models do
from torch import Tensor, nn
from torch.nn.functional import silu

from torchx_cubicml.recorder.apply.elementwise_flow import only_feeds

if TYPE_CHECKING:
    from collections.abc import Callable

seen: list[object] = []


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(2)
        self.up, self.gate, self.down = nn.Linear(2, 4), nn.Linear(2, 4), nn.Linear(4, 2)
        self.act, self.dropout, self.glu, self.scale = nn.GELU(), nn.Dropout(0.1), nn.GLU(), 2.0

    def helper(self, x: Tensor) -> Tensor:
        return self.up(x)


class Residual(Mlp):
    def forward(self, x: Tensor) -> Tensor:
        seen.append(x.shape[1])
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Method(Mlp):
    def forward(self, x: Tensor) -> Tensor:
        """Take one of each."""
        h = self.up(x)
        h = self.act(h) * 2.0
        out = self.down(F.gelu(h, approximate="tanh").sigmoid())
        if self.training:
            out = out + x
        return out


class Gated(Mlp):
    def forward(self, x: Tensor) -> Tensor:
        return self.down(silu(self.gate(x)) * self.up(x))


@pytest.mark.parametrize("kind", [Residual, Method])
def test_an_output_that_is_used_element_wise_only(kind: type[Mlp]) -> None:
    assert only_feeds(kind(), ["up"], ["down"])


@pytest.mark.parametrize("hooked", ["", "up", "act", "down"])
def test_a_hook_is_another_use(hooked: str) -> None:
    model = Method()
    model.get_submodule(hooked).register_forward_hook(lambda *_: None)
    assert not only_feeds(model, ["up"], ["down"])


@pytest.mark.parametrize("hooked", ["0", "1"])
def test_a_hook_in_a_sequence_is_another_use(hooked: str) -> None:
    layers = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 2))
    layers.get_submodule(hooked).register_forward_hook(lambda *_: None)
    assert not only_feeds(layers, ["0"], ["2"])


def test_two_outputs_that_are_multiplied() -> None:
    assert only_feeds(Gated(), ["gate", "up"], ["down"])
    assert not only_feeds(Gated(), ["up"], ["down"])  # the other one would be a shard


def test_a_sequence_of_layers() -> None:
    layers = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 2), nn.Softmax(-1))
    assert only_feeds(layers, ["0"], ["2"])
    assert not only_feeds(layers, ["2"], ["0"])
    assert not only_feeds(layers, ["0", "2"], [])
    assert not only_feeds(layers, ["0"], ["3", "2"])
    assert not only_feeds(nn.Sequential(nn.Linear(2, 4), nn.Softmax(-1), nn.Linear(4, 2)), ["0"], ["2"])


def also_returned(self: Mlp, x: Tensor) -> object:
    h = self.up(x)
    return self.down(h), h


def shape(self: Mlp, x: Tensor) -> Tensor:
    h = self.up(x)
    return self.down(h / h.shape[-1])


def softmax(self: Mlp, x: Tensor) -> Tensor:
    return self.down(F.softmax(self.up(x), -1))


def scaled_by_tensor(self: Mlp, x: Tensor) -> Tensor:
    return self.down(self.up(x) * self.scale)


def through_dropout(self: Mlp, x: Tensor) -> Tensor:
    return self.down(self.dropout(self.up(x)))


def through_glu(self: Mlp, x: Tensor) -> Tensor:
    return self.down(self.glu(self.up(x)))


def through_method(self: Mlp, x: Tensor) -> Tensor:
    return self.down(self.helper(x))


def in_loop(self: Mlp, x: Tensor) -> Tensor:
    for _ in range(2):
        x = self.down(self.up(x))
    return x


def in_branch(self: Mlp, x: Tensor) -> Tensor:
    h = self.up(x)
    if h.mean() > 0:
        h = h + 1
    return self.down(h)


def in_closure(self: Mlp, x: Tensor) -> Tensor:
    f = lambda: h.sum()  # noqa: E731, PLW0108 - as a script may write it
    h = self.up(x)
    return self.down(h) + f()


def kept(self: Mlp, x: Tensor) -> Tensor:
    self.last = self.up(x)
    return self.down(self.up(x))


def weights(self: Mlp, x: Tensor) -> Tensor:
    return self.down(self.up(x)) + self.up.weight.sum()


def passed_on(self: Mlp, x: Tensor) -> Tensor:
    seen.append(self)
    return self.down(self.up(x))


def other_input(self: Mlp, x: Tensor) -> Tensor:
    self.up(x)
    return self.down(x)


def appended(self: Mlp, x: Tensor) -> Tensor:
    h = self.up(x)
    seen.append(h)
    return self.down(h)


def keyword(self: Mlp, x: Tensor) -> Tensor:
    return self.down(input=self.up(x))


def method_with_argument(self: Mlp, x: Tensor) -> Tensor:
    return self.down(self.up(x).softmax(-1))


def second_argument(self: Mlp, x: Tensor) -> Tensor:
    return self.down(F.leaky_relu(x, self.up(x)))


def power(self: Mlp, x: Tensor) -> Tensor:
    return self.down(2 ** self.up(x))


def unpacked(self: Mlp, x: Tensor) -> Tensor:
    h, _ = self.up(x)
    return self.down(h)


def chunked(self: Mlp, x: Tensor) -> Tensor:
    h = self.up(x)
    h += 1
    return self.down(h)


def unknown_function(self: Mlp, x: Tensor) -> Tensor:
    return self.down(not_here.relu(self.up(x)))  # noqa: F821


def given_function(self: Mlp, x: Tensor) -> Tensor:
    return self.down((seen[0])(self.up(x)))


OTHERS = [
    *(
        also_returned,
        shape,
        softmax,
        scaled_by_tensor,
        through_dropout,
        through_glu,
        through_method,
        in_loop,
        in_branch,
    ),
    *(in_closure, kept, weights, passed_on, other_input, appended, keyword, method_with_argument, second_argument),
    *(power, unpacked, chunked, unknown_function, given_function),
]


@pytest.mark.parametrize("forward", OTHERS, ids=lambda each: each.__name__)
def test_another_use_of_an_output_is_found(forward: Callable[..., object]) -> None:
    kind = type("Other", (Mlp,), {"forward": forward})
    assert not only_feeds(kind(), ["up"], ["down"])


def test_a_forward_that_cannot_be_read_is_not_trusted() -> None:
    patched, hooked = Residual(), Residual()
    patched.forward = patched.forward
    hooked.register_forward_hook(lambda *_: None)
    no_source: dict[str, object] = {}
    exec("def forward(self, x): return self.down(self.up(x))", no_source)
    wrapped = type("Wrapped", (Mlp,), {"forward": torch.no_grad()(Residual.forward)})
    without = type("Without", (Mlp,), {"forward": no_source["forward"]})
    for module in (patched, hooked, wrapped(), without(), nn.Bilinear(1, 1, 1)):
        assert not only_feeds(module, ["up"], ["down"])
