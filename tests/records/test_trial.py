from __future__ import annotations

import math
import re
import sys
from dataclasses import replace

import numpy as np
import pytest

from torchx_cubicml.errors import RecordError
from torchx_cubicml.records.measurement import Measurement
from torchx_cubicml.records.trial import Origin, State, Trial, new_id
from torchx_cubicml.records.values import MAX_ITEMS, MAX_NAMES, MAX_TEXT, Value, freeze_value, freeze_values


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


LARGEST, LEAST = sys.float_info.max, 5e-324
POSITIVE = (
    "tokens_per_second",
    "samples_per_second",
    "peak_memory_gib",
    "mean_step_time_s",
    "peak_reserved_gib",
    "tokens_per_second_overall",
    "samples_per_second_overall",
    "other_tokens_per_second",
    "other_samples_per_second",
)
A_POSITIVE, NOT_NEGATIVE = "must be a positive number", "must be a number >= 0"
A_DRIFT, A_SHARE = "must be a number > -1", "must be a number from 0 to 1"
A_COUNT, A_COUNT_FROM_ONE = "must be a whole number >= 0", "must be a whole number >= 1"
THREE_OR_NONE, A_BOOLEAN = "must hold three positive numbers or none", "must be true or false"
A_TEXT, A_STATISTIC = "must be a string of at most 4096 characters", "must be one of mean, p50, p10, p90"
FIELDS = {
    **{name: ([LEAST, 1, LARGEST], [0, 0.0, -1, True, "1", math.inf, math.nan], A_POSITIVE) for name in POSITIVE},
    **{
        name: ([0, 0.0, 1, LARGEST], [-1, -LEAST, True, "1", math.inf, math.nan], NOT_NEGATIVE)
        for name in ("relative_error", "evaluation_s", "checkpoint_s")
    },
    "drift": ([-0.999, 0, LARGEST], [-1, -1.5, True, "1", math.inf, math.nan], A_DRIFT),
    "share_outside_steps": ([0, 0.5, 1], [-LEAST, 1.000001, True, "1", math.nan], A_SHARE),
    "allocator_retries": ([0, 1, 2**64], [-1, 0.5, True, "1", 2**64 + 1], A_COUNT),
    "warmup_steps": ([0, 1, 2**64], [-1, 0.5, True, "1", 2**64 + 1], A_COUNT),
    "steps_counted": ([1, 2, 2**64], [0, 1.5, True, "1", 2**64 + 1], A_COUNT_FROM_ONE),
    "step_time_s": (
        [(), (LEAST, 1, LARGEST)],
        [(1.0,), (1.0, 1.0), (1.0,) * 4, (1.0, 0.0, 1.0), (1.0, 1.0, True), ("a", "b", "c")],
        THREE_OR_NONE,
    ),
    **{name: (["", "x" * 4096], ["x" * 4097, 3, None], A_TEXT) for name in ("source", "other_source")},
    "statistic": (["", "mean", "p50", "p10", "p90"], ["max", "MEAN"], A_STATISTIC),
    **{name: ([None, True, False], ["yes", 2], A_BOOLEAN) for name in ("is_steady", "may_include_evaluation")},
}
OPTIONAL = set(FIELDS) - {"warmup_steps", "steps_counted", "step_time_s", "source", "other_source", "statistic"}


class TestFieldsOfMeasurements:
    @pytest.mark.parametrize("name", FIELDS)
    def test_every_legal_value_is_kept(self, name: str) -> None:
        for value in (*FIELDS[name][0], *([None] if name in OPTIONAL else [])):
            assert getattr(Measurement(**{name: value}), name) is value

    @pytest.mark.parametrize("name", FIELDS)
    def test_an_illegal_value_is_refused_with_the_rule(self, name: str) -> None:
        _, illegal, rule = FIELDS[name]
        for value in illegal:
            with pytest.raises(RecordError, match=f"^{name} {rule}, got "):
                Measurement(**{name: value})

    def test_nothing_is_known_by_default(self) -> None:
        empty = Measurement()
        assert (empty.steps_counted, empty.warmup_steps, empty.step_time_s) == (1, 0, ())
        assert (empty.source, empty.other_source, empty.statistic) == ("", "", "")
        assert {name for name in FIELDS if getattr(empty, name) is None} == OPTIONAL
        assert (empty.uncertainty, empty.peak_gib, empty.impossible()) == (0.0, None, "")

    @pytest.mark.parametrize(
        ("value", "display"),
        [
            (-(2**64 - 1), "-18446744073709551615"),
            (-(2**64), "a whole number of 65 bits"),
            ([1, 2], "a list of 2 entries"),
            ((), "a tuple of 0 entries"),
            ({"a": 1}, "a dict of 1 entries"),
            ("x" * 99, "'" + "x" * 59),
        ],
        ids=lambda value: str(value)[:16],
    )
    def test_a_message_shows_a_large_value_in_short(self, value: object, display: str) -> None:
        with pytest.raises(RecordError, match=f"got {re.escape(display)}$"):
            Measurement(tokens_per_second=value)


class TestBounds:
    @pytest.mark.parametrize("objective", ["tokens_per_second", "samples_per_second"])
    def test_a_throughput_outside_of_any_training_is_impossible(self, objective: str) -> None:
        for rate in (1e-6, 1.0, 1e12):
            measurement = Measurement(**{objective: rate})
            assert (measurement.throughput(objective), measurement.impossible()) == (rate, "")
        unit = f"{objective.partition('_')[0]}/s"
        for rate, display in (
            (math.nextafter(1e-6, 0), "1e-06"),
            (math.nextafter(1e12, 1e13), "1e+12"),
            (2e12, "2e+12"),
        ):
            measurement = Measurement(**{objective: rate})
            assert (measurement.throughput(objective), measurement.impossible()) == (None, f"{display} {unit}")

    def test_of_two_throughputs_either_can_be_impossible(self) -> None:
        assert Measurement(tokens_per_second=2e12, samples_per_second=2e13).impossible() == "2e+12 tokens/s"
        assert Measurement(tokens_per_second=1.0, samples_per_second=2e13).impossible() == "2e+13 samples/s"

    def test_a_peak_outside_of_any_machine_is_unknown(self) -> None:
        peaks = (math.nextafter(1e-6, 0), 1e-6, 80.0, 1e6, math.nextafter(1e6, 1e7))
        known = [Measurement(peak_memory_gib=peak).peak_gib for peak in peaks]
        assert known == [None, 1e-6, 80.0, 1e6, None]

    @pytest.mark.parametrize(
        ("fields", "uncertainty"),
        [
            ({"relative_error": 0.25, "statistic": "p50", "drift": 9.0}, 0.25),
            ({"relative_error": 10.5}, 10.0),
            ({"statistic": "p50"}, 0.0),
            ({"statistic": "p50", "mean_step_time_s": 1.25, "step_time_s": (0.5, 1.0, 4.0)}, math.log(1.25)),
            ({"statistic": "p50", "mean_step_time_s": 0.8, "step_time_s": (0.5, 1.0, 4.0)}, math.log(1.25)),
            ({"statistic": "p50", "mean_step_time_s": 1.25, "share_outside_steps": 0.5}, math.log(2.0)),
            ({"statistic": "p50", "step_time_s": (0.5, 1.0, 4.0), "share_outside_steps": 0.5}, math.log(2.0)),
            ({"statistic": "p50", "share_outside_steps": 1.0}, math.log(100.0)),
            ({"statistic": "p50", "drift": math.e - 1}, math.sqrt(1.25)),
            ({"statistic": "p50", "drift": math.e**2 - 1, "share_outside_steps": 0.5}, math.hypot(5**0.5, math.log(2))),
            ({"statistic": "p50", "drift": LARGEST}, 10.0),
            ({"statistic": "p90", "drift": 1.0, "share_outside_steps": 0.5}, 0.0),
            ({"drift": 1.0, "share_outside_steps": 0.5}, 0.0),
        ],
        ids=str,
    )
    def test_the_uncertainty_of_a_run_alone(self, fields: dict[str, object], uncertainty: float) -> None:
        assert Measurement(**fields).uncertainty == pytest.approx(uncertainty)


class TestTrial:
    def test_completed_is_an_import_with_frozen_values(self) -> None:
        trial = Trial.completed(
            workload={"n_layers": 2}, config={"sharding_strategy": ["A", "B"]}, samples_per_second=3.0
        )
        assert trial.state is State.COMPLETED
        assert trial.origin is Origin.IMPORT
        assert trial.config == {"sharding_strategy": ("A", "B")}

    def test_completed_keeps_each_number(self) -> None:
        trial = Trial.completed(
            workload={"a": [1]}, config={}, tokens_per_second=2.0, samples_per_second=3.0, peak_memory_gib=4.0
        )
        assert trial.measurement == Measurement(tokens_per_second=2.0, samples_per_second=3.0, peak_memory_gib=4.0)
        assert (trial.workload, trial.config, trial.launch_id, trial.attempts) == ({"a": (1,)}, {}, "", 1)
        assert trial.trial_id.startswith("import-")
        assert len(trial.trial_id) == len("import-9f2c61d07e1b4a55")

    def test_infeasible_has_a_failure_and_no_measurement(self) -> None:
        trial = Trial.infeasible(workload={"a": [1]}, config={"b": [2]})
        assert (trial.workload, trial.config) == ({"a": (1,)}, {"b": (2,)})
        assert (trial.state, trial.origin, trial.measurement) == (State.OUT_OF_MEMORY, Origin.IMPORT, None)
        assert trial.trial_id.startswith("import-")

    @pytest.mark.parametrize("fields", [{"workload": {"x": None}}, {"config": {"x": None}}], ids=["workload", "config"])
    def test_an_illegal_fact_of_an_import_is_named(self, fields: dict[str, object]) -> None:
        arguments = {"workload": {}, "config": {}, **fields}
        message = rf"^{next(iter(fields))}\.x must be"
        with pytest.raises(RecordError, match=message):
            Trial.completed(**arguments, tokens_per_second=1.0)
        with pytest.raises(RecordError, match=message):
            Trial.infeasible(**arguments)

    @pytest.mark.parametrize("state", [state for state in State if state not in {"planned", "running", "completed"}])
    def test_infeasible_can_have_each_failure(self, state: State) -> None:
        assert Trial.infeasible(workload={}, config={}, reason=str(state)).state is state

    def test_states_and_origins_are_stored_under_these_names(self) -> None:
        assert " ".join(State) == (
            "planned running completed stopped_early out_of_memory timeout infrastructure user_error unknown"
        )
        assert " ".join(Origin) == "user rewrite explore tune import"

    @pytest.mark.parametrize(
        ("devices", "rate"),
        [(1, 14_400_000.0), (8, 1_800_000.0), (0, None), (-8, None), (8.0, None), ("8", None)],
        ids=repr,
    )
    def test_only_a_count_of_devices_divides(self, devices: Value, rate: float | None) -> None:
        trial = Trial.completed(workload={}, config={"world_size": devices}, tokens_per_second=4000.0)
        assert trial.throughput("tokens_per_device_hour") == rate
        assert replace(trial, measurement=None).throughput("tokens_per_device_hour") is None

    @pytest.mark.parametrize("attempts", [1, 2, 2**64])
    def test_a_trial_can_have_so_many_attempts(self, attempts: int) -> None:
        trial = Trial(trial_id="a", workload={}, config={}, state=State.RUNNING, attempts=attempts)
        assert trial.attempts == attempts
        assert (trial.launch_id, trial.reason, trial.started_at, trial.ended_at) == ("", "", "", "")

    def test_a_plan_counts_one_attempt(self) -> None:
        assert Trial(trial_id="a", workload={}, config={}, state=State.PLANNED).attempts == 1

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

    @pytest.mark.parametrize(
        "value",
        [
            "x" * MAX_TEXT,
            np.str_("x" * MAX_TEXT),
            2**64,
            -(2**64),
            LARGEST,
            -LARGEST,
            0.0,
            True,
            False,
            (1,) * MAX_ITEMS,
            ("x" * MAX_TEXT, 2**64, -(2**64), True, 0.5),
            (),
        ],
        ids=lambda value: f"{type(value).__name__} {value!r:.12}",
    )
    def test_a_value_up_to_its_limit_is_kept(self, value: object) -> None:
        assert freeze_values({"x": value}, where="config") == {"x": value}
        assert freeze_value(value, where="config") == value

    @pytest.mark.parametrize(
        ("value", "rule"),
        [
            ("x" * 4097, "has 4097 characters; the limit is 4096"),
            (["x" * 4097], "has 4097 characters; the limit is 4096"),
            ([1] * 4097, "has 4097 items; the limit is 4096"),
            (2**64 + 1, "must be a boolean, a finite number, a string or a flat list of them, got a whole number of"),
            (
                -(2**64) - 1,
                "must be a boolean, a finite number, a string or a flat list of them, got a whole number of",
            ),
            ([2**64 + 1], "must be a boolean, a finite number, a string or a flat list of them, got a whole number of"),
            ([-math.inf], "must be a boolean, a finite number, a string or a flat list of them, got -inf"),
        ],
        ids=lambda value: f"{value!r:.12}",
    )
    def test_a_value_over_its_limit_is_refused_with_it(self, value: object, rule: str) -> None:
        for freeze in (
            lambda: freeze_values({"x": value}, where="config"),
            lambda: freeze_value(value, where="config.x"),
        ):
            with pytest.raises(RecordError, match=rf"^config\.x {rule}"):
                freeze()

    def test_as_many_and_as_long_names_as_allowed_are_kept(self) -> None:
        names = ["a", "x" * 128, *map(str, range(MAX_NAMES - 2))]
        assert MAX_NAMES == 512
        assert list(freeze_values(dict.fromkeys(names, 1), where="config")) == names

    def test_only_a_scalar_of_a_library_is_converted(self) -> None:
        class Lazy:
            shape, item = (), 5

        class Text(str):
            __slots__ = ()

        with pytest.raises(RecordError, match=r"^x must be"):
            freeze_value(Lazy(), where="x")
        with pytest.raises(RecordError, match=r"^x must be"):
            freeze_value(np.ones(1), where="x")
        assert freeze_value(np.array(2.5), where="x") == 2.5
        frozen = freeze_values({"x": Text("a"), "y": [Text("b"), np.int32(3)]}, where="config")
        assert frozen == {"x": "a", "y": ("b", 3)}
        assert [type(frozen["x"]), *map(type, frozen["y"])] == [str, str, int]

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
