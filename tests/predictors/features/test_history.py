from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from torchx_cubicml.errors import RecordError
from torchx_cubicml.predictors import PREDICTORS
from torchx_cubicml.predictors.features.history import (
    TRUST,
    TrainingTable,
    config_key,
    training_row,
)
from torchx_cubicml.records.measurement import Measurement
from torchx_cubicml.records.provenance import Trust
from torchx_cubicml.records.trial import State, Trial
from torchx_cubicml.records.workload import is_same_workload

WORKLOAD = {"program": "train.py", "world_size": 2, "n_layers": 2}


def trial_of(config: dict[str, object], **fields: object) -> Trial:
    defaults: dict[str, object] = {"trial_id": "a", "workload": WORKLOAD, "state": State.COMPLETED}
    return Trial(**{**defaults, "config": config, **fields})


def measured(throughput: float, **config: object) -> Trial:
    return Trial.completed(workload=WORKLOAD, config=config, tokens_per_second=throughput)


class TestTrainingRow:
    def test_it_holds_all_that_is_known(self) -> None:
        trial = trial_of({"micro_batch_size": 4}, observed={"n_params": 100})
        assert training_row(trial) == {**WORKLOAD, "micro_batch_size": 4, "n_params": 100}

    def test_observations_replace_requests(self) -> None:
        trial = trial_of(
            {"sharding_strategy": ("FULL_SHARD", "FULL_SHARD"), "micro_batch_size": 8, "compile": True},
            observed={"sharding_strategy": "NO_SHARD", "micro_batch_size": 4, "compile": False},
        )
        row = training_row(trial)
        assert (row["sharding_strategy"], row["micro_batch_size"], row["compile"]) == ("NO_SHARD", 4, False)

    def test_a_custom_parameter_is_as_requested(self) -> None:
        assert training_row(trial_of({"nccl_proto": "LL"}, observed={"nccl_proto": "Simple"}))["nccl_proto"] == "LL"

    def test_a_declared_fact_stays_as_declared(self) -> None:
        assert training_row(trial_of({}, observed={"n_layers": 3}))["n_layers"] == 2

    @pytest.mark.parametrize(
        ("name", "requested", "observed"),
        [
            ("precision", "bfloat16", "bf16"),
            ("sharding_strategy", ("full", "none"), ("FULL_SHARD", "NO_SHARD")),
            ("sharding_strategy", 3, "FULL_SHARD"),
            ("compile", "inductor", True),
            ("compile", 1, True),
        ],
        ids=["precision", "layers", "stage", "back end", "switch"],
    )
    def test_custom_words_stay_comparable_with_candidates(self, name: str, requested: object, observed: object) -> None:
        assert training_row(trial_of({name: requested}, observed={name: observed}))[name] == requested

    def test_a_renamed_parameter_is_observed(self) -> None:
        trial = trial_of({"shard": "FULL_SHARD"}, observed={"sharding_strategy": "NO_SHARD", "n_params": 9})
        row = training_row(trial, observe={"shard": "sharding_strategy"})
        assert row == {**WORKLOAD, "shard": "NO_SHARD", "n_params": 9}


class TestTrainingTable:
    def test_throughput_and_memory_teach_and_failures_are_kept_apart(self) -> None:
        measurement = Measurement(tokens_per_second=5.0)
        states = {
            state: trial_of({"micro_batch_size": index}, trial_id=str(state), state=state)
            for index, state in enumerate(State)
        }
        with_throughput = {
            state: trial_of(
                {"micro_batch_size": 10}, trial_id=f"{state} measured", state=state, measurement=measurement
            )
            for state in State
        }
        history = TrainingTable.from_trials(
            [*states.values(), *with_throughput.values()], objective="tokens_per_second"
        )
        feasible = {trial_id for trial_id, fits in zip(history.trial_ids, history.feasible, strict=True) if fits}
        assert feasible == {f"{state} measured" for state in State if state not in {State.PLANNED, State.OUT_OF_MEMORY}}
        assert set(history.trial_ids) - feasible == {"out_of_memory", "out_of_memory measured"}
        assert len(history.failures) == 4
        np.testing.assert_array_equal(np.isnan(history.throughput), ~history.feasible)

    def test_rows_features_and_outcomes_belong_together(self) -> None:
        trials = [measured(float(size * 10), micro_batch_size=size, precision="bf16") for size in (8, 1, 4, 2)]
        history = TrainingTable.from_trials(trials, objective="tokens_per_second")
        assert history.features.shape == (4, len(history.columns.names))
        column = history.columns.names.index("micro_batch_size")
        by_id = {trial.trial_id: trial for trial in trials}
        for index, trial_id in enumerate(history.trial_ids):
            size = by_id[trial_id].config["micro_batch_size"]
            assert history.rows[index]["micro_batch_size"] == size == history.features[index, column]
            assert history.throughput[index] == by_id[trial_id].measurement.tokens_per_second

    def test_another_objective_teaches_what_was_measured_in_it(self) -> None:
        trial = Trial.completed(workload=WORKLOAD, config={}, samples_per_second=3.0)
        history = TrainingTable.from_trials([trial, measured(5.0)], objective="samples_per_second")
        assert history.throughput.tolist() == [3.0]

    def test_an_unknown_objective_is_refused(self) -> None:
        with pytest.raises(RecordError, match="tokens_per_second"):
            TrainingTable.from_trials([], objective="speed")

    def test_no_trials_make_an_empty_table(self) -> None:
        history = TrainingTable.from_trials([], objective="tokens_per_second")
        assert (history.features.shape, history.throughput.shape, history.rows) == ((0, 0), (0,), ())

    def test_neither_order_nor_ids_matter(self) -> None:
        rng = random.Random(0)
        rows = [
            (rng.random(), rng.choice([1, 2, 4]), tuple(rng.choice(["FULL_SHARD", "NO_SHARD"]) for _ in range(3)))
            for _ in range(40)
        ]
        tables = []
        for _ in range(2):
            rng.shuffle(rows)
            trials = [
                measured(speed + 1, micro_batch_size=size, sharding_strategy=layers) for speed, size, layers in rows
            ]
            trials += [Trial.infeasible(workload=WORKLOAD, config={"micro_batch_size": size}) for _, size, _ in rows]
            tables.append(TrainingTable.from_trials(trials, objective="tokens_per_second"))
        one, other = tables
        assert one.columns == other.columns
        assert one.rows == other.rows
        np.testing.assert_array_equal(one.features, other.features)
        np.testing.assert_array_equal(one.throughput, other.throughput)
        np.testing.assert_array_equal(one.feasible, other.feasible)

    def test_the_host_is_no_feature(self) -> None:
        trial = trial_of({}, observed={"host": "n1"}, measurement=Measurement(tokens_per_second=1.0))
        history = TrainingTable.from_trials([trial], objective="tokens_per_second")
        assert history.rows[0]["host"] == "n1"
        assert "host" not in history.columns.names


class TestMatches:
    def test_every_fact_must_be_known_and_alike(self) -> None:
        trial = trial_of({"tp_degree": 2}, observed={"device": "cpu"})
        assert is_same_workload(trial, WORKLOAD)
        assert is_same_workload(trial, {"world_size": 2.0, "device": "cpu", "tp_degree": 2})
        assert is_same_workload(trial, {})
        assert not is_same_workload(trial, {**WORKLOAD, "world_size": 4})
        assert not is_same_workload(trial, {**WORKLOAD, "seq_len": 128})
        assert not is_same_workload(trial, {"world_size": "2"})

    def test_true_is_not_one(self) -> None:
        assert not is_same_workload(trial_of({"compile": True}), {"compile": 1})


class TestConfigKey:
    def test_the_same_request_has_the_same_key(self) -> None:
        assert config_key({"a": 1, "b": ("x", 2.0)}) == config_key({"b": ("x", 2), "a": 1.0})

    @pytest.mark.parametrize(
        ("left", "right"),
        [
            ({"a": True}, {"a": 1}),
            ({"a": "1"}, {"a": 1}),
            ({"a": ("x", "y")}, {"a": ("y", "x")}),
            ({"a": ("x",)}, {"a": "x"}),
            ({"a": 1}, {"a": 1, "b": 2}),
        ],
        ids=["boolean", "text", "order", "tuple", "more"],
    )
    def test_another_request_has_another_key(self, left: dict[str, object], right: dict[str, object]) -> None:
        assert config_key(left) != config_key(right)


@pytest.mark.parametrize("peak", [5e-324, 1e-9, 1e9, 1.7e308])
def test_a_peak_that_no_process_can_have_is_not_known(peak: float) -> None:
    odd, usual = (
        Trial.completed(workload={}, config={"a": each}, tokens_per_second=1.0, peak_memory_gib=each)
        for each in (peak, 40.0)
    )
    history = TrainingTable.from_trials([odd, usual], objective="tokens_per_second")
    peaks = dict(zip(history.trial_ids, history.peak_memory_gib.tolist(), strict=True))
    assert np.isnan(peaks[odd.trial_id])
    assert peaks[usual.trial_id] == 40.0


def test_the_trust_level_of_others_is_a_column_and_own_tables_have_none() -> None:
    own = [measured(100.0 + n, micro_batch_size=n) for n in (1, 2)]
    assert TRUST not in TrainingTable.from_trials(own, objective="tokens_per_second").columns.names
    public = [replace(trial, trial_id=f"p{n}", trust=Trust.PUBLIC) for n, trial in enumerate(own)]
    history = TrainingTable.from_trials([*own, *public], objective="tokens_per_second")
    column = history.features[:, history.columns.names.index(TRUST)]
    assert int(np.isnan(column).sum()) == 2  # own ones, as every candidate
    assert all(
        (row.get(TRUST) == "public") == (not np.isnan(code)) for row, code in zip(history.rows, column, strict=True)
    )


@pytest.mark.parametrize("name", ["greybox", "boosting"])
def test_an_offset_of_public_trials_moves_no_own_prediction(name: str) -> None:
    """Public trials of a machine half as fast keep telling how configs compare."""
    sizes = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32]
    own = [measured(100.0 * size**0.5, micro_batch_size=size) for size in sizes[::3]]
    public = [
        replace(measured(50.0 * size**0.5, micro_batch_size=size), trust=Trust.PUBLIC) for size in sizes for _ in "ab"
    ]
    errors = []
    for trials in ([*own, *public], [replace(trial, trust=Trust.OWN) for trial in (*own, *public)]):
        history = TrainingTable.from_trials(trials, objective="tokens_per_second")
        asked = [{**WORKLOAD, "micro_batch_size": size} for size in sizes]
        predictor = PREDICTORS[name]().fit(history, rng=np.random.default_rng(0))
        found = predictor.predict(history.columns.encode(asked)).throughput
        errors.append(float(np.abs(np.log(found / (100.0 * np.sqrt(sizes)))).mean()))
    assert errors[0] < 0.5 * errors[1]
