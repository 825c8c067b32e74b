"""The frontier of two objectives holds exactly the configs that no other one surpasses, with what is doubtful of it."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from torchx_cubicml.advisor.frontier_search import predicted_frontier
from torchx_cubicml.advisor.pareto_front import FrontierPoint, frontier_of, measured_points
from torchx_cubicml.cli.frontier_table import frontier_lines
from torchx_cubicml.history.history import History
from torchx_cubicml.records.trial import Trial
from torchx_cubicml.space.toml import parse_space

PAIR = ("tokens_per_second", "tokens_per_device_hour")


def point(first: float, second: float, *, doubt: float = 0.0, name: int = 0) -> FrontierPoint:
    return FrontierPoint(config={"a": name}, values=(first, second), doubt=doubt, launches=1)


def test_a_frontier_is_what_comparing_all_pairs_leaves() -> None:
    rng = np.random.default_rng(5)
    for _ in range(50):
        values = rng.integers(1, 8, size=(12, 2)).astype(float)
        points = [point(*pair, name=number) for number, pair in enumerate(values.tolist())]
        left = [
            one.config["a"]
            for one in points
            if not any(
                all(theirs >= ours for theirs, ours in zip(two.values, one.values, strict=True))
                and two.values != one.values
                for two in points
            )
        ]
        assert sorted(each.config["a"] for each in frontier_of(points, PAIR).points) == sorted(left)


def test_the_own_config_is_listed_even_where_it_is_surpassed() -> None:
    points = [point(3.0, 1.0, name=1), point(1.0, 3.0, name=2), point(0.5, 0.5, name=3)]
    found = frontier_of(points, PAIR, current={"a": 3})
    assert [each.config["a"] for each in found.points] == [1, 2, 3]
    assert [each.is_own for each in found.points] == [False, False, True]
    assert [each.is_best for each in found.points] == [True, True, False]
    assert found.points[0].ratios == (6.0, 2.0)
    assert [each.ratios for each in frontier_of(points, PAIR, current={"a": 9}).points] == [None, None]


def test_a_point_that_another_one_surpasses_but_for_the_noise_is_marked() -> None:
    def marks(first: float) -> list[bool]:
        points = [point(first, 1.0, doubt=0.03, name=1), point(1.0, 2.0, doubt=0.03, name=2)]
        return [each.may_be_surpassed for each in frontier_of(points, PAIR).points]

    assert marks(1.02) == [True, False]
    assert marks(1.5) == [False, False]


def trial(config: dict[str, int], rate: float, number: int) -> Trial:
    done = Trial.completed(workload={"program": "train.py"}, config=config, tokens_per_second=rate)
    minute = f"2026-01-01T00:{number:02d}:00+00:00"
    return replace(done, trial_id=f"t{number:02d}", observed={"world_size": config["world_size"]}, started_at=minute)


def test_repeats_are_one_point_of_less_doubt_and_unmeasured_trials_none() -> None:
    one, two = {"world_size": 1}, {"world_size": 2}
    rows = [trial(one, 100.0, 0), trial(one, 121.0, 1), trial(two, 150.0, 2)]
    failed = Trial.infeasible(workload={}, config={"world_size": 4})
    unknown_size = Trial.completed(workload={}, config={"b": 1}, tokens_per_second=1e9)
    first, second = measured_points([*rows, failed, unknown_size], PAIR, noise=0.1)
    assert first.values == pytest.approx((110.0, 110.0 * 3600))
    assert (first.launches, second.launches) == (2, 1)
    assert first.doubt == pytest.approx(0.1 / math.sqrt(2))
    assert second.doubt == pytest.approx(0.1)


def test_a_point_carries_the_global_batch_of_its_launches() -> None:
    config = {"world_size": 2}
    seen = [
        replace(each, observed={**each.observed, "global_batch_size": batch})
        for each, batch in zip([trial(config, 100.0, number) for number in range(3)], (32, 32, 16), strict=True)
    ]
    told = trial({"world_size": 1, "micro_batch_size": 4, "gradient_accumulation_steps": 2}, 100.0, 3)
    assert [each.global_batch for each in measured_points([*seen[:2], told], PAIR)] == [32, 8]
    assert [each.global_batch for each in measured_points([*seen, trial({"a": 1, **config}, 9.0, 4)], PAIR)] == [
        None
    ] * 2


SPACE = """
objective = ["tokens_per_second", "tokens_per_device_hour"]
[parameters.nproc_per_node]
choices = [1, 2, 4, 8]
torchrun = "--nproc_per_node"
changes_training = true
[parameters.batch]
choices = [1, 2, 4, 8]
flag = "--batch"
changes_training = true
"""


def test_untried_configs_are_shown_as_predicted() -> None:
    workload, current = {"program": "train.py", "nnodes": 1}, {"nproc_per_node": 1, "batch": 1, "world_size": 1}
    trials = [
        replace(
            trial(
                {"nproc_per_node": processes, "batch": batch, "world_size": processes},
                100.0 * processes**0.6 * batch**0.3,
                4 * processes + batch,
            ),
            workload=workload,
        )
        for processes in (1, 2, 4)
        for batch in (1, 2, 4)
    ]
    space = parse_space(SPACE, where="x.toml")
    found = predicted_frontier(History(space=space, workload=workload, current=current, trials=trials), seed=0)
    predicted = [each for each in found.points if (each.launches == 0)]
    assert predicted
    assert all(8 in each.config.values() for each in predicted)  # what was not launched
    assert {each.config["nproc_per_node"] for each in found.points} >= {1, 4}
    # Both predictions are of one throughput and a known cost.
    for each in predicted:
        assert each.values[1] == pytest.approx(each.values[0] * 3600 / int(str(each.config["world_size"])), rel=0.02)
    json = found.to_json()
    assert json["objectives"] == list(PAIR)
    assert not predicted_frontier(History(space=space, workload=workload, current=current, trials=[]), seed=0).points


@pytest.mark.parametrize("tells", [True, False])
def test_untried_configs_have_the_batch_that_launches_tell(tells: bool) -> None:
    workload, current = {"program": "train.py", "world_size": 2}, {"micro_batch_size": 1, "kernel": "a"}
    text = SPACE.replace("parameters.batch", "parameters.micro_batch_size").replace("nproc_per_node", "kernel")
    text = text.replace("choices = [1, 2, 4, 8]\ntorchrun", 'choices = ["a", "b"]\nflag').replace("torchrun", "flag")
    trials = []
    for number, (kernel, batch) in enumerate(product("ab", (1, 2, 4))):
        made = trial({"world_size": 2}, 100.0 * batch, number)
        seen = {"world_size": 2, "global_batch_size": 6 * batch if tells or batch < 4 else 8}
        trials.append(
            replace(made, workload=workload, config={"kernel": kernel, "micro_batch_size": batch}, observed=seen)
        )
    space = parse_space(text, where="x.toml")
    history = History(space=space, workload=workload, current=current, trials=trials, predictor="greybox")
    found = predicted_frontier(history, seed=0)
    predicted = {(each.config["micro_batch_size"], each.global_batch) for each in found.points if not each.launches}
    assert predicted == {(8, 48 if tells else None)}
    assert ("different global batch sizes: 6, 48" in " ".join(frontier_lines(found))) is tells
