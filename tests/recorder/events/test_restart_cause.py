from __future__ import annotations

import pytest

from torchx_cubicml.recorder.events.restart_cause import cause_of_states, restart_cause


@pytest.mark.parametrize(
    ("states", "cause"),
    [
        (["NODE_FAIL", "RUNNING"], "node failed"),
        (["PREEMPTED", "NODE_FAIL", "REQUEUED", "RUNNING"], "requeued"),
        (["CANCELLED by 0", "RUNNING"], "cancelled"),
        (["SOME_STATE", "", "RUNNING"], "some state"),
        (["RUNNING"], ""),
        ([], ""),
    ],
)
def test_the_run_before_names_the_cause(states: list[str], cause: str) -> None:
    assert cause_of_states(states) == cause


def test_no_cause_is_told_where_slurm_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    assert restart_cause("7") == ""
