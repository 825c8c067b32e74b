from __future__ import annotations

import multiprocessing
import os
import pickle
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from torchx_cubicml.recorder.own_ranks.rank_starter import RankStarter
from torchx_cubicml.recorder.own_ranks.rank_starts import (
    is_rank_of_its_own,
    place_variables,
    recorded_words,
    watch_starts,
)
from torchx_cubicml.records.contract import Contract

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

RECORDER = "-mtorchx_cubicml.recorder"


@pytest.fixture
def started() -> Iterator[list[str]]:
    """Watch the starts of this process, and return a list that holds a word per start; undo the hooks at the end."""
    from multiprocessing import process, spawn

    kept = process.BaseProcess.start, spawn.get_preparation_data, subprocess.Popen.__init__
    starts: list[str] = []
    starter = RankStarter.of(Contract(store="/s"), trial_id="t-1", pid=os.getpid())
    watch_starts(starter, lambda: starts.append("started"))
    yield starts
    process.BaseProcess.start, spawn.get_preparation_data, subprocess.Popen.__init__ = kept  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("words", "recorded"),
    [
        (["-u", "t.py", "--lr", "1"], ["-u", RECORDER, "t.py", "--lr", "1"]),
        (["-m", "pkg.train", "x"], [RECORDER, "-m", "pkg.train", "x"]),
        (["-W", "ignore", "t.py"], ["-W", "ignore", RECORDER, "t.py"]),
        (["-I", "t.py"], None),
        (["-c", "pass"], None),
        (["-m", "torch.distributed.run", "t.py"], None),
        (["-m", "accelerate.commands.launch", "t.py"], None),
        (["-m", "deepspeed.launcher.runner", "t.py"], None),
        ([RECORDER, "t.py"], None),
        ([], None),
    ],
)
def test_a_python_program_runs_under_the_recorder(words: list[str], recorded: list[str] | None) -> None:
    found = recorded_words([sys.executable, *words])
    assert found == (None if recorded is None else [sys.executable, *recorded])
    assert recorded_words(["/another/python", *words]) is None


@pytest.mark.parametrize(
    ("environment", "own", "is_rank"),
    [
        ({"LOCAL_RANK": "1", "WORLD_SIZE": "2", "NODE_RANK": "0"}, {"WORLD_SIZE": "2", "NODE_RANK": "0"}, True),
        ({"RANK": "0", "WORLD_SIZE": "2"}, {}, True),
        ({"RANK": "0", "WORLD_SIZE": "1"}, {}, False),
        ({"RANK": "3", "WORLD_SIZE": "8"}, {"RANK": "3", "WORLD_SIZE": "8"}, False),
        ({"HOME": "/root"}, {}, False),
    ],
)
def test_a_rank_has_a_place_of_its_own(environment: dict[str, str], own: dict[str, str], is_rank: bool) -> None:
    assert is_rank_of_its_own(environment, own) is is_rank


def test_other_processes_start_as_typed(started: list[str]) -> None:
    words = [sys.executable, "-c", "import os, sys; print(sys.argv, 'TORCHX_CUBICML_STARTER' in os.environ)"]
    for options in ({}, {"env": {**os.environ, "RANK": "1", "WORLD_SIZE": "2"}}):
        done = subprocess.run(words, capture_output=True, text=True, check=True, **options)
        assert done.stdout == "['-c'] False\n"
        assert done.args == words
    assert started == []


SHOWS_RECORDER = "import sys; print('torchx_cubicml.recorder.start' in sys.modules, sys.argv)"
CHANGES: list[dict[str, str | None]] = [
    {},
    {"PYTHONPATH": None, "PYTHONHOME": None},
    {"PYTHONPATH": "/absent", "HOME": "/absent"},
    {"HOME": "/absent"},
]


@pytest.mark.parametrize("changes", CHANGES)
def test_a_rank_runs_whatever_its_environment_is(
    changes: dict[str, str | None], started: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = place_variables()
    assert known is not None, "run the tests on an installed package, or with PYTHONPATH"
    for name, text in changes.items():  # in this process, too, as a program may do
        monkeypatch.setenv(name, text) if text is not None else monkeypatch.delenv(name, raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))  # the program's folder
    program = tmp_path / "train.py"
    program.write_text(SHOWS_RECORDER)
    environment = {**os.environ, "RANK": "1", "WORLD_SIZE": "2"}
    words = [sys.executable, str(program), "--lr"]
    done = subprocess.run(words, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True)
    is_recorded = all(os.environ.get(name, "") == text for name, text in known.items())
    assert (done.stdout, done.stderr) == (f"{is_recorded} {[str(program), '--lr']}\n", "")
    assert started == (["started"] if is_recorded else [])
    assert is_recorded or changes


class Fails:
    @staticmethod
    def find_spec(*_: object) -> None:
        raise OSError("of the user's own finder")


@pytest.mark.parametrize("finder", [object(), Fails])
def test_an_odd_finder_of_the_user_is_passed_over(finder: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setattr(sys, "meta_path", [finder])
    assert place_variables() is None


def test_a_worker_of_a_data_loader_or_a_pool_is_no_start_of_a_rank(started: list[str]) -> None:
    from torch.utils.data import DataLoader

    assert list(DataLoader([1, 2], batch_size=None, num_workers=1, multiprocessing_context="fork")) == [1, 2]
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.map(abs, [-1]) == [1]
    assert started == []


@pytest.mark.parametrize("is_daemon", [False, True])
def test_a_process_may_be_a_rank_also_where_it_ends_with_its_starter(is_daemon: bool, started: list[str]) -> None:
    process = multiprocessing.get_context("fork").Process(target=int, daemon=is_daemon)
    process.start()
    process.join()
    assert started == ["started"]


def test_data_of_a_process_is_loaded_without_this_package(started: list[str]) -> None:
    from multiprocessing import spawn

    data = spawn.get_preparation_data("p")
    assert data["name"] == "p"
    code = "import pickle, sys; print(pickle.loads(sys.stdin.buffer.read()), 'torch' in sys.modules)"
    words = [sys.executable, "-I", "-S", "-c", code]
    done = subprocess.run(words, input=pickle.dumps(data["torchx_cubicml"]), capture_output=True, check=True)
    assert (done.stdout, done.stderr) == (b"None False\n", b"")
