"""Values that win across workloads, beside what chance gives."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from torchx_cubicml import Trial
from torchx_cubicml.plots.winning_values import winning_values

if TYPE_CHECKING:
    from torchx_cubicml.records.values import Config

UNIT = "tokens_per_second"


def workload(*configs: tuple[Config, float]) -> tuple[str, Config, list[Trial]]:
    trials = [Trial.completed(workload={}, config=config, tokens_per_second=rate) for config, rate in configs]
    return UNIT, max(configs, key=lambda pair: pair[1])[0], trials


def test_wins_are_counted_where_a_value_had_a_rival() -> None:
    groups = [
        workload(({"a": 1, "b": 1}, 10.0), ({"a": 2, "b": 1}, 20.0), ({"a": 3, "b": 1}, 5.0), ({"a": 3, "b": 1}, 6.0)),
        workload(({"a": 1, "b": 1}, 10.0), ({"a": 2, "b": 1}, 20.0)),
        workload(({"a": 2, "b": 1}, 30.0)),
    ]
    found = {(each.parameter, each.value): each for each in winning_values(groups)}
    assert found.keys() == {("a", 1), ("a", 2)}  # b never had a rival, and 3 in one workload alone
    assert (found["a", 2].wins, found["a", 2].workloads) == (2, 2)
    assert found["a", 2].by_chance == pytest.approx(1 / 3 + 1 / 2)
    assert found["a", 1].wins == 0


def test_true_and_one_are_different_values() -> None:
    groups = [workload(({"a": True}, 10.0), ({"a": 1}, 20.0))] * 2
    assert [(each.value, each.wins) for each in winning_values(groups)] == [(1, 2), (True, 0)]
    assert [type(each.value) for each in winning_values(groups)] == [int, bool]


def test_a_workload_without_a_measurement_counts_for_nothing() -> None:
    assert winning_values([(UNIT, None, [Trial.infeasible(workload={}, config={"a": 1})])]) == []
