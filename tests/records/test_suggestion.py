from __future__ import annotations

import json

from torchx_cubicml.records.suggestion import NearTrial, Suggestion

PREDICTED = {
    "throughput": 120.0,
    "low": 100.0,
    "high": 140.0,
    "probability_to_fit": 0.9,
    "reason": "fastest of 3 trials",
    "n_trials": 3,
}
UNKNOWN = {
    "baseline_throughput": None,
    "gain": None,
    "gain_low": None,
    "gain_high": None,
    "doubt": 0.0,
    "n_baseline": 0,
}
NEAR = NearTrial(trial_id="a", differs="tp_degree 1", throughput=110.0)
SUGGESTION = Suggestion(config={"tp_degree": 2, "sharding": ("A", "B")}, nearest=(NEAR,), **PREDICTED)


def test_a_suggestion_is_written_as_json() -> None:
    written = SUGGESTION.to_json()
    assert written == {
        "config": {"tp_degree": 2, "sharding": ["A", "B"]},
        **PREDICTED,
        **UNKNOWN,
        "objective": None,
        "time_to_done": None,
        "round_number": None,
        "nearest": [{"trial_id": "a", "differs": "tp_degree 1", "throughput": 110.0, "uncertainty": 0.0}],
    }
    assert json.loads(json.dumps(written)) == written


def test_a_launch_stores_the_prediction_without_the_config() -> None:
    assert SUGGESTION.promise() == {**PREDICTED, **UNKNOWN}
