"""Columns of trials for data frames: names, kinds and values, of plain and of hostile records."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from tests.generated.cases import ODD_VALUES
from torchx_cubicml.records.measurement import Measurement
from torchx_cubicml.records.trial import State, Trial
from torchx_cubicml.records.trial_columns import ColumnKind, TrialColumn, trial_columns


def trial(place: int = 0, **fields: Any) -> Trial:
    given = {"trial_id": f"t{place}", "workload": {}, "config": {}, "state": State.COMPLETED, **fields}
    return Trial(**given)


def columns(*trials: Trial) -> dict[str, TrialColumn]:
    found = trial_columns(trials)
    named = {column.name: column for column in found}
    assert len(named) == len(found)
    assert {len(column.values) for column in found} == {len(trials)}
    return named


def test_columns_of_the_record_are_there_without_a_trial() -> None:
    found = columns()
    assert [found[name].kind for name in ("trial_id", "started_at", "state", "round", "tokens_per_second")] == [
        ColumnKind.TEXT,
        ColumnKind.TIME,
        ColumnKind.CHOICE,
        ColumnKind.WHOLE,
        ColumnKind.REAL,
    ]
    assert found["state"].choices == tuple(map(str, State))
    assert {each.name for each in Measurement.__dataclass_fields__.values()} - found.keys() == {"step_time_s"}


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, 2], ColumnKind.WHOLE),
        ([1, 2.5], ColumnKind.REAL),
        ([True, False], ColumnKind.BOOLEAN),
        (["a", "b"], ColumnKind.TEXT),
        ([True, 1], ColumnKind.TEXT),
        ([2**64, 1], ColumnKind.TEXT),
        ([2**60, 1.5], ColumnKind.TEXT),
        ([("a", "b"), ("c",)], ColumnKind.LIST),
        (["a", ("b", "c")], ColumnKind.TEXT),
    ],
    ids=str,
)
def test_a_column_has_the_kind_of_all_its_values(values: list[Any], kind: ColumnKind) -> None:
    found = columns(*(trial(place, config={"knob": value}) for place, value in enumerate(values)), trial(9))["knob"]
    assert found.kind is kind
    assert found.values[-1] is None
    if kind is not ColumnKind.TEXT:
        assert list(found.values[:-1]) == values


def test_no_value_is_changed_on_its_way_into_text() -> None:
    found = columns(
        trial(0, config={"knob": 2**64}), trial(1, config={"knob": ("a", True)}), trial(2, config={"knob": ""})
    )
    assert found["knob"].values == ["18446744073709551616", '["a", true]', ""]


def test_a_fact_is_as_observed_and_what_was_requested_stands_beside_it() -> None:
    first = trial(
        0, config={"sharding_strategy": "FULL_SHARD", "compile": True}, observed={"sharding_strategy": "NO_SHARD"}
    )
    found = columns(first, trial(1, config={"sharding_strategy": "FULL_SHARD"}, workload={"n_layers": 2}))
    assert found["sharding_strategy"].values == ["NO_SHARD", "FULL_SHARD"]
    assert found["requested_sharding_strategy"].values == ["FULL_SHARD", None]
    assert "requested_compile" not in found
    assert found["n_layers"].values == [None, 2]


def test_a_fact_with_the_name_of_another_column_has_its_group_before_it() -> None:
    hostile = {"state": "x", "trial_id": 3, "tokens_per_second": 1e9, "requested_compile": 1}
    found = columns(trial(0, workload=hostile, observed=hostile, config={**hostile, "compile": True}))
    assert found["state"].values == ["completed"]
    assert found["tokens_per_second"].values == [None]
    assert [found[f"{group}.trial_id"].values for group in ("workload", "observed", "config")] == [[3]] * 3
    assert found["workload.requested_compile"].values == [1]


def test_rows_stand_in_the_order_of_their_start_with_times_in_utc() -> None:
    late, early = "2026-01-01T12:00:00+02:00", "2026-01-01T09:00:00+00:00"
    found = columns(trial(0, started_at=late), trial(1, started_at=early), trial(2, started_at="yesterday"))
    assert found["trial_id"].values == ["t1", "t0", "t2"]
    nine, ten = (datetime(2026, 1, 1, hour, tzinfo=UTC) for hour in (9, 10))
    assert found["started_at"].values == [nine, ten, None]
    assert columns(trial(0, started_at="0001-01-01T00:00:00+23:59"))["started_at"].values == [None]


def test_impossible_measurements_are_left_out() -> None:
    measured = Measurement(
        tokens_per_second=1e300, samples_per_second=9.0, peak_memory_gib=1e9, step_time_s=(1.0, 2.0, 3.0)
    )
    found = columns(trial(0, measurement=measured))
    names = ("tokens_per_second", "samples_per_second", "peak_memory_gib", "step_time_s_p10", "step_time_s_p90")
    assert [found[name].values for name in names] == [[None], [9.0], [None], [1.0], [3.0]]


@pytest.mark.parametrize(
    ("suggestion", "name", "values"),
    [
        ({"throughput": 9.0, "round_number": 2}, "predicted_throughput", [9.0]),
        ({"throughput": 9.0, "objective": "tokens_per_device_hour"}, "predicted_tokens_per_device_hour", [9.0]),
        ({"throughput": 9.0, "objective": "soonest_done"}, "predicted_soonest_done", [9.0]),
        ({"throughput": "9", "objective": None}, "predicted_throughput", None),
        ({"throughput": 9.0, "objective": ["x"]}, "predicted_throughput", None),
        ({"throughput": 9.0, "objective": "x"}, "predicted_x", None),
    ],
    ids=str,
)
def test_a_prediction_has_its_unit_in_its_name(suggestion: Any, name: str, values: list[float] | None) -> None:
    found = columns(trial(0, suggestion=suggestion))
    assert (found[name].values if name in found else None) == values
    assert found["round"].values == [suggestion.get("round_number")]


@pytest.mark.parametrize("value", ODD_VALUES, ids=lambda value: repr(value)[:40])
def test_odd_values_and_names_are_columns_too(value: Any) -> None:
    name = str(value)[:100] or "empty"
    found = columns(
        trial(0, workload={name: value, "n": value}, observed={"n": 1, "o": value}, reason=str(value)),
        trial(1, config={name: 1.5, "o": "text"}, provenance={"commit": value}, command={"words": (str(value),)}),
    )
    for column in found.values():
        assert "".join((column.name, *(each for each in column.values if isinstance(each, str)))).encode() is not None
