"""The command of a process whose config files change, with a stand-in for the child process."""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from torchx_cubicml.recorder.apply import config_files as module
from torchx_cubicml.recorder.apply.config_files import AGREE_S, with_config_files
from torchx_cubicml.recorder.process.child import RELIED_ON
from torchx_cubicml.recorder.process.run_program import Program
from torchx_cubicml.records.contract import (
    CONTRACT_VARIABLE,
    Contract,
    FilePatch,
    TypedCommand,
    decode_contract,
    encode_contract,
)
from torchx_cubicml.settings import read_job_environment

if TYPE_CHECKING:
    from collections.abc import Callable

PROGRAM = Program(name="train.py", arguments=("--config", "c.yaml"))
PATCH = FilePatch(path="c.yaml", digest="0", values=((("a",), 1),), argument=1)
TYPED = TypedCommand(args=("as", "typed"), env={"KEPT": "text", "GONE": None}, config={"a": 0})
ANSWER = {"args": ["--config", "/tmp/copy/c.yaml"], "env": {"CONFIG": "/tmp/copy/d.yaml"}}


class Process:
    """What this process exports and unsets, and what its child answers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.exported: dict[str, str] = {}
        self.unset: list[str] = []
        self.children: list[tuple[list[str], str, float]] = []
        self.answers: list[str | Exception] = []
        self.cleaned = 0
        self._patch = monkeypatch
        for name in ("export", "unset", "_folder", "_clean_up", "run_child"):
            monkeypatch.setattr(module, name, getattr(self, f"_{name.strip('_')}"))

    def start(self, contract: Contract | None, **job: str) -> Program:
        encoded = {CONTRACT_VARIABLE: encode_contract(contract)} if contract is not None else {}
        environment = read_job_environment({**encoded, **job})
        self._patch.setattr(module, "read_job_environment", lambda: environment)
        return with_config_files(PROGRAM)

    def _export(self, changes: dict[str, str]) -> None:
        self.exported.update(changes)

    def _unset(self, names: list[str]) -> None:
        self.unset += names

    def _folder(self) -> str:
        return "/the/folder"

    def _clean_up(self) -> None:
        self.cleaned += 1

    def _run_child(self, command: list[str], question: str, *, within_s: float) -> str:
        self.children.append((command, question, within_s))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Process:
    return Process(monkeypatch)


def contract(**more: Any) -> Contract:
    return Contract(store="/s", **{"files": (PATCH,), "as_typed": TYPED, "config": {"a": 1}, **more})


@pytest.mark.parametrize("given", [None, contract(files=())], ids=["no contract", "no files"])
def test_most_programs_need_no_copies(given: Contract | None, process: Process) -> None:
    assert process.start(given) is PROGRAM
    assert (process.children, process.exported) == ([], {})


def test_a_damaged_contract_is_left_to_others(process: Process) -> None:
    assert process.start(None, **{CONTRACT_VARIABLE: "AAAA"}) is PROGRAM
    assert process.children == []


def test_the_answer_of_the_child_is_the_command(process: Process) -> None:
    process.answers = [json.dumps(ANSWER)]
    found = process.start(contract())
    assert found == Program(name="train.py", arguments=("--config", "/tmp/copy/c.yaml"))
    assert process.exported == {"CONFIG": "/tmp/copy/d.yaml"}
    ((command, question, within_s),) = process.children
    assert command[-2:] == ["torchx_cubicml.recorder.apply.config_copies", "/the/folder"]
    assert (json.loads(question), within_s) == (["--config", "c.yaml"], 120.0)
    assert (AGREE_S, process.cleaned) == (60.0, 0)


def test_a_second_child_knows_that_others_rely_on_it(process: Process) -> None:
    process.answers = [subprocess.CalledProcessError(-9, "child", output="comes\n"), json.dumps(ANSWER)]
    process.start(contract())
    assert [command[-1] for command, _, _ in process.children] == ["/the/folder", RELIED_ON]


REFUSED = json.dumps({"refused": "no space left"})


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        ([REFUSED], "no space left"),
        (["[]", "[]"], "'args'"),
        (['{"args": [1], "env": {}}'], "the helper process gave no answer"),
        (['{"args": "ab", "env": {}}'], "the helper process gave no answer"),
        (['{"args": ["a"], "env": []}'], "the helper process gave no answer"),
        ([OSError("no child")] * 2, "no child"),
    ],
)
def test_without_copies_the_command_runs_as_typed(
    answers: list[str | Exception], reason: str, process: Process, capsys: pytest.CaptureFixture[str]
) -> None:
    process.answers = list(answers)
    found = process.start(contract())
    assert found == Program(name="train.py", arguments=("as", "typed"))
    assert (process.unset, process.cleaned) == (["GONE"], 1)
    assert process.exported.pop("KEPT") == "text"
    typed = decode_contract(process.exported.pop(CONTRACT_VARIABLE))
    assert process.exported == {}
    assert (typed.refused, typed.config, typed.files) == (reason, {"a": 0}, ())
    warning = f"running your command as typed: its config files cannot be changed: {reason}"
    assert capsys.readouterr().err == f"torchx-cubicml: warning: {warning}\n"


def test_a_command_that_was_typed_so_stays(process: Process) -> None:
    process.answers = [REFUSED]
    assert process.start(contract(as_typed=None)) is PROGRAM
    assert (list(process.exported), process.unset) == ([CONTRACT_VARIABLE], [])


def test_a_long_reason_is_cut(process: Process) -> None:
    process.answers = [json.dumps({"refused": "x" * 500})]
    process.start(contract())
    assert decode_contract(process.exported[CONTRACT_VARIABLE]).refused == "x" * 400


@pytest.mark.parametrize(("rank", "warns"), [("0", True), ("1", False)])
def test_one_rank_of_each_node_warns(
    rank: str, warns: bool, process: Process, capsys: pytest.CaptureFixture[str]
) -> None:
    process.answers = [REFUSED]
    process.start(contract(), RANK="4", LOCAL_RANK=rank)
    assert bool(capsys.readouterr().err) is warns


def test_a_launch_of_a_tune_stops(process: Process) -> None:
    process.answers = [REFUSED]
    with pytest.raises(SystemExit, match="no space left"):
        process.start(contract(launch_id="l-1"))
    assert (process.exported, process.cleaned) == ({}, 1)


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_folder_is_removed_when_nobody_holds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    started: list[dict[str, object]] = []
    popen = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda *args, **more: started.append(more) or popen(*args, **more))
    folder = Path(module._folder())
    assert folder.parent == tmp_path
    assert folder.name.startswith("torchx-cubicml-files-")
    assert started[0]["start_new_session"] is True
    assert {started[0][name] for name in ("stdout", "stderr")} == {subprocess.DEVNULL}
    (folder / "incomplete").touch()
    assert folder.exists()
    module._clean_up()
    until(lambda: not folder.exists())
    assert module._cleaner_inputs == []


def test_the_place_of_temporary_files_stays_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    folder = Path(module._folder())
    assert (folder.parent, tempfile.tempdir) == (tmp_path, None)
    module._clean_up()
    until(lambda: not folder.exists())
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "absent"))
    assert module._folder() == ""
    assert tempfile.tempdir == str(tmp_path / "absent")


def test_a_system_without_a_shell_leaves_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **more: object) -> None:
        raise OSError("no shell")

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(subprocess, "Popen", fail)
    folder = Path(module._folder())
    assert folder.exists()
    assert module._cleaner_inputs == []
