"""Programs that are run in this process, as ``__main__``."""

from __future__ import annotations

import builtins
import sys
import zipfile
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from torchx_cubicml.recorder.process import run_program
from torchx_cubicml.recorder.process.run_program import (
    USAGE,
    Program,
    execute,
    hide_own_frames,
    parse_program,
    prepare_main,
    program_frames,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Put back what a program changes in this process."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["recorder", "--", "x"])
    monkeypatch.setattr(sys, "path", ["/a", *sys.path])
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    yield
    vars(sys).pop("last_traceback", None)


@pytest.mark.parametrize(
    "arguments", [[], ["--"], ["-m"], ["--", "-m"], ["--steps"], ["-m", "-m"], ["--", "--", "t.py"]]
)
def test_without_a_program_the_usage_is_shown(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_program(arguments)
    assert (ended.value.code, capsys.readouterr().err) == (2, f"{USAGE}\n")


def test_a_program_is_a_script_without_arguments_by_default() -> None:
    assert Program(name="t.py") == Program(name="t.py", is_module=False, arguments=())
    assert (Program(name="t.py").label, Program(name="a.b", is_module=True).label) == ("t.py", "-m a.b")


def flags(monkeypatch: pytest.MonkeyPatch, *, safe_path: bool) -> None:
    monkeypatch.setattr(
        run_program, "sys", SimpleNamespace(**vars(sys) | {"flags": SimpleNamespace(safe_path=safe_path)})
    )


@pytest.mark.parametrize("safe_path", [False, True])
def test_a_script_has_its_folder_and_arguments(
    safe_path: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "t.py").touch()
    (tmp_path / "link.py").symlink_to(tmp_path / "sub" / "t.py")
    flags(monkeypatch, safe_path=safe_path)
    prepare_main(Program(name="link.py", arguments=("--a", "b")))
    assert sys.argv == ["link.py", "--a", "b"]
    assert sys.path[: sys.path.index("/a")] == ([] if safe_path else [str((tmp_path / "sub").resolve())])


@pytest.mark.parametrize("safe_path", [False, True])
def test_a_module_has_the_working_folder(safe_path: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flags(monkeypatch, safe_path=safe_path)
    prepare_main(Program(name="team.train", is_module=True, arguments=("x",)))
    assert sys.argv == ["-m", "x"]
    assert sys.path[: sys.path.index("/a")] == ([] if safe_path else [str(Path.cwd())])


def test_the_main_module_is_empty() -> None:
    prepare_main(Program(name="t.py"))
    main = sys.modules["__main__"]
    assert type(main) is ModuleType
    assert vars(main) == {
        "__name__": "__main__",
        "__doc__": None,
        "__package__": None,
        "__loader__": None,
        "__spec__": None,
        "__annotations__": {},
        "__builtins__": builtins,
    }


def prepared(program: Program) -> dict[str, Any]:
    prepare_main(program)
    main = sys.modules["__main__"]
    execute(program)
    return vars(main)


def test_a_script_is_run_as_python_does(tmp_path: Path) -> None:
    (tmp_path / "t.py").write_text("def f(x: 1 + 1): pass\nfound = f.__annotations__, __name__\n")
    found = prepared(Program(name="./t.py"))
    path = f"{Path.cwd()}/./t.py"
    assert found["found"] == ({"x": 2}, "__main__")  # evaluated: what this package imports changes nothing
    assert (found["__file__"], found["__cached__"]) == (path, None)
    loader = found["__loader__"]
    assert isinstance(loader, SourceFileLoader)
    assert (loader.name, loader.path) == ("__main__", path)


def test_the_encoding_of_a_script_is_its_own(tmp_path: Path) -> None:
    (tmp_path / "t.py").write_bytes("# -*- coding: latin-1 -*-\nword = 'é'\n".encode("latin-1"))
    assert prepared(Program(name="t.py"))["word"] == "é"


def test_a_script_that_is_absent_ends_as_python_does(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        prepared(Program(name="absent.py"))
    message = f"{sys.executable}: can't open file '{Path.cwd()}/absent.py': [Errno 2] No such file or directory\n"
    assert (ended.value.code, capsys.readouterr().err) == (2, message)


@pytest.mark.parametrize("kind", ["folder", "archive"])
def test_a_container_is_run_by_its_main_module(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[tuple[str, bool]] = []
    monkeypatch.setattr(
        run_program.runpy, "_run_module_as_main", lambda name, alter_argv: runs.append((name, alter_argv))
    )
    if kind == "folder":
        (tmp_path / "app").mkdir()
    else:
        with zipfile.ZipFile(tmp_path / "app", "w") as archive:
            archive.writestr("__main__.py", "")
    prepared(Program(name="app", arguments=("x",)))
    assert (sys.argv, sys.path[:2]) == (["app", "x"], [f"{Path.cwd()}/app", "/a"])
    prepared(Program(name="team.train", is_module=True))
    assert runs == [("__main__", False), ("team.train", True)]
    (tmp_path / "app.py").mkdir()
    with pytest.raises(SystemExit):
        prepared(Program(name="app.py"))  # by its name a script
    prepared(Program(name="app", is_module=True))
    assert runs[2:] == [("app", True)]


def names_in(traceback: Any) -> list[str]:
    found = []
    while traceback is not None:
        found.append(traceback.tb_frame.f_code.co_name)
        traceback = traceback.tb_next
    return found


def failed(tmp_path: Path) -> BaseException:
    """Return the error of a program that fails in a function that a hook of this package calls."""
    (tmp_path / "t.py").write_text(
        "from torchx_cubicml.recorder.process.run_program import _as_python_spells\n"
        "class Name:\n    def __fspath__(self):\n        raise ValueError('own')\n"
        "def called():\n    _as_python_spells(Name())\n"
        "called()\n"
    )
    with pytest.raises(ValueError, match="own") as caught:
        prepared(Program(name="t.py"))
    return caught.value


def test_only_the_programs_frames_are_shown(tmp_path: Path) -> None:
    error = failed(tmp_path)
    assert "_as_python_spells" in names_in(error.__traceback__)
    kept = [name for name in names_in(program_frames(error.__traceback__)) if name != "join"]
    assert kept == ["<module>", "called", "__fspath__"]
    assert program_frames(None) is None
    with pytest.raises(ValueError, match="other") as other:
        raise ValueError("other")  # not from a program
    assert program_frames(other.tb) is None


@pytest.mark.parametrize("is_same", [True, False])
def test_a_traceback_is_shortened_as_it_is_printed(is_same: bool, tmp_path: Path) -> None:
    shown: list[tuple[object, ...]] = []
    sys.excepthook = theirs = lambda *report: shown.append(report)
    error, other = failed(tmp_path), KeyError()
    hide_own_frames(error)
    printed = error if is_same else other
    sys.excepthook(type(printed), printed, printed.__traceback__)
    assert sys.excepthook is theirs
    ((kind, value, traceback),) = shown
    assert (kind, value) == (type(printed), printed)
    assert value.__traceback__ is traceback
    if is_same:
        assert names_in(traceback)[0] == "<module>"
        assert sys.last_traceback is traceback
    else:
        assert traceback is None
