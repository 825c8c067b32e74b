"""Scores of stored predictions: which launches count, and what lies in an interval."""

from __future__ import annotations

from dataclasses import replace

from torchx_cubicml import Trial
from torchx_cubicml.predictors.forecast_scores import forecast_scores

OBJECTIVE = "tokens_per_second"


def launch(measured: float, predicted: float | None, *, number: int | None = None, low: object = None) -> Trial:
    trial = Trial.completed(workload={"program": "t.py"}, config={"a": 1}, tokens_per_second=measured)
    if predicted is None:
        return trial
    ends = {"low": low, "high": predicted * 1.1} if low is not None else {}
    return replace(trial, suggestion={"throughput": predicted, "round_number": number, **ends})


def test_launches_that_were_predicted_and_measured_count() -> None:
    trials = [
        launch(10.0, 11.0, low=9.0),
        launch(20.0, 22.0, low=21.0),
        launch(30.0, 33.0),
        launch(25.0, 26.0, low=True),
        launch(99.0, None),
    ]
    scores = forecast_scores(trials, objective=OBJECTIVE)
    assert scores is not None
    assert (scores.launches, scores.tau, scores.spearman) == (4, 1.0, 1.0)
    assert (scores.inside, scores.with_interval) == (1, 2)
    assert "over 4 launches: Kendall's tau 1.00" in str(scores)
    assert "1 of 2 measurements (50%) lie in their 80 % interval" in str(scores)


def test_only_rounds_count_where_there_are_some() -> None:
    trials = [launch(10.0 * number, 30.0 - number, number=1) for number in (1, 2, 3)]
    scores = forecast_scores([*trials, launch(500.0, 500.0)], objective=OBJECTIVE)
    assert scores is not None
    assert (scores.launches, scores.tau, scores.with_interval) == (3, -1.0, 0)


def test_too_few_launches_or_equal_ones_have_no_score() -> None:
    assert forecast_scores([launch(1.0, 1.0), launch(2.0, 2.0)], objective=OBJECTIVE) is None
    assert forecast_scores([launch(1.0, 5.0)] * 4, objective=OBJECTIVE) is None
