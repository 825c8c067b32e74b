from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from torchx_cubicml.recorder.process.run_program import Program, execute, parse_program, program_frames

SCRIPT = Path(__file__).parents[2] / "jobs" / "as_main.py"
OURS = ("torchx-cubicml: ", "CUBICML_TRIAL ")


def run(arguments: list[str], folder: Path) -> tuple[int, str, str]:
    """Return exit code, stdout and stderr, without the recorder's own lines."""
    environment = {"PATH": "/usr/bin:/bin", "TORCHX_CUBICML_STORE": str(folder / "store"), "HOME": str(folder)}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    stderr = "".join(line for line in done.stderr.splitlines(keepends=True) if not line.startswith(OURS))
    return done.returncode, done.stdout, stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["raise"],
        ["own_hook"],
        ["interrupt"],
        ["exit", "0"],
        ["exit", "3"],
        ["exit_text"],
        ["import_error"],
        ["spawn", "--", "-m", "--help"],
        ["none"],
    ],
    ids=lambda arguments: arguments[0] + arguments[1][:1] if len(arguments) > 1 else arguments[0],
)
@pytest.mark.parametrize("as_module", [False, True], ids=["script", "module"])
def test_a_recorded_program_ends_as_before(arguments: list[str], as_module: bool, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "train.py").write_text(SCRIPT.read_text())
    program = ["-m", "sub.train"] if as_module else ["./sub/../sub/train.py"]
    plain = run([*program, *arguments], tmp_path)
    assert run(["-m", "torchx_cubicml.recorder", "--", *program, *arguments], tmp_path) == plain


@pytest.mark.parametrize(
    "program",
    [
        ["missing.py"],
        ["wrong.py"],
        ["-m", "missing"],
        ["-m", "package"],
        ["package"],
        ["folder"],
        ["app.zip"],
        ["link.py"],
    ],
    ids=" ".join,
)
def test_odd_programs_end_as_before(program: list[str], tmp_path: Path) -> None:
    (tmp_path / "wrong.py").write_text("x = = 1\n")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "__main__.py").write_text("import sys\nprint(sys.argv, sys.path[0], __file__)\n1 / 0\n")
    with zipfile.ZipFile(tmp_path / "app.zip", "w") as archive:
        archive.writestr("__main__.py", "import sys\nprint(sys.argv, sys.path[0], __file__)\n")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "train.py").write_text("import sys\nprint(sys.argv, sys.path[0], __file__)\n")
    (tmp_path / "link.py").symlink_to(tmp_path / "elsewhere" / "train.py")
    plain = run([*program, "x"], tmp_path)
    assert run(["-m", "torchx_cubicml.recorder", "--", *program, "x"], tmp_path) == plain


def test_files_of_the_working_directory_are_not_imported(tmp_path: Path) -> None:
    for name in ("json", "socket", "zlib", "queue"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong module')\n")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "train.py").write_text("print('trained')\n")
    code, stdout, _ = run(["-m", "torchx_cubicml.recorder", "--", "sub/train.py"], tmp_path)
    assert (code, stdout) == (0, "trained\n")
    assert len(list((tmp_path / "store").rglob("*.json"))) == 3  # the key of the digests, too


def test_a_missing_program_shows_the_usage(tmp_path: Path) -> None:
    code, _, stderr = run(["-m", "torchx_cubicml.recorder", "--"], tmp_path)
    assert code == 2
    assert stderr.startswith("usage: python -m torchx_cubicml.recorder -- ")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--", "t.py", "--", "x"], Program(name="t.py", arguments=("--", "x"))),
        (["t.py", "-m", "x"], Program(name="t.py", arguments=("-m", "x"))),
        (["--", "-m", "team.train", "-m"], Program(name="team.train", is_module=True, arguments=("-m",))),
    ],
    ids=["script", "without dashes", "module"],
)
def test_parse_program(arguments: list[str], expected: Program) -> None:
    assert parse_program(arguments) == expected


def test_a_traceback_keeps_the_programs_frames(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "train.py"
    script.write_text("def fail():\n    raise ValueError('empty')\nfail()\n")
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    with pytest.raises(ValueError, match="empty") as caught:
        execute(Program(name=str(script)))
    kept = program_frames(caught.tb)
    names = []
    while kept is not None:
        names.append((kept.tb_frame.f_code.co_filename, kept.tb_frame.f_code.co_name))
        kept = kept.tb_next
    assert names == [(str(script), "<module>"), (str(script), "fail")]
