"""Project of a program: the nearest ``pyproject.toml``, else the git remote; the same wherever it is checked out."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from torchx_cubicml.launch import Launch, workload_of
from torchx_cubicml.project import project_of
from torchx_cubicml.records.trial import State, Trial
from torchx_cubicml.records.workload import is_same_program, is_same_workload

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "repo" / "src" / "train.py"
    path.parent.mkdir(parents=True)
    path.touch()
    return path


def named(script: Path) -> str:
    return project_of(str(script), is_module=False)


def test_without_a_project_there_is_none(script: Path) -> None:
    assert named(script) == project_of("absent.py", is_module=False) == project_of("", is_module=False) == ""
    (script.parent / "pyproject.toml").write_text("[tool.ruff]\nline-length = 100\n")
    assert named(script) == ""
    (script.parent / "pyproject.toml").write_text("[project\n")
    assert named(script) == ""


def test_the_nearest_pyproject_with_a_name_counts(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (script.parent.parent / "pyproject.toml").write_text('[project]\nname = "My_Ads.Model"\n')
    (script.parent / "pyproject.toml").write_text("[tool.ruff]\n")
    assert named(script) == "my-ads-model"
    (script.parent / "pyproject.toml").write_text('[tool.poetry]\nname = "inner"\n')
    assert named(script) == "inner"
    monkeypatch.chdir(script.parent.parent)
    assert project_of("src/train.py", is_module=False) == "inner"
    assert project_of("src.train", is_module=True) == "my-ads-model"


@pytest.mark.parametrize(
    "url",
    [
        "git@Host.org:team/gpt.git",
        "https://me:hunter2@host.org/team/gpt",
        "ssh://git@host.org:2222/team/gpt.git",
        "https://host.org/team/gpt/",
    ],
)
def test_else_the_git_remote_counts_however_it_is_spelled(script: Path, url: str) -> None:
    top = script.parent.parent
    for words in (["init", "-q"], ["remote", "add", "upstream", "x@y:z"], ["remote", "add", "origin", url]):
        subprocess.run(["git", "-C", str(top), *words], check=True)
    assert named(script) == "host.org/team/gpt"


def test_a_worktree_has_the_remote_of_its_repository(script: Path, tmp_path: Path) -> None:
    git = ["git", "-C", str(script.parent.parent), "-c", "user.name=a", "-c", "user.email=a@b"]
    other = tmp_path / "other"
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "remote", "add", "origin", "h:gpt"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "x"], check=True)
    subprocess.run([*git, "worktree", "add", "-q", str(other)], check=True)
    (other / "train.py").touch()
    assert named(other / "train.py") == named(script) == "h/gpt"


def test_a_repository_without_a_remote_has_no_project(script: Path) -> None:
    subprocess.run(["git", "-C", str(script.parent.parent), "init", "-q"], check=True)
    assert named(script) == ""
    assert "project" not in workload_of(Launch(program=str(script)))


def test_programs_of_two_projects_are_two_and_an_unknown_project_fits(script: Path) -> None:
    (script.parent / "pyproject.toml").write_text('[project]\nname = "ads"\n')
    launch = Launch(program=str(script))
    ads, stated = workload_of(launch), workload_of(launch, project="search")
    assert (ads["project"], stated["project"]) == ("ads", "search")
    unknown = {"program": ads["program"]}

    def ran(workload: dict[str, object]) -> Trial:
        return Trial(trial_id="a", workload=workload, config={}, state=State.COMPLETED)

    for same in (is_same_workload, is_same_program):
        assert [same(ran(each), ads) for each in (ads, stated, unknown)] == [True, False, True]
        assert [same(ran(each), unknown) for each in (ads, stated, unknown)] == [True, True, True]
