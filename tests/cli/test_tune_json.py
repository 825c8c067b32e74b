"""The keys of what ``tune`` prints and stores as JSON: other programs read them."""

from __future__ import annotations

from torchx_cubicml.tuner import TuneResult


def test_the_keys_of_a_result_stay() -> None:
    result = TuneResult(comparison=None, best=None, launches=3, device_hours=0.5, command=())
    assert set(result.to_json()) == {
        "comparison",
        "best",
        "launches",
        "device_hours",
        "command",
        "tune_id",
        "confidence",
        "worths",
        "claims_gain",
        "launches_lacking",
        "others_measured",
        "set_aside",
        "values_set_aside",
        "refused",
        "ending",
        "scheduler_args",
        "frontier",
        "unconfirmed",
    }
