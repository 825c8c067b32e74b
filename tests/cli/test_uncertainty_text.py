from __future__ import annotations

import pytest

from torchx_cubicml.cli.uncertainty_text import uncertainty_text
from torchx_cubicml.records.measurement import Measurement


def measured(**facts: object) -> Measurement:
    given = {"samples_per_second": 9.0, "steps_counted": 40, "statistic": "mean", "relative_error": 0.1} | facts
    return Measurement(**given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("facts", "crowded", "text"),
    [
        ({"steps_counted": 1}, False, "uncertain, as only 1 step was counted; more steps help"),
        ({"steps_counted": 8}, False, "uncertain, as only 8 steps were counted; more steps help"),
        (
            {"is_steady": False, "drift": -0.39, "step_time_s": (0.021, 0.031, 0.048)},
            True,
            "uncertain, as it was crowded, and its steps became 39 % shorter from its first quarter to "
            "its last, and four of five steps took 0.021 to 0.048 s; a free machine and more steps help",
        ),
        (
            {"is_steady": False, "warmup_steps": 8, "relative_error": 0.0},
            False,
            "not steady, as its pace had not settled after 8 steps of warm-up; more steps help",
        ),
        (
            {"step_time_s": (0.02, 0.021, 0.022)},
            True,
            "uncertain, as it was crowded; a free machine helps",
        ),
        ({"is_steady": False, "drift": 0.2}, False, "longer from its first quarter to its last; more steps help"),
        ({"relative_error": 0.01, "steps_counted": 8}, True, ""),  # certain enough
        ({}, False, ""),  # no cause is recorded
        ({"steps_counted": 8, "source": "torchtitan"}, False, ""),  # lines of a log, not steps, are counted
    ],
)
def test_causes_and_cures_are_those_that_are_recorded(facts: dict[str, object], crowded: bool, text: str) -> None:
    found = uncertainty_text(measured(**facts), crowded=crowded)
    assert found.endswith(text)
    assert bool(found) == bool(text)


def test_nothing_measured_is_not_uncertain() -> None:
    assert uncertainty_text(None, crowded=True) == ""
