"""Words about the end of a launch: what was recorded, and how sure it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from torchx_cubicml.recorder.events.outcome import outcome_text
from torchx_cubicml.records.event import Event, EventKind
from torchx_cubicml.records.measurement import Measurement
from torchx_cubicml.records.trial import State

if TYPE_CHECKING:
    from torchx_cubicml.records.values import Value

BUSY: dict[str, Value] = {"host_cpus": 2, "other_busy_cpus": 0.5, "idle_cpus": 0.1}


def told(state: State, measurement: Measurement | None = None, observed: dict[str, Value] | None = None) -> str:
    return outcome_text(
        Event(kind=EventKind.ENDED, trial_id="t-1", state=state, measurement=measurement, observed=observed or {})
    )


def measured(**changes: object) -> Measurement:
    given = {"tokens_per_second": 12_341.0, "steps_counted": 25, "relative_error": 0.0125, **changes}
    return Measurement(**given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("measurement", "observed", "text"),
    [
        (measured(), {}, "12,340 tokens/s (± 2 %, 25 steps)"),
        (measured(relative_error=1e-4), {}, "12,341 tokens/s (± 0.5 % or less, 25 steps)"),
        (measured(relative_error=None), {}, "12,341 tokens/s (error unknown, 25 steps)"),
        (measured(steps_counted=1), {}, "12,340 tokens/s (± 2 %, 1 step)"),
        (measured(), BUSY, "12,000 tokens/s (± 37 %, 25 steps; crowded)"),
        (
            measured(is_steady=False, source="nanoGPT"),
            {},
            "12,340 tokens/s (± 2 %, 25 steps; not steady, from log lines)",
        ),
        (
            measured(tokens_per_second=None, mean_step_time_s=0.25, statistic="mean"),
            {},
            "4 steps/s (± 2 %, 25 steps)",
        ),
    ],
    ids=["plain", "sure", "unknown", "one step", "crowded", "doubts", "steps alone"],
)
def test_a_throughput_is_told_with_its_error(measurement: Measurement, observed: dict[str, Value], text: str) -> None:
    assert told(State.COMPLETED, measurement, observed) == f"recorded {text}"


def test_a_failure_after_steps_says_both() -> None:
    assert told(State.OUT_OF_MEMORY, measured()) == (
        "recorded 12,340 tokens/s (± 2 %, 25 steps) until it ended: out of memory"
    )


@pytest.mark.parametrize(
    ("state", "measurement", "text"),
    [
        (State.COMPLETED, None, "recorded without a throughput: no steady steps were seen"),
        (State.COMPLETED, Measurement(peak_memory_gib=1.0), "recorded without a throughput"),
        (State.USER_ERROR, None, "recorded without a throughput, ended: user error"),
    ],
)
def test_without_a_throughput_it_is_short(state: State, measurement: Measurement | None, text: str) -> None:
    assert told(state, measurement) == text
