from __future__ import annotations

import json
import re
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchx_cubicml.errors import RecordError
from torchx_cubicml.records.event import (
    MAX_REASON,
    SCHEMA_VERSION,
    TUNER,
    Event,
    EventKind,
    fold_events,
    measurement_from_json,
    trial_events,
)
from torchx_cubicml.records.measurement import STATISTICS, Measurement
from torchx_cubicml.records.redaction import MASK, mask, names_secret
from torchx_cubicml.records.trial import Origin, State, Trial

if TYPE_CHECKING:
    from random import Random

GOLDEN = Path(__file__).parents[1] / "data" / "records" / "v1"
ENDS = [state for state in State if state.ended]

names = st.text(min_size=1, max_size=12).filter(lambda name: not names_secret(name) and mask(name) == name)
texts = st.text(max_size=20).filter(lambda text: mask(text) == text)
scalars = st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False, allow_infinity=False) | texts
facts = st.dictionaries(names, scalars | st.lists(scalars, max_size=4).map(tuple), max_size=4)
ids = st.text(min_size=1, max_size=8).filter(lambda text: mask(text) == text)
positive = st.floats(1e-6, 1e12)
not_negative = st.floats(0.0, 1e6)
measurements = st.builds(
    Measurement,
    tokens_per_second=st.none() | positive,
    samples_per_second=st.none() | positive | st.integers(1, 10**9),
    steps_counted=st.integers(1, 10**6),
    warmup_steps=st.integers(0, 100),
    step_time_s=st.just(()) | st.tuples(positive, positive, positive),
    peak_memory_gib=st.none() | positive,
    mean_step_time_s=st.none() | positive,
    drift=st.none() | st.floats(-0.9, 9.0),
    share_outside_steps=st.none() | st.floats(0.0, 1.0),
    peak_reserved_gib=st.none() | positive,
    allocator_retries=st.none() | st.integers(0, 9),
    source=texts,
    statistic=st.sampled_from(["", *STATISTICS]),
    relative_error=st.none() | not_negative,
    evaluation_s=st.none() | not_negative,
    checkpoint_s=st.none() | not_negative,
    tokens_per_second_overall=st.none() | positive,
    samples_per_second_overall=st.none() | positive,
    is_steady=st.none() | st.booleans(),
    may_include_evaluation=st.none() | st.booleans(),
    other_source=texts,
    other_tokens_per_second=st.none() | positive,
    other_samples_per_second=st.none() | positive,
)
suggestions = st.none() | st.dictionaries(
    names, scalars | st.none() | st.lists(scalars, max_size=3), min_size=1, max_size=3
)
moments = st.just("") | st.datetimes().map(lambda moment: moment.isoformat())
arguments = st.none() | st.lists(st.sampled_from(["--lr", "0.1", "", "--max_tokens"]), max_size=3).map(tuple)
attempts = st.tuples(st.integers(0, 3), st.integers(0, 3))


@st.composite
def events(draw: st.DrawFn) -> Event:
    kind = draw(st.sampled_from(EventKind))
    return Event(
        kind=kind,
        trial_id=draw(texts),
        launch_id=draw(ids),
        attempt=draw(attempts),
        sequence=draw(st.integers(0, 9)),
        writer=draw(st.sampled_from(["rank0", "rank1", "tune"])),
        time=draw(moments),
        workload=draw(facts),
        config=draw(facts),
        origin=draw(st.sampled_from(Origin)),
        observed=draw(facts),
        measurement=draw(st.none() | measurements),
        state=draw(st.sampled_from(ENDS)) if kind is EventKind.ENDED else None,
        reason=draw(texts),
        suggestion=draw(suggestions),
        arguments=draw(arguments),
        extra=draw(st.dictionaries(st.sampled_from(["rack", "energy_j"]), scalars | st.none())),
    )


@st.composite
def trials(draw: st.DrawFn) -> Trial:
    state = draw(st.sampled_from(State))
    return Trial(
        trial_id=draw(ids),
        workload=draw(facts),
        config=draw(facts),
        state=state,
        observed=draw(facts),
        measurement=draw(st.none() | measurements),
        origin=draw(st.sampled_from(Origin)),
        launch_id=draw(st.just("") | ids),
        attempts=1 if state is State.PLANNED else draw(st.integers(1, 3)),
        reason=draw(texts) if state.ended else "",
        suggestion=draw(suggestions),
        arguments=draw(arguments),
        started_at=draw(moments),
        ended_at=draw(moments) if state.ended else "",
    )


def through_json(event: Event) -> Event:
    return Event.from_json(json.loads(json.dumps(event.to_json(), allow_nan=False)))


def started(**fields: object) -> Event:
    return Event(**{"kind": EventKind.STARTED, "trial_id": "a", "writer": "rank0", **fields})


def ended(state: State, **fields: object) -> Event:
    return Event(
        **{"kind": EventKind.ENDED, "trial_id": "a", "writer": "rank0", "sequence": 9, "state": state, **fields}
    )


class TestJson:
    @given(events())
    @settings(max_examples=60)
    def test_a_legal_event_comes_back_equal(self, event: Event) -> None:
        assert through_json(event) == event

    def test_an_event_says_its_schema_and_leaves_out_what_is_empty(self) -> None:
        assert started(attempt=(1, 2)).to_json() == {
            "schema": SCHEMA_VERSION,
            "event": "started",
            "trial_id": "a",
            "attempt": [1, 2],
            "sequence": 0,
            "writer": "rank0",
            "origin": "user",
        }

    def test_arguments_are_written_as_digests(self) -> None:
        event = through_json(started(arguments=("--lr", "0.1", "--data", "/home/me", "--api-key", "hunter2")))
        assert event.arguments == ("--lr", "0.1", "--data", "~1f8256cf", "--api-key", "***")
        assert through_json(event) == event

    def test_an_event_of_all_fields_is_written_under_their_names(self) -> None:
        event = ended(
            State.TIMEOUT,
            launch_id="l",
            attempt=(3, 4),
            time="2026-01-01",
            workload={"n_layers": 2},
            config={"tp_degree": 1},
            origin=Origin.TUNE,
            observed={"x": (1, 2)},
            measurement=Measurement(tokens_per_second=2.0),
            reason="too slow",
            suggestion={"low": 1.0},
            arguments=("--lr", "0.1"),
            extra={"rack": 7},
        )
        assert event.to_json() == {
            "rack": 7,
            "schema": 1,
            "event": "ended",
            "trial_id": "a",
            "launch_id": "l",
            "attempt": [3, 4],
            "sequence": 9,
            "writer": "rank0",
            "time": "2026-01-01",
            "workload": {"n_layers": 2},
            "config": {"tp_degree": 1},
            "origin": "tune",
            "observed": {"x": [1, 2]},
            "measurement": {"tokens_per_second": 2.0, "steps_counted": 1, "warmup_steps": 0, "statistic": ""},
            "state": "timeout",
            "reason": "too slow",
            "suggestion": {"low": 1.0},
            "arguments": ["--lr", "0.1"],
        }
        assert through_json(event) == event

    @pytest.mark.parametrize("kind", ["planned", "started", "measured"])
    def test_all_fields_but_an_id_can_be_missing(self, kind: str) -> None:
        event = Event.from_json({"schema": 1, "event": kind, "launch_id": "l"})
        assert event == Event(kind=EventKind(kind), launch_id="l")
        assert (event.trial_id, event.attempt, event.sequence, event.writer, event.time) == ("", (0, 0), 0, "", "")
        assert (event.origin, event.reason, event.state, event.extra) == (Origin.USER, "", None, {})
        assert (event.workload, event.config, event.observed, event.suggestion) == ({}, {}, {}, None)

    def test_an_unknown_field_is_kept_as_read(self) -> None:
        payload = {**started().to_json(), "kind": 1, "extra": {"a": None}, "rack": [7]}
        event = Event.from_json(payload)
        assert event.extra == {"kind": 1, "extra": {"a": None}, "rack": [7]}
        assert event.to_json() == payload

    @pytest.mark.parametrize("name", ["trial_id", "launch_id", "writer", "time", "reason"])
    def test_a_text_has_at_most_64_ki_characters(self, name: str) -> None:
        payload = {"schema": 1, "event": "started", "trial_id": "a", name: "x" * 65_536}
        assert getattr(Event.from_json(payload), name) == "x" * 65_536
        with pytest.raises(RecordError, match=f"^invalid event: {name} must be a string of at most 65536 characters"):
            Event.from_json({**payload, name: "x" * 65_537})

    def test_counts_go_up_to_the_largest_whole_number(self) -> None:
        payload = {"schema": 1, "event": "started", "trial_id": "a", "sequence": 2**64, "attempt": [2**64, 2**64]}
        event = Event.from_json(payload)
        assert (event.sequence, event.attempt) == (2**64, (2**64, 2**64))
        for change in ({"sequence": 2**64 + 1}, {"attempt": [2**64 + 1, 0]}, {"attempt": [0, 2**64 + 1]}):
            with pytest.raises(RecordError, match=f"invalid event: {next(iter(change))} must be a whole number"):
                Event.from_json({**payload, **change})

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"schema": 2}, "unknown schema 2; this version reads 1 to 1"),
            ({"event": None}, "None is not a valid EventKind"),
            ({"attempt": [0, 0, 0]}, "attempt must be two whole numbers, got [0, 0, 0]"),
            ({"attempt": 5}, "attempt must be two whole numbers, got 5"),
            ({"workload": []}, "workload must map names to values, got list"),
            ({"config": 5}, "config must map names to values, got int"),
            ({"observed": "x"}, "observed must map names to values, got str"),
            ({"measurement": 5}, "measurement must be a JSON object, got 5"),
            ({"suggestion": [1]}, "suggestion must be a JSON object, got [1]"),
            ({"state": "lost"}, "'lost' is not a valid State"),
            ({"origin": "mars"}, "'mars' is not a valid Origin"),
        ],
        ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
    )
    def test_a_refusal_says_which_field_is_wrong(self, change: dict[str, object], message: str) -> None:
        with pytest.raises(RecordError, match=f"^invalid event: {re.escape(message)}$"):
            Event.from_json({"schema": 1, "event": "started", "trial_id": "a", **change})

    def test_an_event_without_a_kind_is_refused(self) -> None:
        with pytest.raises(RecordError, match=r"^invalid event: '' is not a valid EventKind$"):
            Event.from_json({"schema": 1, "trial_id": "a"})

    @pytest.mark.parametrize(
        ("payload", "statistic"),
        [
            ({"tokens_per_second": 1.0}, ""),
            ({"tokens_per_second": 1.0, "source": "Lightning"}, "p50"),
            ({"tokens_per_second": 1.0, "step_time_s": [0.1, 0.2, 0.3]}, "p50"),
            ({"tokens_per_second": 1.0, "step_time_s": [0.1, 0.2, 0.3], "statistic": ""}, ""),
            ({"tokens_per_second": 1.0, "source": "Lightning", "statistic": "mean"}, "mean"),
            ({"tokens_per_second": 1.0, "step_time_s": [], "energy_j": 4}, ""),
        ],
        ids=["imported", "log", "steps", "unknown", "mean", "later field"],
    )
    def test_an_older_measurement_is_at_the_median(self, payload: dict[str, object], statistic: str) -> None:
        measurement = measurement_from_json(payload)
        assert measurement is not None
        assert (measurement.statistic, measurement.tokens_per_second) == (statistic, 1.0)
        assert measurement.step_time_s == tuple(payload.get("step_time_s", ()))
        assert measurement.source == payload.get("source", "")

    def test_no_measurement_is_none(self) -> None:
        assert measurement_from_json(None) is None

    def test_a_secret_truth_value_and_nothing_stay_as_they_are(self) -> None:
        config = {"use_auth_token": False, "lr": 0.0, "names": ("", "b"), "n": 0, "text": ""}
        assert started(config=config).to_json()["config"] == {**config, "names": ["", "b"]}

    def test_ordinary_values_are_unchanged(self) -> None:
        workload = {
            "program": "-m pkg.train",
            "world_size": 8,
            "n_layers": 2,
            "num_key_value_heads": 8,
            "tokenizer": "gpt2",
        }
        config = {
            "micro_batch_size": 4,
            "sharding_strategy": ("FULL_SHARD", "NO_SHARD"),
            "max_tokens": 4096,
            "eos_token_id": 2,
            "key_dim": 64,
            "compile": True,
            "lr": 3e-4,
            "nccl_proto": "LL128",
            "dtype": "größer",
        }
        trial = Trial.completed(workload=workload, config=config, tokens_per_second=1.5)
        assert fold_events(map(through_json, trial_events(trial))) == [trial]

    def test_secrets_are_masked_wherever_they_stand(self) -> None:
        event = ended(
            State.USER_ERROR,
            workload={"program": "train.py", "HF_TOKEN": "hunter2"},
            config={"api_key": "hunter2", "passwords": ("hunter2", "hunter2"), "url": "https://me:hunter2@host/data"},
            observed={"--token=hunter2": 1, "use_auth_token": True, "layers": ("password=hunter2",)},
            reason="login failed: --api_key hunter2",
            suggestion={
                "reason": "password=hunter2",
                "config": {"api_key": "hunter2", "paths": ["https://me:hunter2@x"]},
            },
        )
        text = json.dumps(event.to_json())
        assert "hunter2" not in text
        assert event.to_json()["config"] == {"api_key": MASK, "passwords": MASK, "url": f"https://{MASK}@host/data"}
        assert through_json(event).observed["use_auth_token"] is True

    def test_a_long_reason_is_cut_after_it_was_masked(self) -> None:
        reason = through_json(
            ended(State.USER_ERROR, reason="x" * (MAX_REASON - 9) + " password=hunter2" * 9999)
        ).reason
        assert len(reason) == MAX_REASON
        assert "hun" not in reason

    def test_an_infinite_prediction_is_dropped(self) -> None:
        suggestion = {"throughput": float("nan"), "range": (1.0, float("inf"))}
        assert through_json(started(suggestion=suggestion)).suggestion == {"throughput": None, "range": [1.0, None]}

    @pytest.mark.parametrize(
        "fields",
        [
            {"kind": EventKind.STARTED},
            {"kind": EventKind.ENDED, "trial_id": "a"},
            {"kind": EventKind.STARTED, "trial_id": "a", "state": State.COMPLETED},
            {"kind": EventKind.ENDED, "trial_id": "a", "state": State.RUNNING},
        ],
        ids=["nameless", "end without state", "state without end", "end that is none"],
    )
    def test_an_empty_event_is_refused(self, fields: dict[str, object]) -> None:
        with pytest.raises(RecordError):
            Event(**fields)


class TestHostileJson:
    @pytest.mark.parametrize(
        "change",
        [
            {"schema": 2},
            {"schema": 0},
            {"schema": True},
            {"schema": None},
            {"schema": [1]},
            {"event": "exploded"},
            {"event": {}},
            {"event": "ended"},
            {"trial_id": ""},
            {"trial_id": 5},
            {"trial_id": "x" * 10_000_000},
            {"reason": ["x"]},
            {"attempt": 1},
            {"attempt": [0]},
            {"attempt": [0, -1]},
            {"attempt": [0, 10**4000]},
            {"attempt": {"0": 0}},
            {"sequence": 1.5},
            {"sequence": True},
            {"origin": ["user"]},
            {"state": {}},
            {"state": "completed"},
            {"workload": []},
            {"config": {"a": None}},
            {"config": {"a": {"b": 1}}},
            {"config": {"": 1}},
            {"config": {"a": [[1]]}},
            {"config": {"a": float("nan")}},
            {"config": {"a": 10**4000}},
            {"config": {"a": [0] * 100_000}},
            {"observed": {str(number): 1 for number in range(100_000)}},
            {"measurement": 5},
            {"measurement": {"tokens_per_second": "fast"}},
            {"measurement": {"tokens_per_second": float("inf")}},
            {"measurement": {"tokens_per_second": 10**4000}},
            {"measurement": {"steps_counted": None}},
            {"measurement": {"step_time_s": 5}},
            {"measurement": {"step_time_s": "abc"}},
            {"measurement": {"step_time_s": None}},
            {"measurement": {"step_time_s": [[1], [2], [3]]}},
            {"suggestion": [1]},
        ],
        ids=lambda change: (
            "-".join(f"{name}={value!r:.20}" for name, value in change.items() if len(str(value)) < 4000)
            or next(iter(change))
        ),
    )
    def test_illegal_json_is_a_record_error(self, change: dict[str, object]) -> None:
        with pytest.raises(RecordError):
            Event.from_json({"schema": 1, "event": "started", "trial_id": "a", **change})

    @pytest.mark.parametrize("field", ["config", "measurement", "attempt", "suggestion", "trial_id", "schema", "event"])
    def test_deeply_nested_json_is_a_record_error_or_kept(self, field: str) -> None:
        deep: object = 1
        for _ in range(20_000):
            deep = [deep]
        with pytest.raises(RecordError):
            Event.from_json({"schema": 1, "event": "started", "trial_id": "a", field: deep})

    @pytest.mark.parametrize("payload", [None, [], "x", 1, float("nan")], ids=repr)
    def test_a_json_value_that_is_no_object_is_a_record_error(self, payload: object) -> None:
        with pytest.raises(RecordError, match="object"):
            Event.from_json(payload)

    json_values = st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=8,
    )
    fields = sorted(set(Event.__slots__) - {"kind", "extra"} | {"event", "schema"})

    @given(st.dictionaries(st.sampled_from(fields), json_values | st.sampled_from(["a", 1, "started", "ended", {}])))
    @settings(max_examples=120)
    def test_any_object_is_an_event_or_a_record_error(self, payload: dict[str, object]) -> None:
        try:
            event = Event.from_json({"schema": 1, "event": "started", "trial_id": "a", **payload})
        except RecordError:
            return
        fold_events([event])


class TestFold:
    @given(trials())
    @settings(max_examples=60)
    def test_a_trial_comes_back_from_its_events(self, trial: Trial) -> None:
        assert fold_events(map(through_json, trial_events(trial))) == [trial]

    def test_as_few_events_as_possible(self) -> None:
        trial = Trial.completed(workload={"n_layers": 2}, config={"tp_degree": 1}, tokens_per_second=2.0)
        assert [event.kind for event in trial_events(trial)] == [EventKind.STARTED, EventKind.ENDED]

    def test_a_restarted_trial_becomes_an_event_per_attempt(self) -> None:
        measurement = Measurement(tokens_per_second=2.0)
        trial = Trial(
            trial_id="a",
            launch_id="l",
            workload={"n_layers": 2},
            config={"tp_degree": [1, 2]},
            observed={"x": 3},
            state=State.TIMEOUT,
            measurement=measurement,
            origin=Origin.TUNE,
            attempts=3,
            reason="slow",
            suggestion={"low": 1.0},
            started_at="2026-01-01",
            ended_at="2026-01-02",
        )
        base = Event(kind=EventKind.STARTED, trial_id="a", launch_id="l", writer="w", origin=Origin.TUNE)
        begin = replace(
            base,
            time="2026-01-01",
            workload={"n_layers": 2},
            config={"tp_degree": (1, 2)},
            observed={"x": 3},
            suggestion={"low": 1.0},
        )
        restarts = [replace(base, attempt=(0, 1)), replace(base, attempt=(0, 2))]
        end = replace(
            base,
            kind=EventKind.ENDED,
            attempt=(0, 2),
            sequence=1,
            time="2026-01-02",
            measurement=measurement,
            state=State.TIMEOUT,
            reason="slow",
        )
        assert trial_events(trial, writer="w") == [begin, *restarts, end]
        running = replace(trial, state=State.RUNNING, ended_at="", reason="")
        assert trial_events(running, writer="w") == [replace(begin, measurement=measurement), *restarts]
        assert {event.writer for event in trial_events(trial)} == {""}

    @pytest.mark.parametrize("field", ["workload", "config", "observed"])
    def test_an_illegal_fact_of_a_trial_is_named(self, field: str) -> None:
        trial = replace(Trial.infeasible(workload={}, config={}), **{field: {"x": None}})
        with pytest.raises(RecordError, match=rf"^{field}\.x must be"):
            trial_events(trial)

    @pytest.mark.parametrize(
        ("early", "late"),
        [
            ({"kind": EventKind.PLANNED, "attempt": (9, 9), "sequence": 9}, {}),
            ({"attempt": (0, 0), "sequence": 9}, {"attempt": (0, 1)}),
            ({"attempt": (0, 9)}, {"attempt": (1, 0)}),
            ({"sequence": 0, "writer": "rank1"}, {"sequence": 1}),
            ({"writer": "rank0", "kind": EventKind.STARTED}, {"writer": "rank1", "kind": EventKind.MEASURED}),
            ({"kind": EventKind.MEASURED, "time": "2030"}, {"kind": EventKind.STARTED, "time": "2020"}),
            ({"time": "2026-01-01"}, {"time": "2026-01-02"}),
        ],
        ids=["plan", "restart", "resubmission", "sequence", "writer", "kind", "time"],
    )
    def test_a_later_event_replaces_the_facts_of_an_earlier_one(
        self, early: dict[str, object], late: dict[str, object]
    ) -> None:
        first, second = started(**early, observed={"x": 1, "y": 1}), started(**late, observed={"x": 2, "z": 2})
        for recorded in ([first, second], [second, first]):
            assert fold_events(recorded)[0].observed == {"x": 2, "y": 1, "z": 2}

    def test_the_first_start_or_plan_gives_the_origin(self) -> None:
        measured = started(kind=EventKind.MEASURED, origin=Origin.EXPLORE)
        begins = [started(sequence=number, origin=origin) for number, origin in ((1, Origin.TUNE), (2, Origin.IMPORT))]
        assert fold_events([measured, *begins])[0].origin is Origin.TUNE
        assert fold_events([measured])[0].origin is Origin.EXPLORE

    def test_the_first_launch_id_and_suggestion_count(self) -> None:
        recorded = [
            started(sequence=0),
            started(sequence=1, launch_id="l1", suggestion={"low": 1}),
            started(sequence=2, launch_id="l2", suggestion={"low": 2}),
        ]
        [trial] = fold_events(recorded)
        assert (trial.launch_id, trial.suggestion) == ("l1", {"low": 1})

    def test_a_trial_begins_with_its_earliest_time_before_the_end(self) -> None:
        recorded = [
            ended(State.COMPLETED, time="2020", attempt=(0, 1)),
            ended(State.COMPLETED, time="2031", attempt=(0, 1), writer="rank1"),
            ended(State.TIMEOUT, time="2040"),
            started(time="2026"),
            started(time="2025", sequence=1),
            started(time="", sequence=2),
        ]
        [trial] = fold_events(recorded)
        assert (trial.started_at, trial.ended_at, trial.attempts) == ("2025", "2031", 2)

    @pytest.mark.parametrize(
        ("writer", "attempt", "begins", "queue_s"),
        [
            (TUNER, (0, 0), "2026-01-01T00:00:40.500+00:00", 40.5),
            (TUNER, (0, 0), "2025-12-31T23:59:59+00:00", None),  # clocks that disagree
            (TUNER, (0, 0), "", None),
            (TUNER, (1, 0), "2026-01-01T00:00:40+00:00", None),  # the first attempt left no record
            ("rank0", (0, 0), "2026-01-01T00:00:40+00:00", None),
        ],
    )
    def test_the_queue_of_a_planned_launch_is_a_fact(
        self, writer: str, attempt: tuple[int, int], begins: str, queue_s: float | None
    ) -> None:
        planned = Event(kind=EventKind.PLANNED, launch_id="l1", writer=writer, time="2026-01-01T00:00:00+00:00")
        recorded = [planned, started(time=begins, launch_id="l1", attempt=attempt)]
        recorded += [started(time="2026-01-01T01:00:00+00:00", launch_id="l1", attempt=(2, 0))]
        [trial] = fold_events(recorded)
        assert trial.observed.get("queue_s") == queue_s

    def test_of_two_ends_the_more_specific_one_counts(self) -> None:
        order = [
            State.OUT_OF_MEMORY,
            State.USER_ERROR,
            State.TIMEOUT,
            State.INFRASTRUCTURE,
            State.STOPPED_EARLY,
            State.UNKNOWN,
            State.COMPLETED,
        ]
        for first, second in combinations(order, 2):
            for writers in (("rank0", "rank1"), ("rank1", "rank0")):
                pair = zip((first, second), writers, strict=True)
                [trial] = fold_events([ended(state, writer=writer, reason=state) for state, writer in pair])
                assert (trial.state, trial.reason) == (first, first)

    def test_the_tuner_knows_the_end_better_than_the_ranks(self) -> None:
        assert TUNER == "tune"
        rank = ended(State.OUT_OF_MEMORY, attempt=(0, 1), reason="rank")
        stops = [ended(State.STOPPED_EARLY, writer="tune", sequence=number, reason=f"{number}") for number in (1, 2)]
        unsure = ended(State.UNKNOWN, writer="tune", sequence=3, reason="lost")
        [trial] = fold_events([rank, *stops, unsure])
        assert (trial.state, trial.reason) == (State.STOPPED_EARLY, "2")
        [trial] = fold_events([rank, replace(unsure, attempt=(0, 1))])
        assert (trial.state, trial.reason) == (State.OUT_OF_MEMORY, "rank")
        [trial] = fold_events([rank, started(writer="tune", attempt=(0, 1))])
        assert (trial.state, trial.reason) == (State.OUT_OF_MEMORY, "rank")

    def test_a_restart_after_the_end_runs_again(self) -> None:
        [trial] = fold_events([ended(State.TIMEOUT), started(attempt=(0, 1)), started(attempt=(0, 2))])
        assert (trial.state, trial.attempts) == (State.RUNNING, 3)

    @given(
        st.lists(
            events(), max_size=8, unique_by=lambda event: (event.attempt, event.sequence, event.writer, event.kind)
        ),
        st.randoms(use_true_random=False),
    )
    @settings(max_examples=50)
    def test_the_order_of_events_is_free(self, recorded: list[Event], shuffler: Random) -> None:
        recorded = [replace(event, trial_id=event.trial_id and "a", launch_id="l") for event in recorded]
        shuffled = list(recorded)
        shuffler.shuffle(shuffled)
        assert fold_events(shuffled) == fold_events(recorded)

    @given(st.lists(events(), max_size=6))
    @settings(max_examples=50)
    def test_an_object_copied_twice_counts_once(self, recorded: list[Event]) -> None:
        assert fold_events(recorded + recorded) == fold_events(recorded)

    def test_attempt_and_sequence_order_the_facts(self) -> None:
        recorded = [
            started(attempt=(0, 1), sequence=0, time="2020-01-01", observed={"x": 3}),
            started(attempt=(0, 0), sequence=1, time="2030-01-01", observed={"x": 2, "y": 2}),
            started(attempt=(0, 0), sequence=0, time="2040-01-01", observed={"x": 1, "z": 1}),
        ]
        [trial] = fold_events(recorded)
        assert trial.observed == {"x": 3, "y": 2, "z": 1}
        assert (trial.attempts, trial.started_at, trial.ended_at) == (2, "2020-01-01", "")

    def test_the_last_measured_attempt_counts(self) -> None:
        early, late = Measurement(tokens_per_second=1.0), Measurement(tokens_per_second=2.0)
        recorded = [
            started(kind=EventKind.MEASURED, attempt=(0, 1), sequence=3, measurement=late),
            started(kind=EventKind.MEASURED, attempt=(0, 0), sequence=9, measurement=early),
            started(attempt=(1, 0)),
        ]
        [trial] = fold_events(recorded)
        assert (trial.measurement, trial.state) == (late, State.RUNNING)

    @pytest.mark.parametrize(
        ("states", "believed"),
        [
            ([State.INFRASTRUCTURE, State.OUT_OF_MEMORY, State.UNKNOWN], State.OUT_OF_MEMORY),
            ([State.INFRASTRUCTURE, State.USER_ERROR], State.USER_ERROR),
            ([State.COMPLETED, State.INFRASTRUCTURE], State.INFRASTRUCTURE),
            ([State.COMPLETED, State.STOPPED_EARLY], State.STOPPED_EARLY),
        ],
        ids=["memory", "raise", "connection", "stop"],
    )
    def test_the_most_specific_of_several_ends_counts(self, states: list[State], believed: State) -> None:
        recorded = [ended(state, writer=f"rank{rank}", reason=state) for rank, state in enumerate(states)]
        [trial] = fold_events(recorded)
        assert (trial.state, trial.reason) == (believed, believed)

    def test_a_failure_that_the_program_has_caught_before_it_started_ranks_again_does_not_count(self) -> None:
        caught = [
            started(),
            started(sequence=100),
            ended(State.USER_ERROR, sequence=101, writer="rank1"),
            started(sequence=200),
            ended(State.COMPLETED, sequence=201),
        ]
        end = ended(State.COMPLETED, sequence=1000)
        [trial] = fold_events([*caught, end])
        assert trial.state is State.COMPLETED
        [trial] = fold_events([*caught, replace(end, state=State.USER_ERROR)])
        assert trial.state is State.USER_ERROR
        late = ended(State.OUT_OF_MEMORY, sequence=202, writer="rank1")
        [trial] = fold_events([*caught, late, end])
        assert trial.state is State.OUT_OF_MEMORY, "no ranks were started after it"
        [trial] = fold_events([*caught[:2], caught[-1], started(sequence=300), ended(State.UNKNOWN, sequence=1)])
        assert trial.state is State.UNKNOWN, "the last group has no end"

    def test_every_end_has_its_place_in_the_order_of_belief(self) -> None:
        assert [fold_events([ended(state)])[0].state for state in ENDS] == ENDS

    def test_the_end_of_an_earlier_attempt_does_not_count(self) -> None:
        [trial] = fold_events([ended(State.INFRASTRUCTURE, time="2020"), started(attempt=(0, 1))])
        assert (trial.state, trial.reason, trial.ended_at) == (State.RUNNING, "", "")

    def test_a_plan_joins_its_trial_by_launch_id(self) -> None:
        plan = Event(
            kind=EventKind.PLANNED, launch_id="l", origin=Origin.TUNE, config={"x": 1}, suggestion={"why": "fast"}
        )
        [trial] = fold_events([started(launch_id="l", workload={"w": 1}), plan])
        assert (trial.trial_id, trial.config, trial.suggestion) == ("a", {"x": 1}, {"why": "fast"})
        assert (trial.origin, trial.state) == (Origin.TUNE, State.RUNNING)

    def test_a_plan_alone_is_a_planned_trial(self) -> None:
        [trial] = fold_events([Event(kind=EventKind.PLANNED, launch_id="l")])
        assert (trial.trial_id, trial.state, trial.attempts) == ("l", State.PLANNED, 1)

    def test_a_job_without_events_is_known_by_its_launch(self) -> None:
        plan = Event(kind=EventKind.PLANNED, launch_id="l", config={"x": 1})
        [trial] = fold_events([ended(State.UNKNOWN, trial_id="", launch_id="l", writer="tune"), plan])
        assert (trial.trial_id, trial.state, trial.config) == ("l", State.UNKNOWN, {"x": 1})

    def test_a_plan_of_two_jobs_belongs_to_both_whatever_the_order(self) -> None:
        recorded = [
            Event(kind=EventKind.PLANNED, launch_id="l", config={"x": 1}),
            started(trial_id="a", launch_id="l"),
            started(trial_id="b", launch_id="l"),
        ]
        for order in (recorded, recorded[::-1]):
            assert {trial.trial_id: trial.config["x"] for trial in fold_events(order)} == {"a": 1, "b": 1}

    def test_a_late_rank_without_an_origin_keeps_the_origin(self) -> None:
        [trial] = fold_events([ended(State.COMPLETED, sequence=0), started(origin=Origin.REWRITE, sequence=1)])
        assert trial.origin is Origin.REWRITE


class TestGoldenRecords:
    """Records as version 1 writes them; they must open in every later version."""

    @pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.json")), ids=lambda path: path.stem)
    def test_it_opens_and_is_written_again_as_it_was(self, path: Path) -> None:
        payload = json.loads(path.read_text())
        again = Event.from_json(payload).to_json()
        if path.stem == "unknown_fields":
            del payload["measurement"]["energy_j"]
        if "measurement" in payload:  # records from before the statistic was told are at the median step
            payload["measurement"].setdefault("statistic", "p50" if "step_time_s" in payload["measurement"] else "")
        assert {name: again[name] for name in payload} == payload

    def test_they_fold_to_their_trials(self) -> None:
        recorded = [Event.from_json(json.loads(path.read_text())) for path in sorted(GOLDEN.glob("*.json"))]
        folded = {trial.trial_id: trial for trial in fold_events(recorded)}
        assert set(folded) == {
            "local_cwd://torchx/train-abc123",
            "slurm://torchx/77",
            "a",
            "import-9f2c61d07e1b4a55",
            "b",
        }
        tuned = folded["local_cwd://torchx/train-abc123"]
        assert (tuned.state, tuned.origin, tuned.launch_id) == (State.COMPLETED, Origin.TUNE, "tune-5f0d3c9a1b2e4d67")
        assert tuned.config["sharding_strategy"] == ("FULL_SHARD", "FULL_SHARD", "NO_SHARD", "NO_SHARD")
        assert tuned.observed["n_params"] == 1_048_576
        assert tuned.measurement == Measurement(
            tokens_per_second=40960.0,
            samples_per_second=320.0,
            steps_counted=32,
            warmup_steps=3,
            step_time_s=(0.024, 0.025, 0.03),
            peak_memory_gib=0.8,
            statistic="p50",
        )
        assert folded["b"].measurement == Measurement(
            samples_per_second=244.0,
            samples_per_second_overall=201.5,
            steps_counted=80,
            warmup_steps=5,
            step_time_s=(0.0151, 0.0153, 0.251),
            mean_step_time_s=0.0656,
            drift=0.01,
            share_outside_steps=0.75,
            statistic="mean",
            relative_error=0.03,
            evaluation_s=0.9,
            checkpoint_s=0.2,
            is_steady=True,
            may_include_evaluation=False,
            source="space file",
            other_source="optimizer steps",
            other_samples_per_second=866.0,
        )
        assert tuned.suggestion is not None
        assert tuned.suggestion["reason"] == "fastest of 12 trials, größer"
        assert tuned.started_at.startswith("2026-03-01T09:59:58")
        assert folded["slurm://torchx/77"].state is State.OUT_OF_MEMORY
        assert folded["import-9f2c61d07e1b4a55"].state is State.STOPPED_EARLY
