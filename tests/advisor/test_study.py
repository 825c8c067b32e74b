from __future__ import annotations

import json
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from torchx_cubicml.advisor import Study, Suggestion, best_known, suggest
from torchx_cubicml.advisor.batch import BASELINE_REASON
from torchx_cubicml.advisor.posterior import Posterior
from torchx_cubicml.errors import RecordError, SpaceError
from torchx_cubicml.predictors import Prediction
from torchx_cubicml.predictors.features.history import config_key
from torchx_cubicml.predictors.measurement_error import repeat_noise
from torchx_cubicml.records.trial import State, Trial
from torchx_cubicml.space import Parameter, SearchSpace
from torchx_cubicml.space.expression import parse_expression

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

STRATEGIES = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD")
WORKLOAD = {"program": "train.py", "world_size": 2, "n_layers": 4}
SPACE = SearchSpace(
    parameters=(
        Parameter(name="sharding_strategy", choices=STRATEGIES, per_layer="n_layers"),
        Parameter(name="micro_batch_size", choices=(1, 2, 4, 8, 16)),
        Parameter(
            name="gradient_accumulation_steps",
            derive=parse_expression("global_batch_size / (micro_batch_size * dp_degree)", where="derive"),
        ),
    )
)
CURRENT = {"sharding_strategy": ("FULL_SHARD",) * 4, "micro_batch_size": 2, "gradient_accumulation_steps": 8}
SMALL = SearchSpace(parameters=(Parameter(name="micro_batch_size", choices=(1, 2, 4)),))


def speed_of(config: dict[str, object]) -> float:
    """Fastest at batch 8 without sharding; what is not sharded on a batch of 16 does not fit."""
    hungry = sum(STRATEGIES.index(name) for name in config["sharding_strategy"])
    if config["micro_batch_size"] == 16 and hungry > 2:
        return 0.0
    return 1000.0 * (1.0 + 0.05 * hungry) * (1.0 - 0.1 * abs(np.log2(config["micro_batch_size"]) - 3))


def launched(config: dict[str, object], *, noise: float = 0.0) -> Trial:
    speed = speed_of(config)
    if speed == 0.0:
        return Trial.infeasible(workload=WORKLOAD, config=config)
    return Trial.completed(workload=WORKLOAD, config=config, tokens_per_second=speed * np.exp(noise))


def asked(trials: list[Trial], *, count: int = 1, seed: int = 0, space: SearchSpace = SPACE) -> list[Suggestion]:
    return suggest(space, workload=WORKLOAD, current=CURRENT, trials=trials, count=count, seed=seed)


def tuned(launches: int, *, batch: int = 3, seed: int = 0) -> list[Trial]:
    rng = np.random.default_rng(seed)
    trials: list[Trial] = []
    while len(trials) < launches:
        found = asked(trials, count=min(batch, launches - len(trials)), seed=len(trials))
        trials += [launched(suggestion.config, noise=float(rng.normal(0, 0.01))) for suggestion in found]
    return trials


@dataclass(frozen=True)
class Guesses:
    """Surrogate that predicts the same for every config but one, which it predicts to be faster."""

    ahead: float

    def forecast(self, rows: Sequence[Mapping[str, object]]) -> Prediction:
        faster = np.array([row["micro_batch_size"] == 4 for row in rows], dtype=np.float64)
        n = len(rows)
        return Prediction(logarithm=np.log(100.0) + self.ahead * faster, spread=np.full(n, 0.1), fits=np.ones(n))

    def outliers(self, rows: Sequence[Mapping[str, object]]) -> NDArray[np.bool_]:
        return np.zeros(len(rows), dtype=np.bool_)


@pytest.mark.parametrize(("ahead", "runs"), [(0.15, 1), (0.2, 1), (0.3, 4)])
def test_an_untried_config_needs_a_large_margin(ahead: float, runs: int) -> None:
    numbers = Parameter(name="number", choices=tuple(range(10)))
    trials = [
        Trial.completed(workload=WORKLOAD, config={"micro_batch_size": 1, "number": n}, tokens_per_second=100.0)
        for n in range(10)
    ]
    space = SearchSpace(parameters=(*SMALL.parameters, numbers))
    study = Study.of(space, workload=WORKLOAD, current={"micro_batch_size": 1, "number": 0}, trials=trials)
    best = replace(study, posterior=replace(study.posterior, surrogate=Guesses(ahead))).best_known()
    assert best is not None
    assert best.config["micro_batch_size"] == runs


class TestSuggest:
    def test_the_first_launch_is_the_users_config(self) -> None:
        (first,) = asked([])
        assert first.config == CURRENT
        assert first.reason == BASELINE_REASON
        assert (first.throughput, first.low, first.high, first.gain, first.n_trials) == (None, None, None, None, 0)

    @pytest.mark.parametrize("config", [CURRENT, {}], ids=["repeats of one config", "launches without a config"])
    def test_the_first_batch_counts_configs_and_not_launches(self, config: dict[str, object]) -> None:
        again = [launched(CURRENT, noise=0.01 * number) for number in range(9)]
        found = asked([replace(trial, config=config) for trial in again], count=3)
        assert all(suggestion.reason.startswith(("baseline: ", "initial design: ")) for suggestion in found)

    def test_the_first_batch_has_equal_layers(self) -> None:
        found = asked([], count=6)
        assert [len(set(suggestion.config["sharding_strategy"])) for suggestion in found] == [1] * 6
        assert {suggestion.config["sharding_strategy"][0] for suggestion in found} == set(STRATEGIES)

    def test_an_illegal_user_config_is_left_out(self) -> None:
        found = suggest(SMALL, workload={"world_size": 1}, current={"micro_batch_size": 3}, trials=[], count=9)
        assert sorted(suggestion.config["micro_batch_size"] for suggestion in found) == [1, 2, 4]

    @pytest.mark.parametrize("n_trials", [0, 1, 3, 20])
    def test_suggestions_are_legal_distinct_and_new(self, n_trials: int) -> None:
        trials = tuned(n_trials)
        found = asked(trials, count=6)
        space = SPACE.bind(workload=WORKLOAD, current=CURRENT)
        keys = [config_key(suggestion.config) for suggestion in found]
        assert len(set(keys)) == 6
        assert not set(keys) & {config_key(trial.config) for trial in trials}
        assert all(suggestion.config in space for suggestion in found)

    @pytest.mark.parametrize("state", [State.PLANNED, State.RUNNING, State.OUT_OF_MEMORY, State.TIMEOUT])
    def test_running_and_failed_configs_are_not_suggested(self, state: State) -> None:
        pending = Trial(trial_id="a", workload=WORKLOAD, config=CURRENT, state=state)
        assert all(suggestion.config != CURRENT for suggestion in asked([pending], count=20))

    def test_lists_are_taken_for_tuples(self) -> None:
        listed = {**CURRENT, "sharding_strategy": list(CURRENT["sharding_strategy"])}
        given = {"workload": {**WORKLOAD, "layer_sizes": [1, 2]}, "current": listed, "trials": []}
        assert suggest(SPACE, **given)[0].config == CURRENT
        assert suggest(SPACE, **given, pending=[listed])[0].config != CURRENT
        assert best_known(SPACE, **given) is None

    def test_an_illegal_value_is_reported_with_its_place(self) -> None:
        with pytest.raises(RecordError, match=r"current\.sharding_strategy must be"):
            suggest(SPACE, workload=WORKLOAD, current={"sharding_strategy": {"FULL_SHARD": 4}}, trials=[])

    @pytest.mark.parametrize(
        ("state", "place"),
        [(State.STOPPED_EARLY, "first"), (State.INFRASTRUCTURE, "first"), (State.USER_ERROR, "last")],
    )
    def test_a_user_config_that_never_ran_is_suggested_again(self, state: State, place: str) -> None:
        lost = Trial(trial_id="a", workload=WORKLOAD, config=CURRENT, state=state, reason="Ctrl-C, or a typo")
        designed = [
            found.config
            for found in asked([lost], count=8)
            if found.reason.startswith(("baseline: ", "initial design: "))
        ]
        assert designed.index(CURRENT) == {"first": 0, "last": len(designed) - 1}[place]

    @pytest.mark.parametrize("n_own", [0, 1, 4], ids=["nothing ran", "hardly measured", "a process of its own"])
    @pytest.mark.parametrize("others_teach", [False, True], ids=["alone", "others teach"])
    def test_a_batch_larger_than_one_out_of_memory_is_skipped(self, n_own: int, others_teach: bool) -> None:
        batches = (1, 2, 4, 8, 16)
        space = SearchSpace(
            parameters=(
                Parameter(name="sharding_strategy", choices=STRATEGIES),
                Parameter(name="micro_batch_size", choices=batches),
            )
        )
        lost = Trial.infeasible(workload=WORKLOAD, config={"sharding_strategy": "NO_SHARD", "micro_batch_size": 4})
        configs = [{"sharding_strategy": name, "micro_batch_size": size} for size in batches for name in STRATEGIES]
        own = [
            Trial.completed(workload=WORKLOAD, config=config, tokens_per_second=100.0 * config["micro_batch_size"])
            for config in configs[:n_own]
        ]
        # Elsewhere all of them fit, and what is ruled out here is by far the fastest.
        others = [
            Trial.completed(
                workload={**WORKLOAD, "program": program},
                config=config,
                tokens_per_second=10.0 ** STRATEGIES.index(config["sharding_strategy"]) * config["micro_batch_size"],
            )
            for program in ("a.py", "b.py")
            for config in configs
        ]
        trials = [*own, lost, *(others if others_teach else [])]
        found = suggest(space, workload=WORKLOAD, current={}, trials=trials, count=len(configs))
        assert all(
            suggestion.config["sharding_strategy"] != "NO_SHARD" or suggestion.config["micro_batch_size"] < 4
            for suggestion in found
        )
        # What needs as much as a config of the batch that may not fit waits for its outcome.
        left = {config_key(each) for each in configs if each["sharding_strategy"] != "NO_SHARD"}
        assert 3 <= len({config_key(suggestion.config) for suggestion in found} & left) <= len(configs) - n_own - 3

    def test_a_fully_tried_space_gives_no_suggestion(self) -> None:
        trials = [
            Trial.completed(workload={"world_size": 1}, config={"micro_batch_size": size}, tokens_per_second=size)
            for size in (1, 2, 4)
        ]
        own = {"micro_batch_size": 1}
        assert suggest(SMALL, workload={"world_size": 1}, current=own, trials=trials, count=3) == []
        left = suggest(SMALL, workload={"world_size": 1}, current=own, trials=trials[:2], count=3)
        assert [suggestion.config for suggestion in left] == [{"micro_batch_size": 4}]

    def test_a_thousand_failures_still_leave_a_suggestion(self) -> None:
        ran = [replace(launched(CURRENT, noise=0.001 * (each % 7)), ended_at="2026-01-01") for each in range(301)]
        unsharded = {**CURRENT, "sharding_strategy": ("NO_SHARD",) * 4, "micro_batch_size": 16}
        lost = [
            replace(Trial.infeasible(workload=WORKLOAD, config=unsharded), ended_at="2026-01-02") for _ in range(1000)
        ]
        assert len(asked([*ran, *lost], count=2)) == 2

    def test_it_is_pure(self) -> None:
        trials = tuned(14)
        before = list(trials)
        answers = [asked(trials, count=3, seed=5) for _ in range(2)]
        assert answers[0] == answers[1] == asked(trials[::-1], count=3, seed=5)
        assert trials == before

    def test_a_suggestion_names_its_gain_and_nearest_trial(self) -> None:
        (suggestion,) = asked(tuned(14))
        assert suggestion.low < suggestion.throughput < suggestion.high
        ratio = suggestion.throughput / suggestion.baseline_throughput
        assert suggestion.gain == pytest.approx(ratio, rel=0.05)  # averaged over what may be noise
        assert "your config" in suggestion.reason
        assert "most similar trial: " in suggestion.reason

    @pytest.mark.parametrize(("launches", "designed"), [(3, True), (14, False)], ids=["designed", "searched"])
    def test_a_near_measurement_is_named_with_its_trial(self, launches: int, designed: bool) -> None:
        trials = tuned(launches)
        (suggestion,) = asked(trials)
        assert suggestion.reason.startswith(("baseline: ", "initial design: ")) == designed
        assert len(suggestion.nearest) == 3
        ran = {trial.trial_id: trial for trial in trials}
        for near in suggestion.nearest:
            trial = ran[near.trial_id]
            assert trial.measurement.tokens_per_second == near.throughput
            assert all(
                (name in near.differs) == (trial.config[name] != value) for name, value in suggestion.config.items()
            )
        if not designed:
            assert f"most similar trial: {suggestion.nearest[0].differs}" in suggestion.reason
        assert suggestion.to_json()["nearest"][0]["trial_id"] == suggestion.nearest[0].trial_id
        assert "nearest" not in suggestion.promise()

    def test_the_median_of_repeats_is_named_as_nearest(self) -> None:
        again = [launched(CURRENT, noise=noise) for noise in (0.3, 0.0, 0.1)]
        (suggestion,) = asked(again)
        assert [near.trial_id for near in suggestion.nearest] == [again[2].trial_id]

    def test_it_finds_what_is_fast(self) -> None:
        best = max(speed_of(trial.config) for trial in tuned(20))
        optimum = speed_of({"sharding_strategy": ("NO_SHARD",) * 4, "micro_batch_size": 8})
        assert best >= 0.97 * optimum

    def test_other_workloads_teach_too(self) -> None:
        others = [
            Trial.completed(
                workload={**WORKLOAD, "program": "other.py"},
                config=trial.config,
                tokens_per_second=speed_of(trial.config),
            )
            for trial in tuned(30)
            if trial.measurement
        ]
        (first,) = asked(others)
        assert first.config == CURRENT
        assert first.throughput == pytest.approx(speed_of(CURRENT), rel=0.2)

    def test_a_count_below_one_is_refused(self) -> None:
        with pytest.raises(SpaceError, match="count must be >= 1, got 0"):
            asked([], count=0)

    def test_a_bound_space_serves_as_well(self) -> None:
        bound = SPACE.bind(workload=WORKLOAD, current=CURRENT)
        trials = tuned(3)
        assert asked(trials, space=bound) == asked(trials)

    def test_json_values_only(self) -> None:
        written = asked(tuned(14))[0].to_json()
        assert json.loads(json.dumps(written, allow_nan=False)) == written


class TestBestKnown:
    def known(self, trials: list[Trial], **config: object) -> Suggestion | None:
        return best_known(SPACE, workload=WORKLOAD, current={**CURRENT, **config}, trials=trials)

    def test_no_measurement_gives_no_best(self) -> None:
        assert self.known([]) is None
        assert self.known([Trial.infeasible(workload=WORKLOAD, config=CURRENT)]) is None

    def test_a_clearly_faster_config_is_returned_with_its_gain(self) -> None:
        trials = [launched(CURRENT), launched({**CURRENT, "micro_batch_size": 8, "gradient_accumulation_steps": 2})]
        best = self.known(trials)
        assert best is not None
        assert best.config["micro_batch_size"] == 8
        assert best.gain_low < best.gain == pytest.approx(1.25, rel=0.05)
        assert best.baseline_throughput == pytest.approx(800.0, rel=0.05)

    def test_the_users_config_stays_for_a_gain_under_a_per_cent(self) -> None:
        twin = {**CURRENT, "micro_batch_size": 4, "gradient_accumulation_steps": 4}
        trials = [
            Trial.completed(workload=WORKLOAD, config=config, tokens_per_second=speed)
            for config, speed in ((CURRENT, 1000.0), (twin, 1004.0))
        ]
        best = self.known(trials)
        assert best is not None
        assert best.config == CURRENT
        assert best.gain == 1.0

    def test_the_highest_measurement_does_not_win_by_luck(self) -> None:
        # One lucky measurement of many configs that are alike, against one config measured eight times.
        steady = {**CURRENT, "micro_batch_size": 8, "gradient_accumulation_steps": 2}
        lucky = {**CURRENT, "micro_batch_size": 4, "gradient_accumulation_steps": 4}
        rng = np.random.default_rng(0)
        speeds = [(steady, 1000.0 * np.exp(noise)) for noise in rng.normal(0, 0.1, 8)]
        # One measurement of the own config is too few to claim a gain over it under this noise.
        speeds += [(lucky, 800.0), (lucky, 850.0), (lucky, 1160.0)] + [(CURRENT, 700.0)] * 3
        trials = [Trial.completed(workload=WORKLOAD, config=config, tokens_per_second=s) for config, s in speeds]
        best = self.known(trials)
        assert best is not None
        assert best.config == steady

    def test_a_config_once_out_of_memory_is_never_run(self) -> None:
        fast = {**CURRENT, "micro_batch_size": 8, "gradient_accumulation_steps": 2}
        trials = [launched(CURRENT), launched(fast), Trial.infeasible(workload=WORKLOAD, config=fast)]
        best = self.known(trials)
        assert best is not None
        assert best.config == CURRENT

    def test_a_user_config_out_of_memory_has_no_baseline(self) -> None:
        other = {**CURRENT, "micro_batch_size": 1, "gradient_accumulation_steps": 16}
        best = self.known([launched(other), Trial.infeasible(workload=WORKLOAD, config=CURRENT)])
        assert best is not None
        assert best.config == other
        assert best.gain is best.baseline_throughput is None

    def test_few_trials_never_choose_an_untried_config(self) -> None:
        for count in range(1, 8):
            trials = tuned(count)
            best = self.known(trials)
            assert best is None or best.config in [trial.config for trial in trials]

    def test_an_untried_config_wins_by_its_low_end(self) -> None:
        space = SearchSpace(
            parameters=(
                Parameter(name="micro_batch_size", choices=(1, 2, 4, 8)),
                Parameter(name="precision", choices=("bf16", "fp32")),
                Parameter(name="compile", choices=(False, True)),
            )
        )
        workload = {"program": "train.py", "world_size": 1}
        configs = space.bind(workload=workload, current={}).configs()
        # Here the smallest batch is the fastest, so larger ones that ran prove that it fits.
        left_out = {"micro_batch_size": 1, "precision": "bf16", "compile": True}
        trials = [
            Trial.completed(
                workload=workload,
                config=config,
                tokens_per_second=100.0
                / config["micro_batch_size"]
                * (3.0 if config["precision"] == "bf16" else 1.0)
                * (2.0 if config["compile"] else 1.0),
            )
            for config in configs
            if config != left_out
        ]
        current = {"micro_batch_size": 8, "precision": "fp32", "compile": False}
        best = best_known(space, workload=workload, current=current, trials=trials)
        assert best is not None
        assert best.config == left_out
        assert best.probability_to_fit >= 0.95
        assert "not run yet" in best.reason

    def test_trials_outside_the_space_are_ignored(self) -> None:
        assert self.known([launched({**CURRENT, "micro_batch_size": 4, "gradient_accumulation_steps": 1})]) is None

    def test_literals_come_from_the_space(self) -> None:
        stored = {**CURRENT, "micro_batch_size": 8.0, "gradient_accumulation_steps": 2.0}
        trials = [
            Trial.completed(workload=WORKLOAD, config=config, tokens_per_second=speed)
            for config, speed in ((CURRENT, 800.0), (stored, 1000.0))
        ]
        best = self.known(trials)
        assert best is not None
        assert isinstance(best.config["micro_batch_size"], int)

    def test_after_a_search_it_is_close_to_the_best(self) -> None:
        best = self.known(tuned(20))
        assert best is not None
        assert speed_of(best.config) >= 0.95 * speed_of(
            {**CURRENT, "sharding_strategy": ("NO_SHARD",) * 4} | {"micro_batch_size": 8}
        )


def test_an_ordinary_launch_scores_few_untried_configs(monkeypatch: pytest.MonkeyPatch) -> None:
    layers = Parameter(name="sharding_strategy", choices=STRATEGIES, per_layer="n_layers")
    space = SearchSpace(parameters=(layers, Parameter(name="n_workers", choices=tuple(range(1, 26)))))
    workload = {"program": "big.py", "world_size": 8, "n_layers": 24}
    current = {"sharding_strategy": ("FULL_SHARD",) * 24, "n_workers": 1}
    configs = space.bind(workload=workload, current=current).sample(40, rng=np.random.default_rng(0))
    trials = [
        Trial.completed(workload=workload, config=config, tokens_per_second=float(config["n_workers"]))
        for config in configs
    ]
    seen: list[int] = []
    forecast_at = Posterior.forecast_at

    def counted(posterior: Posterior, asked: NDArray[np.intp]) -> object:
        seen.append(len(asked))
        return forecast_at(posterior, asked)

    monkeypatch.setattr(Posterior, "forecast_at", counted)
    monkeypatch.setattr("torchx_cubicml.advisor.study._SAFE", 0.0)  # so that nothing untried is out of the question
    assert best_known(space, workload=workload, current=current, trials=trials) is not None
    assert 200 < sum(seen) < 2000


def test_repeat_noise_without_trials_is_plausible() -> None:
    assert 0.02 < repeat_noise([], objective="tokens_per_second") < 0.1


def test_ten_thousand_trials_and_a_huge_space_take_seconds() -> None:
    layers = Parameter(name="sharding_strategy", choices=STRATEGIES, per_layer="n_layers")
    space = SearchSpace(
        parameters=(
            layers,
            Parameter(name="micro_batch_size", choices=tuple(range(1, 26))),
            Parameter(name="reserved_share", choices=tuple(round(0.77 + 0.01 * step, 2) for step in range(9))),
        )
    )
    workload = {"program": "big.py", "world_size": 8, "n_layers": 24}
    current = {"sharding_strategy": ("FULL_SHARD",) * 24, "micro_batch_size": 1, "reserved_share": 0.77}
    rng = np.random.default_rng(0)
    configs = space.bind(workload=workload, current=current).sample(10_000, rng=rng)
    trials = [
        Trial.completed(
            workload={**workload, "program": ("big.py", "b.py", "c.py")[index % 3]},
            config=config,
            tokens_per_second=float(config["micro_batch_size"]) * float(rng.uniform(0.9, 1.1)),
        )
        for index, config in enumerate(configs)
    ]
    started = time.process_time()
    found = suggest(space, workload=workload, current=current, trials=trials, count=5)
    assert time.process_time() - started < 60.0  # about 3 s of one core; the rest is for a slow machine
    assert len(found) == 5


def test_an_uncertain_space_still_has_a_best_config(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Posterior, "outliers", lambda posterior, configs: np.ones(len(configs), dtype=np.bool_))
    assert best_known(SPACE, workload=WORKLOAD, current=CURRENT, trials=tuned(9)) is not None
