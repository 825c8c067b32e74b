"""Section of ``.torchxconfig``: the same with TorchX and without."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from torchx_cubicml.launch.torchx_config import own_section

if TYPE_CHECKING:
    from pathlib import Path

READ = "from torchx_cubicml.launch.torchx_config import own_section; print(own_section())"
WITHOUT = f"import sys; sys.modules['torchx'] = None; {READ}"


def read(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a home and a working directory, with a section in each."""
    (tmp_path / "home").mkdir()
    (tmp_path / "work").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("TORCHXCONFIG", raising=False)
    (tmp_path / "home" / ".torchxconfig").write_text(
        "[component:cubicml]\nstore = mine\n[component:dist.ddp]\nj = 1x7\n"
    )
    (tmp_path / "work" / ".torchxconfig").write_text("[component:cubicml]\nstore = theirs\nMode = record\n")
    return tmp_path / "work"


@pytest.mark.parametrize("code", [READ, WITHOUT], ids=["with torchx", "without"])
def test_the_home_wins_over_the_working_directory(folder: Path, code: str) -> None:
    done = read(code, folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert eval(done.stdout) == {"store": "mine", "Mode": "record"}


@pytest.mark.parametrize("code", [READ, WITHOUT], ids=["with torchx", "without"])
def test_the_variable_names_the_only_file(folder: Path, code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "other").write_text("[component:cubicml]\nspace = gpt.toml\n")
    monkeypatch.setenv("TORCHXCONFIG", "other")
    assert eval(read(code, folder).stdout) == {"space": "gpt.toml"}
    monkeypatch.setenv("TORCHXCONFIG", "absent")
    assert "absent cannot be read here: No such file or directory" in read(code, folder).stderr


def test_a_user_without_a_home_has_no_file_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv("TORCHXCONFIG", raising=False)
    monkeypatch.setattr("os.getuid", lambda: 987654)  # as in a container that runs under any user id
    (tmp_path / ".torchxconfig").write_text("[component:cubicml]\nmode = record\n")
    assert own_section() == {"mode": "record"}
