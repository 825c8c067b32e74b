"""Saving functions of modules that the test makes."""

from __future__ import annotations

import io
import os
import sys
import warnings
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from tests.recorder.bare import bare
from torchx_cubicml.launch.going_on import CommandPaths
from torchx_cubicml.recorder.steps import checkpoint_calls as checkpoints_module
from torchx_cubicml.recorder.steps.checkpoint_calls import Checkpoints, saving_names, watch_checkpoints, writes_file
from torchx_cubicml.records.resumption import LOADED_FROM, SAVED_IN, SAVED_STEP, STARTS_ANEW, folder_id

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from torchx_cubicml.records.values import Value


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
    monkeypatch.setattr(checkpoints_module, "_FUNCTIONS", functions)
    calls: list[str] = []

    def saving(call: Callable[[], object]) -> object:
        calls.append("saves")
        return call()

    watch_checkpoints(saving, lambda load: load(), bare)
    assert outer.save is inner.save is not save
    assert inner.save("it", to="disk") == "it to disk"
    assert calls == ["saves"]
    assert (inner.kept, other.save, other.not_a_function) == (save, print, 3)


def test_a_function_of_the_same_name_elsewhere_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    inner = module_of(monkeypatch, "a.library.inner", save=lambda: "inner")
    theirs = lambda: "theirs"  # noqa: E731
    outer = module_of(monkeypatch, "a.library", save=theirs)
    monkeypatch.setattr(checkpoints_module, "_FUNCTIONS", {"a.library.inner": ("save",)})
    watch_checkpoints(lambda call: ("saved", call()), lambda load: load(), bare)
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
    monkeypatch.setattr(checkpoints_module, "_FUNCTIONS", {"a.library": names})
    watch_checkpoints(lambda call: ("saved", call()), lambda load: load(), bare)
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

    known = checkpoints_module._FUNCTIONS
    assert all(callable(getattr(torch.serialization, name)) for name in known["torch.serialization"])
    assert all(
        callable(getattr(state_dict_saver, name)) for name in known["torch.distributed.checkpoint.state_dict_saver"]
    )


class Program:
    """The checkpoints of a process that is given ``--out``; each call is noted as the recorder notes it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.seen = Checkpoints()
        self.seen.paths = CommandPaths({"out": str(folder)}, "/")

    def load(self, function: Callable[..., object], *args: object, **kwargs: object) -> Any:
        call = partial(function, *args, **kwargs)
        result = self.seen.load(call)
        self.seen.loaded(call, result)
        return result

    def save(self, function: Callable[..., object], *args: object, steps: int = 1, **kwargs: object) -> None:
        call = partial(function, *args, **kwargs)
        self.seen.saving(call, steps=steps)
        call()

    @property
    def facts(self) -> dict[str, Value]:
        return self.seen.facts

    @property
    def root(self) -> str:
        return folder_id(str(self.folder))


def trained(kind: str = "AdamW", steps: int = 3) -> tuple[Any, Any]:
    import torch

    model = torch.nn.Linear(2, 2)
    optimizer = getattr(torch.optim, kind)(model.parameters(), lr=0.1)
    for _ in range(steps):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    return model, optimizer


@pytest.mark.parametrize(("kind", "step"), [("AdamW", 3), ("SGD", 40)], ids=["counted by the optimizer", "in the file"])
def test_a_training_goes_on_where_an_optimizer_loads_its_state(tmp_path: Path, kind: str, step: int) -> None:
    import torch

    program, (model, optimizer) = Program(tmp_path), trained(kind)
    file = tmp_path / "rank0.pt"
    torch.save({"net": model.state_dict(), "optim": optimizer.state_dict(), "trained": {"step": 40}}, file)
    state = program.load(torch.serialization.load, file)
    assert LOADED_FROM not in program.facts
    program.load(torch.optim.Optimizer.load_state_dict, trained(kind, steps=0)[1], state["optim"])
    assert program.facts[LOADED_FROM] == (program.root,)
    program.save(torch.serialization.save, {"step": 1}, tmp_path / "later.pt", steps=5)
    assert program.facts[SAVED_STEP] == step + 5


def test_a_file_that_a_word_names_may_be_of_a_launch_that_named_its_folder(tmp_path: Path) -> None:
    import torch

    program, (model, optimizer) = Program(tmp_path / "runs"), trained()
    file = tmp_path / "runs" / "last.pt"
    file.parent.mkdir()
    program.save(torch.serialization.save, {"epoch": 1}, file)
    program.seen.paths = CommandPaths({"resume": str(file)}, "/")
    torch.save({"net": model.state_dict(), "optim": optimizer.state_dict()}, file)
    state = program.load(torch.serialization.load, file)
    program.load(torch.optim.Optimizer.load_state_dict, optimizer, state["optim"])
    assert program.root in cast("tuple[str, ...]", program.facts[LOADED_FROM])


def test_weights_alone_and_a_reload_in_memory_are_no_going_on(tmp_path: Path) -> None:
    import torch

    program, (model, optimizer) = Program(tmp_path), trained()
    program.load(torch.optim.Optimizer.load_state_dict, optimizer, optimizer.state_dict())  # no file was read
    torch.save(model.state_dict(), tmp_path / "pretrained.pt")
    program.load(torch.serialization.load, tmp_path / "pretrained.pt")
    fresh = trained(steps=0)[1]
    program.load(torch.optim.Optimizer.load_state_dict, fresh, fresh.state_dict())  # as a library does
    assert LOADED_FROM not in program.facts
    assert not program.seen.is_loading
    torch.save({"weights": model.state_dict(), "optimizer_states": [optimizer.state_dict()]}, tmp_path / "whole.pt")
    program.load(torch.serialization.load, tmp_path / "whole.pt")  # for the weights alone
    program.load(torch.optim.Optimizer.load_state_dict, fresh, fresh.state_dict())
    assert LOADED_FROM not in program.facts


def test_only_what_a_training_can_go_on_from_is_a_checkpoint_of_it(tmp_path: Path) -> None:
    import torch

    program, (model, optimizer) = Program(tmp_path), trained()
    weights = model.state_dict()
    for content in (weights, {"model": weights, "arguments": {"steps": 30}}, [1, 2], model):
        program.save(torch.serialization.save, content, tmp_path / "a.pt")
        assert SAVED_IN not in program.facts
    for content in (
        {"MODEL_STATE": weights, "EPOCHS_RUN": 3},
        [weights, optimizer.state_dict()],
        optimizer.state_dict(),
    ):
        program = Program(tmp_path)
        program.save(torch.serialization.save, content, tmp_path / "a.pt")
        assert program.facts[SAVED_IN] == (program.root,)


def test_a_distributed_checkpoint_is_loaded_in_place(tmp_path: Path) -> None:
    import torch
    import torch.distributed.checkpoint as dcp

    model, optimizer = trained()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # on one process
        program, state = Program(tmp_path), {"model": model.state_dict()}
        program.save(dcp.state_dict_saver.save, state, checkpoint_id=tmp_path / "weights", no_dist=True)
        program.load(dcp.state_dict_loader.load, state, checkpoint_id=tmp_path / "weights", no_dist=True)
        assert LOADED_FROM not in program.facts
        state["optimizer"] = optimizer.state_dict()
        program.save(dcp.state_dict_saver.save, state, checkpoint_id=tmp_path / "step-3", no_dist=True)
        reader = dcp.FileSystemReader(tmp_path / "step-3")
        program.load(dcp.state_dict_loader.load, state, storage_reader=reader, no_dist=True)
    places = [folder_id(str(tmp_path / name)) for name in ("weights", "step-3")]
    assert program.facts[SAVED_IN] == (program.root, *places)
    assert program.facts[LOADED_FROM] == (program.root, *places)
    assert torch.is_tensor(model.weight)


def test_a_load_that_fails_is_one(tmp_path: Path) -> None:
    import torch

    program = Program(tmp_path)
    (tmp_path / "rank0.pt").write_text("torn")
    with pytest.raises(Exception, match=r".+"):
        program.load(torch.serialization.load, tmp_path / "rank0.pt")
    assert program.seen.was_loading("exit status 1")


def test_a_checkpoint_that_is_not_there_is_no_failed_load(tmp_path: Path) -> None:
    import torch

    program = Program(tmp_path)
    with pytest.raises(FileNotFoundError):  # as a program finds out that it begins anew
        program.load(torch.serialization.load, tmp_path / "absent.pt")
    assert not program.seen.was_loading("ValueError: no such batch")
    assert program.seen.was_loading("FileNotFoundError: 'absent.pt'")


def test_a_replaced_checkpoint_that_nothing_loaded_shows_a_new_training(tmp_path: Path) -> None:
    import torch

    file = tmp_path / "a.pt"
    torch.save({}, file)
    program = Program(tmp_path)
    os.utime(file, (1, 1))
    program.save(torch.serialization.save, {"step": 1}, file, steps=0)
    assert STARTS_ANEW not in program.facts  # what is written before the training is no checkpoint of it
    os.utime(file, (1, 1))
    program.save(torch.serialization.save, {"step": 1}, file)
    assert program.facts[STARTS_ANEW] is True


def test_a_new_training_is_seen_beside_older_checkpoints_under_other_names(tmp_path: Path) -> None:
    import torch

    runs, weights = tmp_path / "runs", tmp_path / "pretrained"
    runs.mkdir()
    weights.mkdir()
    torch.save({"weight": 1}, weights / "a.pt")
    torch.save({}, runs / "last.ckpt")
    os.utime(runs / "last.ckpt", (1, 1))
    program = Program(runs)
    program.load(torch.serialization.load, weights / "a.pt")  # a start of its own, from weights
    program.save(torch.serialization.save, {"step": 1}, runs / "last-v1.ckpt")  # as Lightning counts on
    assert program.facts[STARTS_ANEW] is True
    program = Program(runs)
    program.load(torch.serialization.load, runs / "last.ckpt")  # whatever it took from there
    program.save(torch.serialization.save, {"step": 1}, runs / "last.ckpt.tmp")
    assert STARTS_ANEW not in program.facts


def test_a_trainer_that_saves_its_model_alone_saves_no_training(tmp_path: Path) -> None:
    class Trainer:
        def save_model(self, output_dir: str) -> None:
            pass

    program = Program(tmp_path)
    program.save(Trainer.save_model, Trainer(), str(tmp_path / "final"))
    assert SAVED_IN not in program.facts


def test_the_latest_of_many_folders_are_kept(tmp_path: Path) -> None:
    import torch

    program = Program(tmp_path)
    for number in range(40):
        (tmp_path / f"step-{number}").mkdir()
        program.save(torch.serialization.save, {"step": 1}, tmp_path / f"step-{number}" / "a.pt")
    found = program.facts[SAVED_IN]
    assert isinstance(found, tuple)
    assert (len(found), found[0], found[-1]) == (17, program.root, folder_id(str(tmp_path / "step-39")))
