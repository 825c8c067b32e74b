"""The main function with stand-ins for the program and its session."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from torchx_cubicml.recorder import start
from torchx_cubicml.recorder.apply import config_files
from torchx_cubicml.recorder.process.run_program import Program
from torchx_cubicml.recorder.start import main, unload_shadowed_modules

LIBRARY = str(Path(os.__file__).parent)


class Session:
    """Notes how the program has ended."""

    def __init__(self) -> None:
        self.ends: list[object] = []

    def completed(self) -> None:
        self.ends.append("completed")

    def exited(self, exit_: SystemExit) -> None:
        self.ends.append(exit_)

    def failed(self, error: BaseException) -> None:
        self.ends.append(error)


@pytest.fixture
def order(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Note what happens before the program runs, in place of it."""
    noted: list[object] = []
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(start, "prepare_main", lambda program: noted.append(("main", program.name, sys.path[0])))
    monkeypatch.setattr(start, "unload_shadowed_modules", lambda before: noted.append(("unload", before)))
    monkeypatch.setattr(config_files, "with_config_files", lambda program: program)
    return noted


def run(monkeypatch: pytest.MonkeyPatch, error: BaseException | None, **more: Any) -> tuple[Session, list[object]]:
    session, hidden = Session(), []

    def execute(program: Program) -> None:
        if error is not None:
            raise error

    monkeypatch.setattr(start, "_load", lambda: lambda program: session)
    monkeypatch.setattr(start, "execute", execute)
    monkeypatch.setattr(start, "hide_own_frames", hidden.append)
    before = frozenset({"a"})
    if error is None:
        main(["--", "t.py"], before=before, **more)
    else:
        with pytest.raises(type(error)) as raised:
            main(["--", "t.py"], before=before, **more)
        assert raised.value is error
    return session, hidden


def test_a_program_that_ends_is_completed(order: list[object], monkeypatch: pytest.MonkeyPatch) -> None:
    session, hidden = run(monkeypatch, None, path=["/first", LIBRARY])
    assert (session.ends, hidden) == (["completed"], [])
    assert order == [("main", "t.py", "/first"), ("unload", frozenset({"a"}))]
    assert sys.path == ["/first", LIBRARY]


def test_the_search_path_stays_by_default(order: list[object], monkeypatch: pytest.MonkeyPatch) -> None:
    before = list(sys.path)
    run(monkeypatch, None)
    assert sys.path == before


@pytest.mark.parametrize("error", [SystemExit(3), ValueError("broken"), KeyboardInterrupt()])
def test_each_end_is_passed_on(error: BaseException, order: list[object], monkeypatch: pytest.MonkeyPatch) -> None:
    session, hidden = run(monkeypatch, error)
    assert session.ends == [error]
    assert hidden == ([] if isinstance(error, SystemExit) else [error])


@pytest.mark.parametrize("error", [None, SystemExit(3), ValueError("broken")])
def test_a_program_runs_without_a_session(
    error: BaseException | None,
    order: list[object],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(program: Program) -> None:
        raise OSError("no writer")

    loads = iter([None, fail])
    for warning in ("", "torchx-cubicml: warning: this launch is not recorded: no writer\n"):
        with monkeypatch.context() as patch:
            run_with = next(loads)
            patch.setattr(start, "_open", lambda _, program, call=run_with, own=start._open: own(call, program))
            run(patch, error)
        assert capsys.readouterr().err == warning


def test_a_recorder_that_cannot_be_loaded_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torchx_cubicml.recorder.session", None)
    assert start._load() is None
    assert "warning: this launch is not recorded: " in capsys.readouterr().err


def test_config_files_that_cannot_be_changed_stay(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(program: Program) -> Program:
        raise ValueError("odd")

    program = Program(name="t.py")
    monkeypatch.setattr(config_files, "with_config_files", fail)
    assert start._with_config_files(program) is program
    assert capsys.readouterr().err == "torchx-cubicml: warning: config files unchanged: odd\n"
    other = Program(name="other.py")
    monkeypatch.setattr(config_files, "with_config_files", lambda program: other)
    assert start._with_config_files(program) is other


@pytest.mark.parametrize("has_library", [True, False])
def test_modules_that_a_program_shadows_are_unloaded(
    has_library: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [tmp_path / name for name in ("program", "variable", "later")]
    for folder, names in zip(folders, (("one_a.py", "torchx_cubicml"), ("two_a",), ("three_a.py",)), strict=True):
        folder.mkdir()
        for name in (*names, "__main__.py"):
            (folder / name).touch()
    program, variable, later = map(str, folders)
    before = frozenset(sys.modules)
    names = ("one_a", "one_a.part", "two_a", "three_a", "torchx_cubicml.made_here", "four_a")
    for name in names:
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    path = [program, "/absent", variable, *([LIBRARY] if has_library else []), later]
    monkeypatch.setattr(sys, "path", path)
    unload_shadowed_modules(before | {"four_a"})
    kept = [name for name in names if name in sys.modules]
    gone = {"one_a", "one_a.part", "two_a"} if has_library else {"one_a", "one_a.part"}
    assert kept == [name for name in names if name not in gone]
    assert "__main__" in sys.modules


def test_loaded_before_is_kept_and_the_first_entry_always_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "one_a.py").touch()
    (tmp_path / "two_a.py").touch()
    monkeypatch.chdir(tmp_path)
    for name in ("one_a", "two_a"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    before = frozenset(sys.modules) - {"one_a"}
    monkeypatch.setattr(sys, "path", ["", LIBRARY])
    unload_shadowed_modules(before)
    assert ("one_a" in sys.modules, "two_a" in sys.modules) == (False, True)
    monkeypatch.setitem(sys.modules, "one_a", ModuleType("one_a"))
    monkeypatch.setattr(os, "listdir", lambda entry: ["one_a.py"] if entry == LIBRARY else [])
    monkeypatch.setattr(sys, "path", [LIBRARY])
    unload_shadowed_modules(before)
    assert "one_a" not in sys.modules


def test_modules_of_the_program_itself_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("own_a.py", "early_a"):
        (tmp_path / name).touch()
    before = frozenset({*sys.modules, "early_a"})
    own = ModuleType("own_a")
    own.__file__ = str(tmp_path / "own_a.py")
    for name, module in (
        ("own_a", own),
        ("early_a", ModuleType("early_a")),
        ("early_a.part", ModuleType("early_a.part")),
    ):
        monkeypatch.setitem(sys.modules, name, module)
    odd = ModuleType("own_a.odd")
    odd.__file__ = tmp_path  # type: ignore[assignment]  # as some modules that are made by hand have it
    monkeypatch.setitem(sys.modules, "own_a.odd", odd)
    monkeypatch.setattr(sys, "path", [str(tmp_path), LIBRARY])
    unload_shadowed_modules(before)
    assert {"own_a", "early_a", "early_a.part"} <= set(sys.modules), "a second copy would have other classes"


def test_a_session_is_opened_for_the_program() -> None:
    program, opened = Program(name="t.py"), SimpleNamespace()
    assert start._open(lambda given: opened if given is program else None, program) is opened
    assert start._open(None, program) is None
