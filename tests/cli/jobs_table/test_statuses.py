from __future__ import annotations

import pytest

from torchx_cubicml.cli.jobs_table.statuses import state_of_word
from torchx_cubicml.records.trial import State

WORDS = {
    State.COMPLETED: (
        "ok",
        "OK",
        "done",
        "COMPLETED",
        "finished",
        "success",
        "passed",
        "1",
        "true",
        "exit 0",
        "✓",
        "✅",
    ),
    State.OUT_OF_MEMORY: ("OOM", "out of memory", "OUT_OF_MEMORY", "CUDA OOM", "oom-killed"),
    State.UNKNOWN: (
        "failed",
        "FAILED",
        "crash",
        "TIMEOUT",
        "CANCELLED",
        "0",
        "exit 137",
        "NaN loss",
        "did not finish",
        "❌",
    ),
    None: ("purple", "later", "waiting"),
}


@pytest.mark.parametrize(("state", "word"), [(state, word) for state, words in WORDS.items() for word in words])
def test_a_status_names_a_state(state: State | None, word: str) -> None:
    assert state_of_word(word) is state


@pytest.mark.parametrize(
    ("heading", "word", "state"),
    [
        ("OOM", "yes", State.OUT_OF_MEMORY),
        ("OOM?", "0", State.COMPLETED),
        ("failed", "true", State.UNKNOWN),
        ("failed", "false", State.COMPLETED),
        ("success", "no", State.UNKNOWN),
        ("exit_code", "0", State.COMPLETED),
        ("exit_code", "137", State.UNKNOWN),
    ],
)
def test_a_switch_means_what_its_heading_says(heading: str, word: str, state: State) -> None:
    assert state_of_word(word, heading=heading) is state
