"""What each parameter of the best config is worth."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.advisor.by_hand import Process, study_of
from torchx_cubicml.advisor import Study, sensitivity
from torchx_cubicml.predictors import Prediction
from torchx_cubicml.records.trial import Trial
from torchx_cubicml.space import Parameter, SearchSpace
from torchx_cubicml.space.expression import parse_expression

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torchx_cubicml.advisor.sensitivity import ParameterSensitivity
    from torchx_cubicml.records.values import Config

WORKLOAD = {"program": "train.py", "world_size": 2}
STRATEGIES = ("FULL_SHARD", "NO_SHARD")
SPACE = SearchSpace(
    parameters=(
        Parameter(name="sharding_strategy", choices=STRATEGIES, per_layer=4),
        Parameter(name="micro_batch_size", choices=(1, 2, 4, 8)),
        Parameter(name="backend", choices=("a", "b")),
    )
)
CURRENT = {"sharding_strategy": ("FULL_SHARD",) * 4, "micro_batch_size": 1, "backend": "a"}
GIVEN = {"workload": WORKLOAD, "current": CURRENT}


def launched(config: dict[str, object]) -> Trial:
    speed = 100.0 * config["micro_batch_size"] ** 0.5 * (1.0 + 0.05 * config["sharding_strategy"].count("NO_SHARD"))
    return Trial.completed(workload=WORKLOAD, config=config, tokens_per_second=speed)


@pytest.fixture(scope="module")
def trials() -> list[Trial]:
    drawn = SPACE.bind(**GIVEN).sample(25, rng=np.random.default_rng(3))
    best = {**CURRENT, "sharding_strategy": ("NO_SHARD",) * 4, "micro_batch_size": 8}
    return [launched(config) for config in [*drawn, best, {**best, "micro_batch_size": 4}]]


def test_parameters_are_ordered_by_their_gain(trials: list[Trial]) -> None:
    worths = sensitivity(Study.of(SPACE, **GIVEN, trials=trials))
    assert [worth.name for worth in worths] == ["micro_batch_size", "sharding_strategy", "backend"]
    batch, layers, backend = worths
    assert batch.own.value == 1
    assert batch.own.predicted == pytest.approx(8**-0.5, rel=0.1)
    assert batch.own.low < batch.own.predicted < batch.own.high
    assert layers.own.value == ("FULL_SHARD",) * 4
    assert layers.own.predicted == pytest.approx(1 / 1.2, rel=0.05)
    assert [each.predicted for each in backend.alternatives] == pytest.approx([1.0], abs=0.03)


def test_a_measured_single_change_is_reported_as_measured(trials: list[Trial]) -> None:
    batch = sensitivity(Study.of(SPACE, **GIVEN, trials=trials))[0]
    halved = next(each for each in batch.alternatives if each.value == 4)
    assert halved.measured == pytest.approx(0.5**0.5)
    assert halved.n_measured == 1


def test_layers_are_compared_with_one_choice_for_all() -> None:
    mixed = {**CURRENT, "sharding_strategy": ("NO_SHARD", "NO_SHARD", "NO_SHARD", "FULL_SHARD"), "micro_batch_size": 8}
    trials = [launched(config) for config in (CURRENT, mixed, {**CURRENT, "micro_batch_size": 4})]
    layers = next(
        each for each in sensitivity(Study.of(SPACE, **GIVEN, trials=trials)) if each.name == "sharding_strategy"
    )
    assert layers.value == mixed["sharding_strategy"]
    assert ("FULL_SHARD",) * 4 in [each.value for each in layers.alternatives]


def test_no_measurement_gives_no_sensitivity() -> None:
    assert sensitivity(Study.of(SPACE, **GIVEN, trials=[])) == ()


def test_an_idle_parameter_is_not_compared() -> None:
    space = SearchSpace(
        parameters=(
            Parameter(name="micro_batch_size", choices=(1, 2, 4)),
            Parameter(
                name="overlap",
                choices=(False, True),
                when=parse_expression("micro_batch_size > 1", where="when"),
                default=False,
            ),
        )
    )
    speeds = {(1, False): 130.0, (2, True): 100.0, (2, False): 101.0, (4, True): 90.0}
    trials = [
        Trial.completed(
            workload=WORKLOAD, config={"micro_batch_size": batch, "overlap": overlap}, tokens_per_second=speed
        )
        for (batch, overlap), speed in speeds.items()
    ]
    current = {"micro_batch_size": 2, "overlap": True}
    worths = sensitivity(Study.of(space, workload=WORKLOAD, current=current, trials=trials))
    assert [len(worth.alternatives) for worth in sorted(worths, key=lambda worth: worth.name)] == [2, 0]


@dataclass(frozen=True, kw_only=True)
class OfRows(Process):
    """A process whose prediction of a whole row is chosen by hand."""

    row_speeds: Callable[[Mapping[str, object]], float]

    def forecast(self, rows: Sequence[Mapping[str, object]]) -> Prediction:
        logarithm = np.log([self.row_speeds(row) for row in rows])
        fits = np.array([0.5 if row.get("backend") == "b" else 1.0 for row in rows])
        return Prediction(logarithm=logarithm, spread=np.full(len(rows), 0.1), fits=fits)


def by_hand(
    space: SearchSpace,
    speeds: Callable[[Mapping[str, object]], float],
    *runs: tuple[Config, float],
    current: Config,
    winner: Config | None = None,
) -> dict[str, ParameterSensitivity]:
    trials = [Trial.completed(workload=WORKLOAD, config=config, tokens_per_second=speed) for config, speed in runs]
    study = Study.of(space, workload=WORKLOAD, current=current, trials=trials)
    study = replace(study, posterior=replace(study.posterior, surrogate=OfRows(row_speeds=speeds)))
    return {each.name: each for each in sensitivity(study, winner=winner)}


PAIR = SearchSpace(
    parameters=(
        Parameter(name="backend", choices=("a", "b", "c", "d")),
        Parameter(name="workers", choices=(0, 2, 4)),
    )
)


def pair(backend: str, workers: int) -> Config:
    return {"backend": backend, "workers": workers}


SPEED_OF = {"a": 100.0, "b": 80.0, "c": float("nan"), "d": 90.0}


class TestByHand:
    def found(self, *, current: Config | None = None, winner: Config | None = None) -> dict[str, ParameterSensitivity]:
        runs = [(pair("a", 4), 100.0), (pair("a", 4), 140.0), (pair("b", 4), 90.0), (pair("b", 4), 30.0)]
        return by_hand(
            PAIR,
            lambda row: SPEED_OF[row["backend"]] * (1.0 + row["workers"]),
            *runs,
            (pair("d", 0), 50.0),
            current=current or pair("b", 4),
            winner=winner,
        )

    def test_each_alternative_has_its_ratio_and_interval(self) -> None:
        backend = self.found()["backend"]
        assert backend.value == "a"
        assert [each.value for each in backend.alternatives] == ["d", "b"]  # nothing is known of c
        nearest, own = backend.alternatives
        assert [nearest.predicted, own.predicted] == pytest.approx([0.9, 0.8])
        assert (own.low, own.high) == pytest.approx((0.8 * np.exp(-0.12816), 0.8 * np.exp(0.12816)), rel=1e-4)
        assert (own.measured, own.n_measured, own.probability_to_fit) == (0.5, 2, 0.5)  # 60 of 120
        assert (nearest.measured, nearest.n_measured, nearest.probability_to_fit) == (None, 0, 1.0)
        assert backend.own == own

    def test_a_config_that_differs_in_two_parameters_is_left_out(self) -> None:
        workers = self.found()["workers"]
        assert [(each.value, each.n_measured) for each in workers.alternatives] == [(2, 0), (0, 0)]
        assert workers.own is None  # the user has the same number

    def test_the_users_value_is_compared_with_other_values_fixed(self) -> None:
        found = self.found(current=pair("d", 0))
        assert (found["backend"].own.value, found["backend"].own.predicted) == ("d", pytest.approx(0.9))
        assert (found["workers"].own.value, found["workers"].own.predicted) == (0, pytest.approx(0.2))

    def test_the_largest_effect_comes_first(self) -> None:
        assert list(self.found()) == ["workers", "backend"]

    def test_an_unmeasured_winner_has_no_measured_ratio(self) -> None:
        backend = self.found(winner=pair("b", 2))["backend"]
        assert backend.value == "b"
        assert [each.value for each in backend.alternatives] == ["a", "d"]
        assert [each.predicted for each in backend.alternatives] == pytest.approx([1.25, 1.125])
        assert [each.measured for each in backend.alternatives] == [None, None]

    def test_an_illegal_user_config_hides_no_measured_one(self) -> None:
        space = SearchSpace(parameters=(Parameter(name="layers", choices=("x", "y"), per_layer=3), PAIR.parameters[1]))
        best, mixed = ({"layers": layers, "workers": 0} for layers in (("x", "x", "x"), ("x", "y", "x")))
        found = by_hand(
            space,
            lambda row: 100.0 - row["layers"].count("y"),
            (best, 100.0),
            (mixed, 98.0),
            current={"layers": ("z", "z", "z"), "workers": 0},
        )
        layers = found["layers"]
        assert [each.value for each in layers.alternatives] == [("x", "y", "x"), ("y", "y", "y")]
        assert [each.measured for each in layers.alternatives] == [0.98, None]


def test_a_parameter_without_alternatives_counts_as_no_effect() -> None:
    space = SearchSpace(
        parameters=(
            Parameter(name="faster", choices=(1, 2)),
            Parameter(name="fixed", choices=(1,)),
            Parameter(name="slower", choices=(1, 2)),
        )
    )
    own = {"faster": 1, "fixed": 1, "slower": 1}
    found = by_hand(space, lambda row: 100.0 * row["faster"] / row["slower"], (own, 100.0), current=own)
    assert list(found) == ["slower", "fixed", "faster"]
    assert (found["fixed"].own, found["fixed"].alternatives) == (None, ())


@pytest.mark.parametrize(
    ("n_choices", "tried"),
    [
        (6, [0, 1, 2, 3, 4, 5]),
        (7, [0, 2, 4, 6]),
        (12, [0, 2, 4, 6, 8, 10, 11]),
        (13, [0, 3, 6, 9, 12]),
        (60, [0, 10, 20, 30, 40, 50, 59]),
    ],
)
def test_a_long_list_is_sampled_at_equal_strides(n_choices: int, tried: list[int]) -> None:
    study = study_of(Process(speeds=lambda place: 100.0 - place), {0: 100.0}, n_choices=n_choices)
    (place,) = sensitivity(study)
    assert [each.value for each in place.alternatives] == tried[1:]


def test_own_and_measured_values_join_a_sampled_list() -> None:
    """What was measured beside another number of workers says nothing of the place alone."""
    numbers = (Parameter(name="place", choices=tuple(range(60))), Parameter(name="workers", choices=(0, 2)))
    found = by_hand(
        SearchSpace(parameters=numbers),
        lambda row: 100.0 - row["place"] - row["workers"],
        ({"place": 0, "workers": 0}, 100.0),
        ({"place": 23, "workers": 0}, 60.0),
        ({"place": 41, "workers": 2}, 50.0),
        current={"place": 37, "workers": 2},
    )
    place = found["place"]
    assert [each.value for each in place.alternatives] == [10, 20, 23, 30, 37, 40, 50, 59]
    assert [each.measured for each in place.alternatives if each.value == 23] == [0.6]
    assert (place.own.value, place.own.predicted) == (37, pytest.approx(0.63))
    assert [each.value for each in found["workers"].alternatives] == [2]
