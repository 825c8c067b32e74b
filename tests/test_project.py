"""Project of a program: the nearest ``pyproject.toml``, else the git remote; the same wherever it is checked out."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from torchx_cubicml.launch import Launch, workload_of
from torchx_cubicml.project import project_of
from torchx_cubicml.records.trial import Trial
from torchx_cubicml.records.workload import is_same_program, is_same_workload, passed_over

if TYPE_CHECKING:
    from pathlib import Path

    from torchx_cubicml.records.values import Value


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "repo" / "src" / "train.py"
    path.parent.mkdir(parents=True)
    path.touch()
    return path


def named(script: Path) -> tuple[str, ...]:
    return project_of(str(script), is_module=False)


def test_without_a_project_there_is_none(script: Path) -> None:
    assert named(script) == project_of("absent.py", is_module=False) == project_of("", is_module=False) == ()
    (script.parent / "pyproject.toml").write_text("[tool.ruff]\nline-length = 100\n")
    assert named(script) == ()
    (script.parent / "pyproject.toml").write_text("[project\n")
    assert named(script) == ()


def test_the_nearest_pyproject_with_a_name_counts(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (script.parent.parent / "pyproject.toml").write_text('[project]\nname = "My_Ads.Model"\n')
    (script.parent / "pyproject.toml").write_text("[tool.ruff]\n")
    assert named(script) == ("my-ads-model:src",)
    (script.parent / "pyproject.toml").write_text('[tool.poetry]\nname = "inner"\n')
    assert named(script) == ("inner:.",)
    monkeypatch.chdir(script.parent.parent)
    assert project_of("src/train.py", is_module=False) == ("inner:.",)
    assert project_of("src.train", is_module=True) == ("my-ads-model:.",)


@pytest.mark.parametrize(
    "url",
    [
        "git@Host.org:team/gpt.git",
        "https://me:hunter2@host.org/team/gpt",
        "ssh://git@host.org:2222/team/gpt.git",
        "https://host.org/team/gpt/",
    ],
)
def test_the_git_remote_counts_however_it_is_spelled(script: Path, url: str) -> None:
    top = script.parent.parent
    for words in (["init", "-q"], ["remote", "add", "upstream", "x@y:z"], ["remote", "add", "origin", url]):
        subprocess.run(["git", "-C", str(top), *words], check=True)
    assert named(script) == ("host.org/team/gpt:src",)
    (script.parent / "pyproject.toml").write_text('[project]\nname = "gpt"\n')
    assert named(script) == ("gpt:.", "host.org/team/gpt:src")


def test_a_worktree_has_the_remote_of_its_repository(script: Path, tmp_path: Path) -> None:
    git = ["git", "-C", str(script.parent.parent), "-c", "user.name=a", "-c", "user.email=a@b"]
    other = tmp_path / "other"
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "remote", "add", "origin", "h:gpt"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "x"], check=True)
    subprocess.run([*git, "worktree", "add", "-q", str(other)], check=True)
    (other / "train.py").touch()
    assert (named(other / "train.py"), named(script)) == (("/gpt:.",), ("/gpt:src",))


def test_a_repository_without_a_remote_has_no_project(script: Path) -> None:
    subprocess.run(["git", "-C", str(script.parent.parent), "init", "-q"], check=True)
    assert named(script) == ()
    assert "project" not in workload_of(Launch(program=str(script)))


def ran(project: Value | None) -> Trial:
    workload: dict[str, Value] = {"program": "train.py"}
    workload |= {} if project is None else {"project": project}
    return replace(Trial.completed(workload=workload, config={}, tokens_per_second=1.0), trial_id="a")


NAMED, REMOTE, BOTH = ("gpt:.",), ("host.org/me/gpt:src",), ("gpt:.", "host.org/me/gpt:src")


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        (NAMED, BOTH, True),
        (REMOTE, BOTH, True),
        (NAMED, REMOTE, False),
        (("=gpt:src", *REMOTE), REMOTE, True),
        (("=gpt", *NAMED), BOTH, True),
        (("=ads:src", *REMOTE), ("=search:src", *REMOTE), False),
        (("=ads:.",), ("ads:.",), True),
        (("/me/gpt:src",), REMOTE, True),
        (("/you/gpt:src",), REMOTE, False),
        (("host.org/me/mono:a",), ("host.org/me/mono:b",), False),
        ("gpt", BOTH, True),
        ("host.org/me/gpt", BOTH, True),
        ("ads", BOTH, False),
        (None, BOTH, True),
    ],
)
def test_one_identity_in_common_is_one_project(one: Value | None, other: Value, is_same: bool) -> None:
    for first, second in ((one, other), (other, one)):
        workload = ran(second).workload
        for same in (is_same_workload, is_same_program):
            assert same(ran(first), workload) is is_same
        assert bool(passed_over([ran(first)], workload)) is not is_same


def test_what_was_passed_over_is_named() -> None:
    workload = {"program": "train.py", "project": BOTH}
    assert passed_over([ran("ads"), ran(BOTH)], workload) == ""
    assert passed_over([ran("ads"), replace(ran(BOTH), measurement=None)], workload) == (
        "1 launch of train.py left out: of another project or folder, the latest of ads "
        "(project in the space file names the project)"
    )


def test_two_programs_of_one_repository_stay_apart_and_a_stated_project_forgets_nothing(
    script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    top = script.parent.parent
    git = ["git", "-C", str(top)]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "remote", "add", "origin", "git@github.com:me/mono.git"], check=True)
    launch, facts = Launch(program="train.py"), {}
    for name in ("a", "b"):
        (top / name).mkdir()
        (top / name / "train.py").touch()
        monkeypatch.chdir(top / name)
        facts[name] = workload_of(launch)
        facts[f"{name} stated"] = workload_of(launch, project="ads")
    assert facts["a"]["project"] == ("github.com/me/mono:a",)
    assert facts["a stated"]["project"] == ("=ads:a", "github.com/me/mono:a")
    trials = {name: ran(workload["project"]) for name, workload in facts.items()}
    for name, workload in facts.items():
        assert {each for each, trial in trials.items() if is_same_program(trial, workload)} == {
            name[0],
            f"{name[0]} stated",
        }
    assert workload_of(Launch(program="absent.py"), project="ads")["project"] == ("=ads",)
