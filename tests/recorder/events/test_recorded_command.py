"""Digests of a command as its own process records them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from torchx_cubicml.history.present_command import LAUNCHED
from torchx_cubicml.recorder.events.recorded_command import RecordedCommand
from torchx_cubicml.records.arguments import text_digest
from torchx_cubicml.records.event import Event, EventKind

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

KEY = "5eed" * 8
PAYLOAD = {"name": "train.py", "is_module": False, "arguments": ["--lr", "1"], "variables": [], "launched": ""}


def digests(**changes: object) -> Mapping[str, str]:
    event = Event(kind=EventKind.STARTED, trial_id="t")
    recorded = RecordedCommand.from_json({**PAYLOAD, **changes}).recorded_in(event, KEY)
    assert recorded.digests is not None
    return recorded.digests


@pytest.fixture(autouse=True)
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("import os\nn = int(os.environ['DEPTH'])\n")
    for name in ("OMP_NUM_THREADS", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"NCCL_ALGO": "Ring", "DEPTH": "12", "OTHER": "1", "RANK": "0"}.items():
        monkeypatch.setenv(name, value)


def test_a_launch_without_a_launcher_records_the_variables_that_one_would_have_found() -> None:
    found = digests(variables=None)
    assert found["$NCCL_ALGO"] == text_digest("Ring", KEY)
    assert {"$DEPTH", "$OTHER", "$RANK"} & found.keys() == {"$DEPTH"}
    assert not any(name.startswith("$") for name in digests(variables=[]))


@pytest.mark.parametrize(("size", "threads", "is_recorded"), [("2", "1", False), ("2", "4", True), ("1", "1", True)])
def test_the_number_of_threads_that_torchrun_sets_is_no_variable_of_the_command(
    monkeypatch: pytest.MonkeyPatch, size: str, threads: str, is_recorded: bool
) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", size)
    monkeypatch.setenv("OMP_NUM_THREADS", threads)
    assert ("$OMP_NUM_THREADS" in digests(variables=None)) is is_recorded
    assert "$OMP_NUM_THREADS" in digests(variables=["OMP_NUM_THREADS"])


def test_the_file_that_the_launcher_read_has_a_digest_of_its_own() -> None:
    assert digests(launched="ab")[LAUNCHED] == text_digest("ab", KEY)
    assert LAUNCHED not in digests()
