from __future__ import annotations

import pytest

from torchx_cubicml.advisor import Suggestion
from torchx_cubicml.records.trial import Origin
from torchx_cubicml.rewrite.choice import Choice
from torchx_cubicml.rewrite.rewriter import _baseline_rows


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
