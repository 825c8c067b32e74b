"""Which launches are designed before the acquisition chooses, and which of them the step-time formulas favour."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from torchx_cubicml.advisor import Study
from torchx_cubicml.advisor.batch import BASELINE_REASON, designed, roofline_starts
from torchx_cubicml.advisor.initial_design import DesignPoint, first_batch
from torchx_cubicml.predictors import Prediction
from torchx_cubicml.predictors.roofline import Roofline
from torchx_cubicml.records.trial import State, Trial
from torchx_cubicml.space import Parameter, SearchSpace

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torchx_cubicml.advisor.posterior import Posterior
    from torchx_cubicml.records.values import Config

WORKLOAD = {"program": "train.py", "world_size": 2}
STRATEGIES = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD")
SPACE = SearchSpace(
    parameters=(
        Parameter(name="sharding_strategy", choices=STRATEGIES, per_layer=4),
        Parameter(name="micro_batch_size", choices=(1, 2, 4, 8, 16)),
    )
)
CURRENT = {"sharding_strategy": ("FULL_SHARD",) * 4, "micro_batch_size": 2}


def posterior_of(trials: Sequence[Trial], current: Config = CURRENT) -> Posterior:
    return Study.of(SPACE, workload=WORKLOAD, current=current, trials=trials).posterior


def ran(config: Config, speed: float = 100.0) -> Trial:
    return Trial.completed(workload=WORKLOAD, config=config, tokens_per_second=speed)


@dataclass(frozen=True)
class FitsBySize:
    """Surrogate that knows nothing but the probability of each micro batch to fit."""

    fits: Mapping[int, float] = field(default_factory=dict)

    def forecast(self, rows: Sequence[Mapping[str, object]]) -> Prediction:
        fits = np.array([self.fits.get(row["micro_batch_size"], 1.0) for row in rows])
        return replace(Prediction.unknown(len(rows)), fits=fits)


@pytest.mark.parametrize(("tried", "left"), [(7, True), (8, False), (9, False)])
def test_the_design_ends_after_eight_configs(tried: int, left: bool) -> None:
    configs = SPACE.bind(workload=WORKLOAD, current=CURRENT).sample(tried - 1, rng=np.random.default_rng(1))
    posterior = posterior_of([ran(config) for config in [CURRENT, *configs]])
    assert posterior.n_tried == tried
    assert (next(designed(posterior, CURRENT), None) is not None) is left


@pytest.mark.parametrize(("fit", "kept"), [(0.34, False), (0.35, True), (0.36, True)])
def test_a_design_leaves_out_what_hardly_fits(fit: float, kept: bool) -> None:
    posterior = replace(posterior_of([]), surrogate=FitsBySize({16: fit}))
    found = [config for config, _ in designed(posterior, CURRENT)]
    every = [point.config for point in first_batch(posterior.space, current=CURRENT)]
    assert found == [config for config in every if kept or config["micro_batch_size"] != 16]


def test_a_design_goes_on_around_the_fastest() -> None:
    configs = [point.config for point in first_batch(posterior_of([]).space, current=CURRENT)]
    trials = [ran(config, 100.0) for config in configs]
    trials[2] = ran(configs[2], 150.0)
    found = [config for config, _ in designed(posterior_of([*trials, ran(configs[2], 10.0)]), CURRENT)]
    expected = first_batch(posterior_of([]).space, current=CURRENT, best=configs[2])[len(configs) :]
    assert found == [point.config for point in expected]


def test_reasons_of_a_design_begin_with_the_users_config() -> None:
    points = first_batch(posterior_of([]).space, current=CURRENT)
    expected = [BASELINE_REASON, *(f"initial design: {point.why}" for point in points[1:])]
    assert [why for _, why in designed(posterior_of([]), CURRENT)] == expected


def test_a_config_that_failed_is_designed_last() -> None:
    failed = Trial(trial_id="a", workload=WORKLOAD, config=CURRENT, state=State.USER_ERROR)
    before = [config for config, _ in designed(posterior_of([]), CURRENT)]
    posterior = replace(posterior_of([failed]), surrogate=FitsBySize())
    assert [config for config, _ in designed(posterior, CURRENT)] == [*before[1:], before[0]]


def test_a_decided_config_is_not_designed() -> None:
    points = list(designed(posterior_of([]), CURRENT))
    lost = [Trial.infeasible(workload=WORKLOAD, config=points[0][0])]
    assert CURRENT not in [config for config, _ in designed(posterior_of(lost), CURRENT)]
    assert list(designed(replace(posterior_of(lost), surrogate=FitsBySize({4: 0.0, 16: 0.0})), CURRENT)) == []


def test_nothing_is_designed_where_all_is_decided() -> None:
    space = SearchSpace(parameters=(Parameter(name="backend", choices=("a", "b")),))
    lost = [Trial.infeasible(workload=WORKLOAD, config={"backend": name}) for name in "ab"]
    posterior = Study.of(space, workload=WORKLOAD, current={"backend": "a"}, trials=lost).posterior
    assert list(designed(posterior, {"backend": "a"})) == []


@pytest.mark.parametrize(
    ("state", "designed_again"),
    [(None, True), (State.USER_ERROR, False), (State.OUT_OF_MEMORY, False), (State.INFRASTRUCTURE, True)],
)
def test_with_a_prior_the_users_config_is_the_design(state: State | None, designed_again: bool) -> None:
    trials = [Trial(trial_id="a", workload=WORKLOAD, config=CURRENT, state=state)] if state else []
    posterior = replace(posterior_of(trials), has_transfer_prior=True)
    assert list(designed(posterior, CURRENT)) == ([(CURRENT, BASELINE_REASON)] if designed_again else [])


def test_with_a_prior_an_illegal_config_is_not_designed() -> None:
    posterior = replace(posterior_of([]), has_transfer_prior=True)
    assert list(designed(posterior, {**CURRENT, "micro_batch_size": 3})) == []


TRANSFORMER = {
    "program": "train.py",
    "world_size": 8,
    "n_layers": 24,
    "d_model": 2048,
    "n_heads": 16,
    "vocab_size": 50_000,
    "seq_len": 2048,
    "device": "NVIDIA H100 80GB HBM3",
}
SIZES, DEGREES = (1, 2, 4, 8), (1, 2, 4)
FORMULAS = SearchSpace(
    parameters=(Parameter(name="micro_batch_size", choices=SIZES), Parameter(name="tp_degree", choices=DEGREES))
)
SMALLEST = {"micro_batch_size": 1, "tp_degree": 1}


def study_of(space: SearchSpace, workload: Mapping[str, object] = TRANSFORMER) -> Study:
    return Study.of(space, workload=dict(workload), current=SMALLEST, trials=[])


def layered(parameter: Parameter) -> SearchSpace:
    return replace(FORMULAS, parameters=(*FORMULAS.parameters, parameter))


def plain_starts(posterior: Posterior, configs: list[Config], *, count: int, taken: list[Config]) -> list[Config]:
    """The best of log throughput plus log fit, each pick lowering those near to it."""
    fits = posterior.forecast(configs).fits
    speeds = Roofline().tokens_per_second([posterior.rows.of(config) for config in configs])
    scores = {
        place: math.log(speed * fit) - 1000.0 * max(0.3 - fit, 0.0)
        for place, (speed, fit) in enumerate(zip(speeds.tolist(), fits.tolist(), strict=True))
        if math.isfinite(speed) and fit > 0
    }

    def lower(near: Config) -> None:
        for place in scores:
            sizes = abs(SIZES.index(configs[place]["micro_batch_size"]) - SIZES.index(near["micro_batch_size"])) / 3
            degrees = abs(DEGREES.index(configs[place]["tp_degree"]) - DEGREES.index(near["tp_degree"])) / 2
            scores[place] -= 0.3 * math.exp(-10 * (sizes / 2 + degrees / 2))

    for config in taken:
        lower(config)
    picked = []
    for _ in range(min(count, len(scores))):
        top = max(scores, key=lambda place: scores[place])
        del scores[top]
        picked.append(configs[top])
        lower(configs[top])
    return picked


class TestRooflineStarts:
    @pytest.mark.parametrize("count", [1, 3, 20])
    @pytest.mark.parametrize("n_taken", [0, 2])
    def test_starts_are_the_fastest_that_fit(self, count: int, n_taken: int) -> None:
        posterior = study_of(FORMULAS).posterior
        configs = list(posterior.space.configs())
        taken = plain_starts(posterior, configs, count=n_taken, taken=[])
        found = roofline_starts(posterior, count=count, taken=[DesignPoint(config=each, why="") for each in taken])
        assert [point.config for point in found] == plain_starts(posterior, configs, count=count, taken=taken)
        assert {point.why for point in found} == {"among the fastest by the step-time formulas"}

    def test_three_starts_follow_the_users_config(self) -> None:
        study = study_of(FORMULAS)
        own = DesignPoint(config=SMALLEST, why="")
        expected = [point.config for point in roofline_starts(study.posterior, count=3, taken=[own])]
        points = first_batch(study.posterior.space, current=SMALLEST)
        found = list(designed(study.posterior, SMALLEST))
        assert SMALLEST not in expected
        assert [config for config, _ in found[:4]] == [SMALLEST, *expected]
        assert [config for config, _ in found[4:]] == [point.config for point in points[1:]]
        assert found[1][1] == "initial design: among the fastest by the step-time formulas"

    @pytest.mark.parametrize("left_out", ["n_layers", "d_model", "seq_len"])
    def test_an_uncovered_workload_has_none(self, left_out: str) -> None:
        workload = {name: value for name, value in TRANSFORMER.items() if name != left_out}
        assert roofline_starts(study_of(FORMULAS, workload).posterior, count=3, taken=[]) == []

    def test_uncovered_configs_are_left_out(self) -> None:
        layers = Parameter(name="n_layers", choices=(24, 0))
        space = SearchSpace(parameters=(*FORMULAS.parameters, layers))
        workload = {name: value for name, value in TRANSFORMER.items() if name != "n_layers"}
        found = roofline_starts(study_of(space, workload).posterior, count=30, taken=[])
        assert len(found) == 12
        assert {point.config["n_layers"] for point in found} == {24}

    def test_of_a_value_per_layer_one_start_has_all_layers_alike(self) -> None:
        layers = Parameter(name="activation_checkpointing", choices=("full", "none"), per_layer=24)
        (found,) = roofline_starts(study_of(layered(layers)).posterior, count=3, taken=[])
        (expected,) = roofline_starts(study_of(layered(replace(layers, per_layer=None))).posterior, count=1, taken=[])
        same = (expected.config["activation_checkpointing"],) * 24
        assert found.config == {**expected.config, "activation_checkpointing": same}

    def test_layers_that_differ_in_the_users_config_are_no_obstacle(self) -> None:
        layers = Parameter(name="activation_checkpointing", choices=("full", "none"), per_layer=24)
        own = {**SMALLEST, "activation_checkpointing": ("full", *("none",) * 23)}
        posterior = study_of(layered(layers)).posterior
        found = roofline_starts(posterior, count=1, taken=[DesignPoint(config=own, why="")])
        assert found == roofline_starts(posterior, count=1, taken=[])

    def test_of_a_large_space_a_sample_is_ranked(self) -> None:
        """Two thousand of 4,000 configs: the best three are among the fastest hundredth but once in a million."""
        workers = Parameter(name="n_workers", choices=tuple(range(500)))
        space = SearchSpace(parameters=(*FORMULAS.parameters[:1], Parameter(name="tp_degree", choices=(1, 2)), workers))
        posterior = study_of(space).posterior
        found = roofline_starts(posterior, count=3, taken=[])
        assert found == roofline_starts(posterior, count=3, taken=[])
        best = roofline_starts(study_of(replace(space, parameters=space.parameters[:2])).posterior, count=1, taken=[])
        assert found[0].config.items() >= best[0].config.items()
