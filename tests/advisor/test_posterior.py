from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from torchx_cubicml.advisor.posterior import Posterior
from torchx_cubicml.advisor.surrogates.base import JointSurrogate
from torchx_cubicml.records.measurement import Measurement
from torchx_cubicml.records.trial import State, Trial
from torchx_cubicml.searchers.base import identity
from torchx_cubicml.space import Parameter, SearchSpace

WORKLOAD = {"program": "a.py", "world_size": 1}
SPACE = SearchSpace(
    parameters=(
        Parameter(name="micro_batch_size", choices=(1, 2, 4)),
        Parameter(name="sharding_strategy", choices=("FULL_SHARD", "NO_SHARD")),
    )
)
CURRENT = {"micro_batch_size": 1, "sharding_strategy": "FULL_SHARD"}


def trial(batch: int, speed: float | None = None, **fields: object) -> Trial:
    config = {"micro_batch_size": batch, "sharding_strategy": fields.pop("sharding", "FULL_SHARD")}
    state = fields.pop("state", State.COMPLETED if speed else State.OUT_OF_MEMORY)
    measurement = Measurement(tokens_per_second=speed) if speed else None
    identity_ = f"{batch}-{speed}-{state}-{config['sharding_strategy']}"
    given = {"trial_id": identity_, "workload": WORKLOAD, "config": config, "state": state, **fields}
    return Trial(measurement=measurement, **given)


def outlook_of(*trials: Trial, space: SearchSpace = SPACE, current: dict[str, object] = CURRENT) -> Posterior:
    bound = space.bind(workload=WORKLOAD, current=current)
    return Posterior.of(bound, workload=WORKLOAD, current=current, trials=trials, rng=np.random.default_rng(0))


class TestRecords:
    def test_trials_of_one_config_make_one_record(self) -> None:
        posterior = outlook_of(trial(2, 120.0), trial(2, 110.0), trial(4), trial(1, state=State.RUNNING))
        records = {record.config["micro_batch_size"]: record for record in posterior.outcomes.values()}
        assert records[2].measured == (110.0, 120.0)
        assert records[4].out_of_memory
        assert records[1].open
        assert posterior.n_trials == 3

    def test_other_workloads_and_other_spaces_have_no_records(self) -> None:
        elsewhere = trial(2, 100.0, workload={"program": "b.py", "world_size": 1})
        older = trial(3, 100.0)
        assert outlook_of(elsewhere, older).outcomes == {}

    def test_configs_come_from_the_space_and_not_from_the_store(self) -> None:
        stored = trial(2, 100.0, config={"micro_batch_size": 2.0, "sharding_strategy": "FULL_SHARD", "old": 1})
        (record,) = outlook_of(stored).outcomes.values()
        assert list(record.config) == ["micro_batch_size", "sharding_strategy"]
        assert isinstance(record.config["micro_batch_size"], int)

    @pytest.mark.parametrize(
        ("state", "settles_after"),
        [
            (State.OUT_OF_MEMORY, 1),
            (State.TIMEOUT, 1),
            (State.COMPLETED, 1),
            (State.USER_ERROR, 2),
            (State.UNKNOWN, 2),
            (State.INFRASTRUCTURE, None),
            (State.STOPPED_EARLY, None),
        ],
    )
    def test_a_failure_settles_where_it_is_likely_to_repeat(self, state: State, settles_after: int | None) -> None:
        lost = [trial(2, state=state, trial_id=f"lost-{number}") for number in range(4)]
        is_decided = [outlook_of(*lost[:count]).is_decided(lost[0].config) for count in range(1, 5)]
        assert is_decided == [settles_after is not None and count >= settles_after for count in range(1, 5)]

    def test_a_config_measured_in_another_unit_is_settled(self) -> None:
        ended = trial(2, state=State.COMPLETED)
        (record,) = outlook_of(replace(ended, measurement=Measurement(samples_per_second=3.0))).outcomes.values()
        assert record.is_decided
        assert not record.measured


class TestForecast:
    def test_measurements_move_the_belief(self) -> None:
        posterior = outlook_of(trial(1, 100.0), trial(2, 150.0), trial(2, 150.0))
        estimates = posterior.estimates([{**CURRENT, "micro_batch_size": 2}])
        assert estimates.throughput == pytest.approx([150.0], rel=0.05)

    def test_no_measurement_gives_no_belief(self) -> None:
        posterior = outlook_of(trial(4))
        assert posterior.estimates([CURRENT]).intervals() == [None]
        assert np.isnan(posterior.forecast([CURRENT]).logarithm[0])

    def test_a_fact_known_only_after_the_run_is_no_feature(self) -> None:
        trials = [trial(batch, 100.0 * batch, observed={"n_params": 7, "peak": batch}) for batch in (1, 2, 4)]
        posterior = outlook_of(*trials)
        assert "peak" not in posterior.surrogate.history.columns.names
        assert posterior.rows.of({})["n_params"] == 7

    def test_a_new_software_version_is_kept_at_its_latest(self) -> None:
        old = trial(1, 100.0, observed={"torch_version": "2.4"}, started_at="2026-01-01T00:00:00Z")
        new = trial(2, 150.0, observed={"torch_version": "2.5"}, started_at="2026-02-01T00:00:00Z")
        posterior = outlook_of(new, old)
        assert posterior.rows.of({})["torch_version"] == "2.5"
        assert "torch_version" in posterior.surrogate.history.columns.names

    def test_a_batch_that_the_script_splits_counts_as_requested(self) -> None:
        trials = [trial(batch, 100.0 * batch, observed={"micro_batch_size": batch / 2}) for batch in (1, 2, 4)]
        forecast = outlook_of(*trials).forecast([{**CURRENT, "micro_batch_size": batch} for batch in (1, 2, 4)])
        assert np.exp(forecast.logarithm) == pytest.approx([100.0, 200.0, 400.0], rel=0.15)


class TestParametersWithoutEffect:
    # FSDP on one rank runs NO_SHARD, whatever is asked for.
    TRIALS = (
        trial(1, 100.0, observed={"sharding_strategy": "NO_SHARD"}),
        trial(1, 101.0, sharding="NO_SHARD", observed={"sharding_strategy": "NO_SHARD"}),
        trial(2, 200.0, sharding="NO_SHARD", observed={"sharding_strategy": "NO_SHARD"}),
    )

    def test_they_are_named_and_not_tuned(self) -> None:
        posterior = outlook_of(*self.TRIALS)
        assert posterior.ineffective == ("sharding_strategy",)
        assert {config["sharding_strategy"] for config in posterior.space.configs()} == {"FULL_SHARD"}

    def test_trials_that_differ_in_them_alone_are_of_one_config(self) -> None:
        posterior = outlook_of(*self.TRIALS)
        assert {record.config["micro_batch_size"] for record in posterior.outcomes.values()} == {1, 2}
        assert identity({**CURRENT, "micro_batch_size": 2}) in posterior.outcomes

    def test_they_keep_the_users_value(self) -> None:
        posterior = outlook_of(*self.TRIALS, current={"micro_batch_size": 1, "sharding_strategy": "NO_SHARD"})
        assert {config["sharding_strategy"] for config in posterior.space.configs()} == {"NO_SHARD"}


@pytest.mark.parametrize(
    "config",
    [{"micro_batch_size": 3, "sharding_strategy": "NO_SHARD"}, {"micro_batch_size": 2}, {}],
    ids=["value", "missing", "empty"],
)
def test_a_config_outside_the_space_has_no_record(config: dict[str, object]) -> None:
    assert outlook_of(trial(1, 100.0, config=config)).outcomes == {}


class TestLaunchesWithoutConfig:
    # Recorded before there was a space file: nobody knows of which config they were.
    BARE = tuple(trial(1, speed, config={}, trial_id=f"bare-{speed}") for speed in (10.0, 60.0, 100.0))

    def test_they_are_no_repeats_of_one_config(self) -> None:
        ran = [trial(1, 100.0), trial(1, 101.0), trial(2, 150.0)]
        assert outlook_of(*ran, *self.BARE).noise == outlook_of(*ran).noise < 0.04

    def test_they_hide_no_gain(self) -> None:
        ran = [trial(1, 100.0), trial(1, 101.0), trial(2, 150.0), trial(4, 140.0), trial(4, 100.0, sharding="NO_SHARD")]
        gains = [
            outlook_of(*trials).gains([{**CURRENT, "micro_batch_size": 2}], CURRENT)
            for trials in (ran, [*ran, *self.BARE])
        ]
        assert gains[1].intervals() == gains[0].intervals()
        assert gains[0].quantile(0.05)[0] > 1.2

    def test_they_teach_no_effect_of_a_parameter(self) -> None:
        gain = outlook_of(*self.BARE).gains([{**CURRENT, "micro_batch_size": 2}], CURRENT)
        assert gain.intervals() == [None] or gain.spread[0] > 0.05

    def test_an_unnamed_parameter_may_matter(self) -> None:
        older = [trial(size, 100.0 * size, config={"micro_batch_size": size}) for size in (1, 2, 4)]
        gain = outlook_of(*older).gains([{**CURRENT, "sharding_strategy": "NO_SHARD"}], CURRENT)
        assert gain.spread[0] > 0.01


def test_learning_uses_the_statistic_of_the_space() -> None:
    run = Measurement(
        tokens_per_second=80.0, step_time_s=(0.8, 1.0, 1.6), mean_step_time_s=1.25, statistic="mean", relative_error=0.1
    )
    trials = [
        replace(trial(batch, 1.0), measurement=replace(run, tokens_per_second=80.0 * batch)) for batch in (1, 2, 4)
    ]
    for statistic, expected in (("mean", 80.0), ("p50", 100.0)):
        posterior = outlook_of(*trials, space=replace(SPACE, statistic=statistic))
        record = posterior.outcomes[identity(CURRENT)]
        assert (record.measured, record.uncertainties) == ((expected,), (0.1,))
        assert posterior.surrogate.history.throughput.tolist() == [expected, 2 * expected, 4 * expected]
        assert posterior.surrogate.history.uncertainty.tolist() == [0.1] * 3


class TestGains:
    BATCH_2 = {**CURRENT, "micro_batch_size": 2}  # noqa: RUF012 - never changed

    def test_a_config_is_exactly_as_fast_as_itself(self) -> None:
        gain = outlook_of(trial(1, 100.0), trial(2, 150.0), trial(2, 151.0)).gains([CURRENT], CURRENT)
        assert gain.intervals() == [(1.0, 1.0, 1.0)]

    def test_over_a_config_of_which_nothing_is_known_there_are_none(self) -> None:
        assert outlook_of(trial(4)).gains([self.BATCH_2, CURRENT], CURRENT).intervals() == [None, None]

    def test_over_a_config_that_runs_out_of_memory_there_are_none(self) -> None:
        posterior = outlook_of(trial(1, 100.0), trial(2, 150.0), trial(4, 200.0), trial(1))
        assert posterior.gains([self.BATCH_2], CURRENT).intervals() == [None]
        assert posterior.gains([CURRENT], self.BATCH_2).intervals() != [None]

    def test_the_ratio_of_two_measured_once_is_that_of_their_beliefs(self) -> None:
        """Fewer than three measurements: no process of the workload's own, so the errors are independent."""
        posterior = outlook_of(trial(1, 100.0), trial(2, 150.0))
        assert not isinstance(posterior.surrogate, JointSurrogate)
        estimates = posterior.estimates([self.BATCH_2, CURRENT])
        gain = posterior.gains([self.BATCH_2], CURRENT)
        assert gain.throughput == pytest.approx([estimates.throughput[0] / estimates.throughput[1]])
        assert gain.spread == pytest.approx([(estimates.spread**2).sum() ** 0.5])


class TestOutcomes:
    def test_the_fastest_configs_exclude_out_of_memory_ones(self) -> None:
        posterior = outlook_of(
            trial(1, 100.0),
            trial(2, 90.0),
            trial(2, 130.0),
            trial(4, 120.0),
            trial(1, 500.0, sharding="NO_SHARD"),
            trial(1, sharding="NO_SHARD"),
        )
        batches = [config["micro_batch_size"] for config in posterior.fastest(3)]
        assert batches == [2, 4, 1]
        assert posterior.fastest(1) == posterior.fastest(3)[:1]
        assert {config["micro_batch_size"] for config in posterior.measured()} == {1, 2, 4}
        assert {config["sharding_strategy"] for config in posterior.measured()} == {"FULL_SHARD"}

    def test_tried_and_decided_configs_are_counted(self) -> None:
        posterior = outlook_of(
            trial(1, 100.0),
            trial(1, 101.0),
            trial(2),
            trial(4, state=State.RUNNING),
            trial(1, state=State.USER_ERROR, sharding="NO_SHARD"),
            trial(2, state=State.INFRASTRUCTURE, sharding="NO_SHARD"),
        )
        assert posterior.n_tried == 3  # measured, out of memory, one error
        assert posterior.n_out_of_memory == 1
        assert len(posterior.decided_rows()) == 3  # measured, out of memory, under way
        assert posterior.n_trials == 5
        assert posterior.had_error({"micro_batch_size": 1, "sharding_strategy": "NO_SHARD"})
        assert not posterior.had_error(CURRENT)
        assert not posterior.had_error({**CURRENT, "micro_batch_size": 3})
        assert not posterior.is_decided({**CURRENT, "micro_batch_size": 3})

    def test_what_is_put_under_way_is_decided_and_surer(self) -> None:
        posterior = outlook_of(*(trial(batch, 100.0 * batch) for batch in (1, 2)), trial(2, 201.0))
        other = {"micro_batch_size": 4, "sharding_strategy": "NO_SHARD"}
        after = posterior.fantasize([other, CURRENT])
        assert after.is_decided(other)
        assert after.outcomes[identity(other)].open
        assert after.outcomes[identity(CURRENT)].open
        assert after.outcomes[identity(CURRENT)].measured == (100.0,)
        assert not after.outcomes[identity(other)].out_of_memory
        assert after.forecast([other]).spread[0] < 0.5 * posterior.forecast([other]).spread[0]
        assert not posterior.is_decided(other)

    def test_samples_have_the_means_and_spreads_of_the_posterior(self) -> None:
        """Over 4,000 draws the mean is off by more than four standard errors once in 16,000 runs."""
        posterior = outlook_of(trial(1, 100.0), trial(2, 150.0))
        configs = [CURRENT, {**CURRENT, "micro_batch_size": 2}]
        drawn = posterior.sample(configs, count=4000, rng=np.random.default_rng(0))
        estimates = posterior.estimates(configs)
        assert drawn.shape == (4000, 2)
        assert (np.abs(drawn.mean(axis=0) - estimates.logarithm) < 4 * estimates.spread / 4000**0.5).all()
        assert drawn.std(axis=0) == pytest.approx(estimates.spread, rel=0.1)
