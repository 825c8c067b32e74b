from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from torchx_cubicml.launch.checkout import commit_of, has_uncommitted_changes
from torchx_cubicml.launch.command_texts import launcher_provenance

if TYPE_CHECKING:
    from pathlib import Path


def git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.name=n", "-c", "user.email=n@example.org", "-c", "init.defaultBranch=main"]
    done = subprocess.run(["git", *identity, *words], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    path = tmp_path / "repository" / "src" / "train.py"
    path.parent.mkdir(parents=True)
    path.write_text("x = 1\n")
    git(path.parent.parent, "init", "--quiet")
    git(path.parent.parent, "add", ".")
    git(path.parent.parent, "commit", "--quiet", "-m", "one")
    return path


def test_the_commit_is_that_of_git(program: Path) -> None:
    head = git(program.parent, "rev-parse", "HEAD")
    assert commit_of(program) == head
    assert launcher_provenance(program, "ab") == {"commit": head, "space": "ab"}
    git(program.parent, "pack-refs", "--all")
    assert commit_of(program) == head
    git(program.parent, "checkout", "--quiet", "--detach")
    assert commit_of(program) == head


def test_a_worktree_has_a_commit_of_its_own(program: Path, tmp_path: Path) -> None:
    git(program.parent, "worktree", "add", "--quiet", "-b", "other", str(tmp_path / "tree"))
    other = tmp_path / "tree" / "src" / "train.py"
    other.write_text("x = 2\n")
    git(other.parent, "commit", "--quiet", "-am", "two")
    assert commit_of(other) == git(other.parent, "rev-parse", "HEAD") != commit_of(program)


def test_changes_of_tracked_files_count(program: Path) -> None:
    (program.parent / "out.log").write_text("an output")
    assert has_uncommitted_changes(program) is False
    untracked = program.with_name("new.py")
    untracked.write_text("")
    assert has_uncommitted_changes(untracked) is True
    program.write_text("x = 3\n")
    assert has_uncommitted_changes(program) is True


def test_a_name_with_signs_of_a_pattern_is_that_file(program: Path) -> None:
    odd = program.with_name("train[1].py")
    odd.write_text("")
    git(program.parent, "--literal-pathspecs", "add", odd.name)
    git(program.parent, "commit", "--quiet", "-m", "two")
    assert has_uncommitted_changes(odd) is False
    assert has_uncommitted_changes(program.with_name("train?.py")) is True


def test_without_a_checkout_nothing_is_known(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("")
    assert commit_of(path) == ""
    assert commit_of(None) == ""
    assert has_uncommitted_changes(path) is None
    assert launcher_provenance(path) == {}


@pytest.mark.parametrize("head", ["", "ref: refs/heads/absent", "ref: ../../secret", "ref: refs/../../x", "zz" * 20])
def test_a_damaged_checkout_has_no_commit(program: Path, head: str) -> None:
    (program.parent.parent / ".git" / "HEAD").write_text(head)
    assert commit_of(program) == ""


def test_a_git_that_hangs_is_left_behind(program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = tmp_path / "bin" / "git"
    slow.parent.mkdir()
    slow.write_text("#!/bin/sh\nexec sleep 600\n")
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", f"{slow.parent}:/usr/bin:/bin")
    assert has_uncommitted_changes(program, limit_s=0.1) is None
    slow.unlink()
    monkeypatch.setenv("PATH", str(slow.parent))
    assert has_uncommitted_changes(program) is None


def test_settings_of_the_checkout_start_no_program(program: Path, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    hook = tmp_path / "hook"
    hook.write_text(f"#!/bin/sh\ntouch {mark}\n")
    hook.chmod(0o755)
    git(program.parent, "config", "core.fsmonitor", str(hook))
    assert has_uncommitted_changes(program) is False
    assert not mark.exists()
