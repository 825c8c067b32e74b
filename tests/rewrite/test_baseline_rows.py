from __future__ import annotations

from dataclasses import replace

import pytest

from torchx_cubicml.advisor import Suggestion
from torchx_cubicml.records.trial import Origin
from torchx_cubicml.rewrite.choice import Choice
from torchx_cubicml.rewrite.rewriter import _baseline_rows, _time_rows
from torchx_cubicml.space.toml import parse_space


@pytest.mark.parametrize(
    ("gain", "n_baseline", "said"),
    [
        (1.3, 0, ["not measured, but predicted"]),
        (1.3, 1, ["measured once, so the gain is uncertain"]),
        (1.3, 2, []),
        (None, 0, []),
    ],
)
def test_a_gain_says_how_often_the_own_config_was_measured(
    gain: float | None, n_baseline: int, said: list[str]
) -> None:
    suggestion = Suggestion(
        config={},
        throughput=1.0,
        low=1.0,
        high=1.0,
        probability_to_fit=1.0,
        reason="",
        n_trials=4,
        gain=gain,
        n_baseline=n_baseline,
    )
    rows = _baseline_rows(Choice(config={}, suggestion=suggestion, origin=Origin.REWRITE))
    assert [text for _, text in rows] == said


def test_a_job_of_known_work_says_how_its_time_is_made() -> None:
    text = """
        objective = "soonest_done"
        [job]
        steps = 1000
        [parameters.compile]
        choices = [false, true]
        flag = "--compile"
        """
    space = parse_space(text, where="x.toml")
    parts = {"queue_s": 40.0, "startup_s": 12.0, "compile_s": 95.0, "steps_s": 210.0}
    suggestion = Suggestion(
        config={}, throughput=1 / 357, low=None, high=None, probability_to_fit=1.0, reason="", n_trials=4
    )
    choice = Choice(config={}, suggestion=replace(suggestion, time_to_done=parts), origin=Origin.REWRITE)
    told = "5 min 57 s: queued 40 s, start-up 12 s, compilation 95 s, then 1,000 steps in 3 min 30 s"
    assert _time_rows(choice, space) == [("predicted time until done", told)]
    assert _time_rows(replace(choice, suggestion=suggestion), space) == []
