from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from torchx_cubicml.recorder.attempt.new_paths import movable, move_aside
from torchx_cubicml.recorder.attempt.notes import read_attempt

# An audit hook stays for the life of a process, so each program is one of its own.
PROGRAM = """
import os, sys
from pathlib import Path
from torchx_cubicml.recorder.attempt.new_paths import watch_new_paths
watch_new_paths(Path(sys.argv[1]) / "new-paths-0")
"""
MAKES = {
    "a folder": ("os.mkdir('new')", ["new"]),
    "folders": ("os.makedirs('new/er'); open('new/er/x', 'w').close()", ["new", "new/er", "new/er/x"]),
    "a file": ("open('new', 'w').close()", ["new"]),
    "bytes": ("open(b'new', 'ab').close()", ["new"]),
    "a path": ("Path('new').touch()", ["new"]),
    "a lock": ("os.close(os.open('new', os.O_CREAT | os.O_EXCL))", ["new"]),
    "a link": ("os.symlink('old', 'new')", ["new"]),
    "in place of another": ("open('new~', 'w').close(); os.replace('new~', 'new')", ["new~", "new"]),
    "in a forked process": ("pid = os.fork() or (os.mkdir('new'), os._exit(0)); os.waitpid(pid, 0)", ["new"]),
    "elsewhere": ("os.chdir('folder'); open('new', 'w').close()", ["folder/new"]),
    "twice": ("[open('new', 'w').close() for _ in range(3)]", ["new"]),
    "what is there": ("open('old', 'w').close(); os.makedirs('folder', exist_ok=True)", []),
    "what is read": ("open('old').read(); os.listdir('.')", []),
    "what fails": ("[exec('try: open(7777, \"w\")\\nexcept OSError: pass')]; open(1, 'w', closefd=False)", []),
}


@pytest.mark.parametrize("made", MAKES)
def test_paths_that_a_program_makes_are_noted(tmp_path: Path, made: str) -> None:
    code, expected = MAKES[made]
    for name in ("work", "notes"):
        (tmp_path / name).mkdir()
    (tmp_path / "work" / "folder").mkdir()
    (tmp_path / "work" / "old").write_text("old")
    subprocess.run(
        [sys.executable, "-c", f"{PROGRAM}{code}", tmp_path / "notes"], cwd=tmp_path / "work", check=True, timeout=60
    )
    noted = read_attempt(str(tmp_path / "notes")).new_paths
    assert [str(Path(path).relative_to(tmp_path / "work")) for path in noted] == expected


def test_outermost_paths_move_and_what_was_fetched_stays(tmp_path: Path) -> None:
    made = ["out", "out/lock", "out-2", "data", "data/train.bin", "runs", "runs/data", "mnist_data", ".lock", "a.pyc"]
    made += ["data_parallel_8"]
    for name in made:
        path = tmp_path / name
        path.mkdir() if "." not in name else path.touch()
    paths = [str(tmp_path / name) for name in [*made, "gone"]]
    moving = movable(paths)
    assert [Path(path).name for path in moving] == [".lock", "data_parallel_8", "out", "out-2", "runs"]
    moved, left = move_aside(moving, ".failed-7")
    assert (sorted(moved), left) == (moving, [])
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        [
            *(".lock.failed-7", "data_parallel_8.failed-7", "out.failed-7", "out-2.failed-7"),
            *("runs.failed-7", "data", "mnist_data", "a.pyc"),
        ]
    )
    assert (tmp_path / "out.failed-7" / "lock").exists(), "nothing is deleted"


def test_folders_of_other_jobs_stay_where_they_are(tmp_path: Path) -> None:
    for name in ("runs/mine/logs", "runs/theirs"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "runs" / "latest").symlink_to("mine")
    paths = [str(tmp_path / name) for name in ("runs", "runs/mine", "runs/mine/logs", "runs/latest")]
    assert [Path(path).name for path in movable(paths)] == ["latest", "mine"]
    assert movable([*paths, str(tmp_path / "runs" / "theirs")]) == [str(tmp_path / "runs")]


def test_what_libraries_keep_for_all_jobs_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    temporary = tmp_path / "temporary"
    for path in (tmp_path / ".triton", temporary / "torchinductor_me", temporary / "out"):
        path.mkdir(parents=True)
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    paths = [str(tmp_path / ".triton"), *map(str, temporary.iterdir()), "/dev/null"]
    assert movable(paths) == [str(temporary / "out")]


CACHES = (
    *("scratch/hf/hub/models--gpt2", "triton_cache", "inductor_cache/aa", "x/.cache/torch", "src/model/__pycache__"),
    *("named/hf", "named/hf/new/inner", "named/extensions/x"),
)


@pytest.mark.parametrize("cache", CACHES)
def test_caches_stay_wherever_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: str) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "named" / "hf"))
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", f"{tmp_path}/named/extensions/")
    (tmp_path / cache).mkdir(parents=True)
    (tmp_path / cache / "x").touch()
    assert movable([str(tmp_path / cache), str(tmp_path / cache / "x")]) == []


def test_a_folder_with_a_named_cache_in_it_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "work" / "triton"))
    made = [str(tmp_path / name) for name in ("work", "work/triton", "work/triton/x", "work/out")]
    for name in made:
        Path(name).mkdir()
    assert movable(made) == [str(tmp_path / "work" / "out")]


def test_outputs_move_where_the_whole_project_lies_in_a_folder_of_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "cache" / "project"
    (project / "out").mkdir(parents=True)
    monkeypatch.chdir(project)
    assert movable([str(project / "out")]) == [str(project / "out")]


def test_files_of_other_jobs_stay_where_they_are(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    for name in ("mine", "theirs"):
        (tmp_path / "runs" / name).touch()
    assert movable([str(tmp_path / "runs"), str(tmp_path / "runs" / "mine")]) == [str(tmp_path / "runs" / "mine")]


def test_a_name_that_is_taken_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out.failed-7").mkdir()
    assert move_aside([str(tmp_path / "out")], ".failed-7") == ({}, [str(tmp_path / "out")])
    assert move_aside([str(tmp_path / "gone")], ".failed-7") == ({}, [str(tmp_path / "gone")])
