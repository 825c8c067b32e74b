from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from torchx_cubicml.errors import RecordError
from torchx_cubicml.records.trial import (
    MAX_ITEMS,
    MAX_NAMES,
    MAX_TEXT,
    Measurement,
    Origin,
    State,
    Trial,
    freeze_value,
    freeze_values,
    new_id,
)


def deep_list(depth: int) -> list[object]:
    value: list[object] = []
    for _ in range(depth):
        value = [value]
    return value


HOSTILE = {
    "not a number": float("nan"),
    "infinite": float("inf"),
    "nothing": None,
    "object": {"a": 1},
    "nested list": [[1]],
    "deep list": deep_list(20_000),
    "long text": "x" * (MAX_TEXT + 1),
    "long list": [1] * (MAX_ITEMS + 1),
    "whole number without a float": 10**400,
    "whole number without digits": 10**5000,
    "array": np.ones(3),
    "bytes": b"x",
}


class TestMeasurement:
    def test_knows_its_throughput_by_objective(self) -> None:
        measurement = Measurement(tokens_per_second=10.0)
        assert measurement.throughput("tokens_per_second") == 10.0
        assert measurement.throughput("samples_per_second") is None

    def test_an_unknown_objective_names_the_legal_ones(self) -> None:
        with pytest.raises(RecordError, match=r"'speed'.*tokens_per_second, samples_per_second"):
            Measurement(tokens_per_second=10.0).throughput("speed")

    @pytest.mark.parametrize(
        "fields",
        [
            {"tokens_per_second": 0.0},
            {"tokens_per_second": -1},
            {"tokens_per_second": True},
            {"tokens_per_second": "41000"},
            {"tokens_per_second": float("nan")},
            {"samples_per_second": float("inf")},
            {"samples_per_second": 10**400},
            {"peak_memory_gib": 10**5000},
            {"steps_counted": 0},
            {"steps_counted": 1.5},
            {"warmup_steps": -1},
            {"warmup_steps": 10**5000},
            {"step_time_s": (0.1, 0.2)},
            {"step_time_s": (0.1, 0.2, -0.3)},
        ],
        ids=lambda fields: next(iter(fields)) if isinstance(fields, dict) else None,
    )
    def test_impossible_measurements_are_refused(self, fields: dict[str, object]) -> None:
        with pytest.raises(RecordError, match=next(iter(fields))):
            Measurement(**fields)

    @pytest.mark.parametrize(
        "fields",
        [
            {"relative_error": 1e300},
            {"statistic": "p50", "mean_step_time_s": 5e-324, "step_time_s": (1e300, 1e300, 1e300)},
            {"statistic": "p50", "mean_step_time_s": 1e300, "step_time_s": (5e-324, 5e-324, 5e-324)},
            {"statistic": "p50", "drift": 1e300},
            {"statistic": "p50", "share_outside_steps": 1.0},
        ],
        ids=lambda fields: next(reversed(fields)),
    )
    def test_uncertainty_is_finite_for_any_record(self, fields: dict[str, object]) -> None:
        assert 0.0 < Measurement(tokens_per_second=1.0, **fields).uncertainty <= 10.0


class TestTrial:
    def test_completed_is_an_import_with_frozen_values(self) -> None:
        trial = Trial.completed(
            workload={"n_layers": 2}, config={"sharding_strategy": ["A", "B"]}, samples_per_second=3.0
        )
        assert trial.state is State.COMPLETED
        assert trial.origin is Origin.IMPORT
        assert trial.config == {"sharding_strategy": ("A", "B")}

    def test_completed_needs_a_throughput(self) -> None:
        with pytest.raises(RecordError, match="tokens_per_second or samples_per_second"):
            Trial.completed(workload={}, config={})

    def test_two_trials_never_share_an_id(self) -> None:
        ids = {Trial.infeasible(workload={}, config={}).trial_id for _ in range(100)}
        assert len(ids) == 100
        assert new_id("tune").startswith("tune-")

    def test_infeasible_says_why(self) -> None:
        assert Trial.infeasible(workload={}, config={}, reason="timeout").state is State.TIMEOUT

    @pytest.mark.parametrize("reason", ["completed", "running", "planned", "tired"])
    def test_a_state_other_than_a_failure_is_refused(self, reason: str) -> None:
        with pytest.raises(RecordError, match=rf"'{reason}'.*out_of_memory"):
            Trial.infeasible(workload={}, config={}, reason=reason)

    def test_a_declared_fact_replaces_observed_and_requested_ones(self) -> None:
        trial = Trial(
            trial_id="a",
            workload={"x": 1},
            observed={"x": 2, "y": 2},
            config={"x": 3, "y": 3, "z": 3},
            state=State.RUNNING,
        )
        assert [trial.fact(name) for name in ("x", "y", "z", "w")] == [1, 2, 3, None]

    @pytest.mark.parametrize("attempts", [0, -1, True, 10**5000], ids=["none", "negative", "boolean", "endless"])
    def test_attempts_are_counted_from_one(self, attempts: int) -> None:
        with pytest.raises(RecordError, match="attempts"):
            Trial(trial_id="a", workload={}, config={}, state=State.RUNNING, attempts=attempts)

    def test_a_planned_trial_has_made_no_attempt(self) -> None:
        with pytest.raises(RecordError, match="planned"):
            Trial(trial_id="a", workload={}, config={}, state=State.PLANNED, attempts=2)

    def test_a_trial_has_a_name(self) -> None:
        with pytest.raises(RecordError, match="trial_id"):
            Trial(trial_id="", workload={}, config={}, state=State.RUNNING)

    def test_states_know_whether_they_are_an_end(self) -> None:
        assert [state for state in State if not state.ended] == [State.PLANNED, State.RUNNING]


class TestFreezing:
    @pytest.mark.parametrize("value", HOSTILE.values(), ids=HOSTILE.keys())
    def test_an_illegal_value_is_refused_by_name(self, value: object) -> None:
        with pytest.raises(RecordError, match=r"config\.x"):
            freeze_values({"x": value}, where="config")

    @pytest.mark.parametrize("name", ["", "x" * 129, 1, None, ("a",)], ids=repr)
    def test_an_illegal_name_is_refused(self, name: object) -> None:
        with pytest.raises(RecordError, match="config: names must be"):
            freeze_values({name: 1}, where="config")

    @pytest.mark.parametrize("values", [None, [], "x", 1], ids=repr)
    def test_other_types_than_mappings_are_refused(self, values: object) -> None:
        with pytest.raises(RecordError, match="config must map"):
            freeze_values(values, where="config")

    def test_a_flood_of_names_is_refused(self) -> None:
        with pytest.raises(RecordError, match=str(MAX_NAMES)):
            freeze_values({str(number): 1 for number in range(MAX_NAMES + 1)}, where="observed")

    @pytest.mark.parametrize(
        ("value", "plain"),
        [
            (np.int64(4), 4),
            (np.float32(0.5), 0.5),
            (np.bool_(True), True),
            (np.str_("a"), "a"),
            (State.RUNNING, "running"),
        ],
        ids=lambda value: type(value).__name__,
    )
    def test_scalars_of_libraries_become_plain(self, value: object, plain: object) -> None:
        frozen = freeze_value(value, where="x")
        assert frozen == plain
        assert type(frozen) is type(plain)


@pytest.mark.parametrize(
    "fields",
    [
        {"drift": -1.0},
        {"drift": float("inf")},
        {"share_outside_steps": 1.1},
        {"share_outside_steps": "much"},
        {"allocator_retries": -1},
        {"mean_step_time_s": 0.0},
        {"peak_reserved_gib": -1.0},
        {"source": 3},
    ],
    ids=str,
)
def test_other_fields_of_a_measurement_are_checked(fields: dict[str, object]) -> None:
    with pytest.raises(RecordError, match=next(iter(fields))):
        Measurement(**fields)


def test_throughput_per_device_is_computed() -> None:
    trial = Trial.completed(workload={"world_size": 8}, config={}, tokens_per_second=4000.0)
    assert trial.per_device("tokens_per_second") == 500.0
    assert trial.per_device("samples_per_second") is None
    assert Trial.completed(workload={}, config={}, tokens_per_second=1.0).per_device("tokens_per_second") is None


RUN = Measurement(
    tokens_per_second=80.0,
    samples_per_second=8.0,
    step_time_s=(0.8, 1.0, 1.6),
    mean_step_time_s=1.25,
    statistic="mean",
    relative_error=0.02,
)
OLD = Measurement(tokens_per_second=100.0, step_time_s=(0.8, 1.0, 1.6), mean_step_time_s=1.25, statistic="p50")


class TestStatistics:
    @pytest.mark.parametrize(
        ("statistic", "expected"), [("mean", 80.0), ("p50", 100.0), ("p90", 125.0), ("p10", 62.5)], ids=str
    )
    def test_a_mean_converts_to_each_statistic(self, statistic: str, expected: float) -> None:
        measurement = RUN.at(statistic)
        assert (measurement.tokens_per_second, measurement.samples_per_second) == (expected, expected / 10)
        assert (measurement.statistic, measurement.uncertainty) == (statistic, 0.02)
        assert measurement.at(statistic) == measurement

    def test_an_unconvertible_measurement_stays(self) -> None:
        bare = Measurement(tokens_per_second=80.0, statistic="mean")
        imported = Measurement(tokens_per_second=80.0)
        assert [each.at("p50") for each in (bare, imported)] == [bare, imported]
        assert OLD.at("mean") == OLD
        assert OLD.at("p90") == OLD

    def test_only_a_conversion_to_the_mean_adds_error(self) -> None:
        assert OLD.uncertainty == pytest.approx(math.log(1.25))
        assert OLD.at("p50").uncertainty == 0.0
        assert OLD.at("p50").throughput("tokens_per_second") == 100.0
        drifting = replace(OLD, mean_step_time_s=1.0, drift=0.1)
        assert drifting.uncertainty == drifting.at("p50").uncertainty == pytest.approx(math.log(1.1) * 1.25**0.5)

    def test_a_change_of_statistic_adds_no_error(self) -> None:
        unsure = replace(RUN, relative_error=None)
        assert unsure.uncertainty == unsure.at("p50").uncertainty == 0.0

    def test_time_outside_of_steps_adds_error_without_a_mean(self) -> None:
        assert replace(OLD, mean_step_time_s=None, share_outside_steps=0.2).uncertainty == pytest.approx(math.log(1.25))
        assert math.isfinite(replace(OLD, mean_step_time_s=None, share_outside_steps=1.0).uncertainty)

    def test_a_trial_converts_its_measurement(self) -> None:
        trial = Trial(trial_id="t", workload={}, config={}, state=State.COMPLETED, measurement=RUN)
        assert trial.at("mean") is trial
        assert trial.at("p50") == replace(trial, measurement=RUN.at("p50"))
        running = replace(trial, measurement=None, state=State.RUNNING)
        assert running.at("p50") is running

    def test_an_unknown_statistic_is_refused(self) -> None:
        with pytest.raises(RecordError, match="unknown statistic 'max'; choose from mean, p50, p10, p90"):
            RUN.at("max")
