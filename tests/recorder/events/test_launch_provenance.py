from __future__ import annotations

import pwd
from typing import TYPE_CHECKING

import pytest

from torchx_cubicml.recorder.events import launch_provenance
from torchx_cubicml.recorder.events.launch_provenance import with_provenance
from torchx_cubicml.records.event import Event, EventKind

if TYPE_CHECKING:
    from pathlib import Path

KEY, OTHER_KEY = "5eed" * 8, "beef" * 8
STARTED = Event(kind=EventKind.STARTED, trial_id="t", provenance={"commit": "0" * 40, "space": "ab"})


@pytest.fixture(autouse=True)
def user(monkeypatch: pytest.MonkeyPatch) -> None:
    class Entry:
        pw_name = "mmustermann"

    monkeypatch.setattr(pwd, "getpwuid", lambda number: Entry())


def test_the_owner_is_a_pseudonym_of_the_store() -> None:
    owners = [with_provenance(STARTED, None, key).provenance["owner"] for key in (KEY, KEY, OTHER_KEY)]
    assert owners[0] == owners[1] != owners[2]
    assert "mmustermann" not in str(owners)


def test_the_launchers_commit_stays_where_the_job_has_no_checkout(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    found = with_provenance(STARTED, tmp_path / "train.py", KEY).provenance
    assert (found["commit"], found["space"]) == ("0" * 40, "ab")
    assert "uncommitted_changes" not in found


def test_the_commit_of_the_job_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch_provenance, "commit_of", lambda program: "1" * 40)
    for changes, stated in ((True, True), (False, False), (None, None)):
        monkeypatch.setattr(launch_provenance, "has_uncommitted_changes", lambda program, changes=changes: changes)
        found = with_provenance(STARTED, tmp_path / "train.py", KEY).provenance
        assert (found["commit"], found.get("uncommitted_changes")) == ("1" * 40, stated)


def test_a_user_without_a_name_is_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(number: int) -> None:
        raise KeyError(number)

    named = with_provenance(STARTED, None, KEY).provenance["owner"]
    monkeypatch.setattr(pwd, "getpwuid", fail)
    assert with_provenance(STARTED, None, KEY).provenance["owner"] != named
