"""Functions that are wrapped: the clipping of FSDP1, and saving."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from torchx_cubicml.recorder.steps import clipping as clipping_module
from torchx_cubicml.recorder.steps import saving as saving_module
from torchx_cubicml.recorder.steps.clipping import Clipping
from torchx_cubicml.recorder.steps.saving import watch_saving

if TYPE_CHECKING:
    from collections.abc import Callable


def bare(hook: Callable[..., Any]) -> Callable[..., Any]:
    return hook


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


def test_a_function_is_wrapped_wherever_it_is_exported(monkeypatch: pytest.MonkeyPatch) -> None:
    def save(what: str, *, to: str) -> str:
        return f"{what} to {to}"

    inner = module_of(monkeypatch, "a.library.inner", save=save, kept=save)
    outer = module_of(monkeypatch, "a.library", save=save)
    other = module_of(monkeypatch, "another.library", save=print)
    functions = {"a.library.inner": ("missing", "save"), "another.library": ("not_a_function",)}
    other.not_a_function = 3
    monkeypatch.setattr(saving_module, "_SAVING_FUNCTIONS", functions)
    monkeypatch.setattr(saving_module, "_ALSO_IN", {"a.library.inner": "a.library"})
    calls: list[str] = []

    def saving(call: Callable[[], object]) -> object:
        calls.append("saves")
        return call()

    watch_saving(saving, bare)
    assert outer.save is inner.save is not save
    assert inner.save("it", to="disk") == "it to disk"
    assert calls == ["saves"]
    assert (inner.kept, other.save, other.not_a_function) == (save, print, 3)


def test_a_function_of_the_same_name_elsewhere_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    inner = module_of(monkeypatch, "a.library.inner", save=lambda: "inner")
    theirs = lambda: "theirs"  # noqa: E731
    outer = module_of(monkeypatch, "a.library", save=theirs)
    monkeypatch.setattr(saving_module, "_SAVING_FUNCTIONS", {"a.library.inner": ("save",)})
    monkeypatch.setattr(saving_module, "_ALSO_IN", {"a.library.inner": "a.library"})
    watch_saving(lambda call: ("saved", call()), bare)
    assert (inner.save(), outer.save) == (("saved", "inner"), theirs)


def test_inherited_and_nested_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    class Base:
        def save(self) -> str:
            return "base"

    class Derived(Base):
        pass

    engine = SimpleNamespace(Derived=Derived, Base=Base)
    module_of(monkeypatch, "a.library", engine=engine)
    names = ("engine.Derived.save", "engine.Base.save", "engine.Absent.save")
    monkeypatch.setattr(saving_module, "_SAVING_FUNCTIONS", {"a.library": names})
    watch_saving(lambda call: ("saved", call()), bare)
    assert Derived().save() == ("saved", "base")  # wrapped in its own class alone
    assert "save" not in vars(Derived)


def test_known_saving_functions_are_those_of_torch() -> None:
    import torch
    from torch.distributed.checkpoint import state_dict_saver

    known = saving_module._SAVING_FUNCTIONS
    assert all(callable(getattr(torch.serialization, name)) for name in known["torch.serialization"])
    assert all(
        callable(getattr(state_dict_saver, name)) for name in known["torch.distributed.checkpoint.state_dict_saver"]
    )
    assert saving_module._ALSO_IN == {"torch.serialization": "torch"}
