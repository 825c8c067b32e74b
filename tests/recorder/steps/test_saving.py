"""Saving functions of modules that the test makes."""

from __future__ import annotations

import io
import os
import sys
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

from tests.recorder.bare import bare
from torchx_cubicml.recorder.steps import saving as saving_module
from torchx_cubicml.recorder.steps.saving import saving_names, watch_saving, writes_file

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pytest


def module_of(monkeypatch: pytest.MonkeyPatch, name: str, **members: object) -> Any:
    made = ModuleType(name)
    vars(made).update(members)
    monkeypatch.setitem(sys.modules, name, made)
    return made


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


def test_a_checkpoint_is_what_goes_to_a_file(tmp_path: Path) -> None:
    import torch

    with (tmp_path / "a.pt").open("wb") as file:
        assert writes_file(partial(torch.serialization.save, {}, file))
    assert writes_file(partial(torch.serialization.save, {}, str(tmp_path / "a.pt")))
    assert writes_file(partial(torch.serialization.save, {}, f=tmp_path / "a.pt"))
    assert not writes_file(partial(torch.serialization.save, {}, io.BytesIO()))
    assert not writes_file(partial(torch.serialization.save, {}, os.devnull))
    assert writes_file(partial(print, "a trainer's own"))


def test_the_names_of_saving_functions_are_as_scripts_call_them() -> None:
    functions, methods = saving_names()
    assert {"torch.save", "torch.distributed.checkpoint.save", "safetensors.torch.save_file"} <= functions
    assert {"save_checkpoint", "save_state", "save_model"} <= methods
    assert "save" not in methods


def test_known_saving_functions_are_those_of_torch() -> None:
    import torch
    from torch.distributed.checkpoint import state_dict_saver

    known = saving_module._SAVING_FUNCTIONS
    assert all(callable(getattr(torch.serialization, name)) for name in known["torch.serialization"])
    assert all(
        callable(getattr(state_dict_saver, name)) for name in known["torch.distributed.checkpoint.state_dict_saver"]
    )
    assert saving_module._ALSO_IN == {"torch.serialization": "torch"}
