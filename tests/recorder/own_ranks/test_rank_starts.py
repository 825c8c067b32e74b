from __future__ import annotations

import os
import pickle
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from torchx_cubicml.recorder.own_ranks.rank_starter import RankStarter
from torchx_cubicml.recorder.own_ranks.rank_starts import is_rank_of_its_own, recorded_words, watch_starts
from torchx_cubicml.records.contract import Contract

if TYPE_CHECKING:
    from collections.abc import Iterator

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


def test_data_of_a_process_is_loaded_without_this_package(started: list[str]) -> None:
    from multiprocessing import spawn

    data = spawn.get_preparation_data("p")
    assert data["name"] == "p"
    code = "import pickle, sys; print(pickle.loads(sys.stdin.buffer.read()), 'torch' in sys.modules)"
    words = [sys.executable, "-I", "-S", "-c", code]
    done = subprocess.run(words, input=pickle.dumps(data["torchx_cubicml"]), capture_output=True, check=True)
    assert (done.stdout, done.stderr) == (b"None False\n", b"")
