"""Clipping functions of modules that the test makes, and that of FSDP1."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from tests.recorder.bare import bare
from torchx_cubicml.recorder.steps import clipping as clipping_module
from torchx_cubicml.recorder.steps.clipping import Clipping


def module_of(monkeypatch: pytest.MonkeyPatch, name: str, **members: object) -> Any:
    made = ModuleType(name)
    vars(made).update(members)
    monkeypatch.setitem(sys.modules, name, made)
    return made


def sharded() -> type:
    class FullyShardedDataParallel:
        """FSDP1, whose clipping returns what it was given."""

        def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> tuple[float, float]:
            return max_norm, norm_type

    return FullyShardedDataParallel


@pytest.mark.parametrize(
    ("args", "kwargs", "limit"),
    [
        ((3,), {}, 3.0),
        ((), {"max_norm": 2.5}, 2.5),
        ((1.5, 4.0), {}, 1.5),
        ((float("inf"),), {}, None),
        (("much",), {}, None),
    ],
)
def test_the_clipping_of_fsdp1_is_seen(
    args: tuple[object, ...], kwargs: dict[str, object], limit: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = sharded()
    module_of(monkeypatch, "torch.distributed.fsdp", FullyShardedDataParallel=kind)
    clipping = Clipping(bare)
    clipping.watch_fsdp()
    wrapped = kind.clip_grad_norm_  # type: ignore[attr-defined]
    clipping.watch_fsdp()
    assert kind.clip_grad_norm_ is wrapped  # type: ignore[attr-defined]  # once
    assert kind().clip_grad_norm_(*args, **kwargs) == sharded()().clip_grad_norm_(*args, **kwargs)
    assert clipping.facts() == ({} if limit is None else {"max_grad_norm": limit})


@pytest.mark.parametrize("members", [{}, {"FullyShardedDataParallel": "none"}, {"FullyShardedDataParallel": int}])
def test_without_fsdp1_nothing_is_wrapped(members: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    module_of(monkeypatch, "torch.distributed.fsdp", **members)
    Clipping(bare).watch_fsdp()
    monkeypatch.delitem(sys.modules, "torch.distributed.fsdp")
    Clipping(bare).watch_fsdp()


def test_each_clipping_function_has_its_fact(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("clip_grad_norm_", "clip_grads_with_norm_", "clip_grad_value_")
    functions = {name: (lambda parameters, limit=None, **more: (parameters, limit, more)) for name in names}
    inner = module_of(monkeypatch, "torch.nn.utils.clip_grad", **functions)
    own = lambda parameters, limit: "own"  # noqa: E731
    outer = module_of(monkeypatch, "torch.nn.utils", **{**functions, "clip_grad_value_": own})
    clipping = Clipping(bare)
    clipping.install()
    assert outer.clip_grad_norm_ is inner.clip_grad_norm_ is not functions["clip_grad_norm_"]
    assert outer.clip_grad_norm_("p", 2) == ("p", 2, {})
    assert clipping.facts() == {"max_grad_norm": 2.0}
    inner.clip_grads_with_norm_("p", max_norm=3)
    assert clipping.facts() == {"max_grad_norm": 3.0}
    outer.clip_grad_value_("p", 4)  # found first, so it is the one that is wrapped
    assert clipping.facts() == {"max_grad_norm": 3.0, "max_grad_value": 4.0}
    inner.clip_grad_value_("p", clip_value=5)
    assert clipping.facts()["max_grad_value"] == 4.0
    clipping.facts().clear()
    assert clipping.facts()
    outer.clip_grad_norm_("p")  # without a limit
    assert clipping.facts()["max_grad_norm"] == 3.0


def test_without_torch_nothing_is_wrapped(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in clipping_module._MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    clipping = Clipping(bare)
    clipping.install()
    assert clipping.facts() == {}
