"""Averages that sampling makes differ: one value for all trials, unless the data itself differs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from torchx_cubicml.advisor.observed_averages import common_averages, with_averages
from torchx_cubicml.records.trial import State, Trial

if TYPE_CHECKING:
    from torchx_cubicml.records.values import Value


def ran(**observed: Value) -> Trial:
    return Trial(trial_id="a", workload={}, config={}, observed=observed, state=State.COMPLETED)


@pytest.mark.parametrize(
    "values",
    [
        [],
        [(1.0, 2.0), (1.0, 4.0)],
        [(1.0, 2.0), (1.0,)],
        [(1.0, "many"), (1.0, 2.0)],
        [3.0, 3.0],
        [()],
    ],
    ids=["none", "other data", "other tables", "words", "a number", "empty"],
)
def test_trials_that_disagree_have_no_common_average(values: list[Value]) -> None:
    assert common_averages([ran(embedding_pooling=value) for value in values]) == {}


def test_the_median_stands_for_all() -> None:
    trials = [ran(embedding_pooling=(0.0, each)) for each in (2.9, 3.0, 3.2)] + [ran(n_params=5)]
    averages = common_averages(trials)
    assert averages == {"embedding_pooling": (0.0, 3.0)}
    assert with_averages(trials[0], averages).observed == averages
    assert with_averages(trials[3], averages) is trials[3]
