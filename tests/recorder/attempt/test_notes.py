from __future__ import annotations

import os
from typing import TYPE_CHECKING

from torchx_cubicml.recorder.attempt.notes import Attempt, AttemptNotes, RankProcess, read_attempt
from torchx_cubicml.records.trial import State
from torchx_cubicml.settings import read_job_environment

if TYPE_CHECKING:
    from pathlib import Path


def test_what_ranks_note_is_read(tmp_path: Path) -> None:
    assert read_attempt(str(tmp_path)) == Attempt()
    first, second = AttemptNotes(str(tmp_path), 0), AttemptNotes(str(tmp_path), 11)
    first.ended(State.INFRASTRUCTURE)
    first.ended(State.OUT_OF_MEMORY)
    second.ended(State.USER_ERROR)
    assert read_attempt(str(tmp_path)).ends == {0: State.OUT_OF_MEMORY, 11: State.USER_ERROR}
    assert not read_attempt(str(tmp_path)).stepped
    second.stepped()
    assert (read_attempt(str(tmp_path)).stepped, read_attempt(str(tmp_path)).saved) == (True, False)
    first.saved()
    assert read_attempt(str(tmp_path)).saved


def test_a_restarted_rank_has_not_ended(tmp_path: Path) -> None:
    notes = AttemptNotes(str(tmp_path), 1)
    notes.ended(State.USER_ERROR)
    job = {"RANK": "1", "GROUP_WORLD_SIZE": "2", "GROUP_RANK": "1", "MASTER_ADDR": "host", "MASTER_PORT": "29500"}
    notes.began(read_job_environment(job | {"TORCHELASTIC_USE_AGENT_STORE": "True"}))
    attempt = read_attempt(str(tmp_path))
    assert attempt.ends == {}
    assert attempt.processes == (RankProcess(pid=os.getpid(), node=1, nnodes=2, store=("host", 29500)),)


def test_damaged_notes_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "end-x").write_text("user_error")
    (tmp_path / "end-1").write_text("")
    (tmp_path / "end-2").write_bytes(b"\xff")
    (tmp_path / "new-paths-0").write_text('"/a"\n"relative"\n7\n"/a"\n"/b')
    (tmp_path / "new-paths-1").write_bytes(b"\xff")
    assert read_attempt(str(tmp_path)) == Attempt(new_paths=("/a",))


def test_a_folder_that_is_gone_costs_nothing(tmp_path: Path) -> None:
    AttemptNotes(str(tmp_path / "gone"), 0).ended(State.COMPLETED)
    assert read_attempt(str(tmp_path / "gone")) == Attempt()


def test_ranks_that_torchrun_starts_again_have_no_second_attempt_once_they_have_trained(tmp_path: Path) -> None:
    notes = AttemptNotes(str(tmp_path), 0)
    notes.rewritten("a contract")
    assert notes.second == "a contract"
    notes.saved()
    assert notes.second == ""
    assert read_attempt(str(tmp_path)).second == "a contract"
