"""Overheads of launches: what depends on the config is charged to it, and what does not is pooled."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from torchx_cubicml.advisor.launch_overhead import LaunchOverhead, PartTree, with_jobs
from torchx_cubicml.predictors.features.rows import FactRows
from torchx_cubicml.records.job_time import Job
from torchx_cubicml.records.measurement import Measurement
from torchx_cubicml.records.trial import State, Trial
from torchx_cubicml.space import Parameter, SearchSpace

NAMES = ("compile", "batch")


def launches(*rows: tuple[bool, int, float]) -> list[tuple[dict[str, bool | int], float]]:
    return [({"compile": compiled, "batch": batch}, seconds) for compiled, batch, seconds in rows]


def test_a_part_that_follows_one_parameter_is_charged_to_its_values() -> None:
    tree = PartTree.of(launches((True, 1, 95.0), (True, 2, 99.0), (False, 1, 2.0), (False, 2, 2.2)), NAMES)
    assert tree.name == "compile"
    assert tree.leaf({"compile": True, "batch": 4}).seconds == 97.0
    assert tree.leaf({"compile": False}).seconds == pytest.approx(2.1)
    unknown = tree.leaf({"batch": 1})
    assert unknown.doubt_s >= 90.0  # either may hold


def test_two_launches_of_one_kind_each_are_enough_for_a_large_difference_and_not_for_a_small_one() -> None:
    assert PartTree.of(launches((True, 1, 95.0), (False, 1, 2.0)), NAMES).name == "compile"
    assert PartTree.of(launches((True, 1, 10.0), (False, 1, 9.0)), NAMES).name == ""


def test_differences_by_chance_are_pooled() -> None:
    rng = np.random.default_rng(0)
    split = 0
    for _ in range(200):
        rows = [(bool(number % 2), number % 3, float(np.exp(rng.normal(2.0, 0.3)))) for number in range(12)]
        split += PartTree.of(launches(*rows), NAMES).name != ""
    assert split < 200 * 0.1  # the test's own level is 5 %; 10 % of 200 are exceeded by chance once in 1,000 times


def test_an_effect_within_one_branch_is_found() -> None:
    rows = [(True, batch, 50.0 * batch) for batch in (1, 4) for _ in range(3)]
    rows += [(False, batch, 2.0) for batch in (1, 4) for _ in range(3)]
    tree = PartTree.of(launches(*rows), NAMES)
    found = [tree.leaf({"compile": compiled, "batch": batch}).seconds for compiled in (True, False) for batch in (1, 4)]
    assert found == [50.0, 200.0, 2.0, 2.0]


def trial(number: int, *, compiled: bool, queue_s: float | None, startup_s: float | None) -> Trial:
    return Trial(
        trial_id=f"t{number}",
        workload={"program": "train.py"},
        config={"compile": compiled},
        state=State.COMPLETED,
        observed={} if queue_s is None else {"queue_s": queue_s},
        measurement=Measurement(mean_step_time_s=0.1, statistic="mean", startup_s=startup_s, relative_error=0.04),
    )


def test_a_trial_is_judged_by_its_own_start_up_and_the_queue_of_all() -> None:
    job = Job(unit="steps", amount=100)
    trials = [
        trial(0, compiled=True, queue_s=10.0, startup_s=5.0),
        trial(1, compiled=True, queue_s=30.0, startup_s=6.0),
        trial(2, compiled=True, queue_s=11.0, startup_s=None),
        replace(trial(3, compiled=True, queue_s=1.0, startup_s=1.0), workload={"program": "other.py"}),
    ]
    *own, other = with_jobs(trials, job, workload={"program": "train.py"})
    times = [1.0 / each.throughput("soonest_done") for each in own]
    assert times == pytest.approx([11.0 + 5.0 + 10.0, 11.0 + 6.0 + 10.0, 11.0 + 5.5 + 10.0])
    assert own[0].uncertainty("soonest_done") == pytest.approx(0.04 * 10.0 / 26.0)
    assert own[0].uncertainty("steps_per_second") == 0.04
    assert other.throughput("soonest_done") is None
    assert with_jobs(trials, None, workload={}) == trials


def test_impossible_overheads_of_a_record_are_unknown() -> None:
    job = Job(unit="steps", amount=100)
    own = [trial(number, compiled=True, queue_s=1e300, startup_s=1e308) for number in range(2)]
    [first, _] = with_jobs(own, job, workload={"program": "train.py"})
    assert first.throughput("soonest_done") == pytest.approx(1 / 10.0)


def test_rows_of_one_kind_have_one_error() -> None:
    rows = [(True, 1, 95.0), (True, 2, 99.0), (False, 1, 2.0), (False, 2, 2.2)]
    overhead = LaunchOverhead(trees={"compile_s": PartTree.of(launches(*rows), NAMES)})
    found = overhead.at([{"compile": True, "batch": 9}, {"compile": False}, {"compile": True}, {}])
    assert found.seconds.tolist() == pytest.approx([97.0, 2.1, 97.0, overhead.trees["compile_s"].seconds])
    assert found.kind[0] == found.kind[2]
    assert len(set(found.kind.tolist())) == 3
    nothing = LaunchOverhead.of([]).at([{"compile": True}])
    assert (nothing.seconds.tolist(), nothing.doubt_s.tolist()) == ([0.0], [0.0])


def test_rows_with_a_value_per_layer_are_predicted_as_their_configs_are() -> None:
    space = SearchSpace(parameters=(Parameter(name="compile", choices=(True, False), per_layer=2),))
    bound = space.bind(workload={}, current={"compile": (True, True)})
    rows = FactRows(bound, facts={}, instead={})
    tree = PartTree.of(launches((True, 1, 95.0), (True, 2, 99.0), (False, 1, 2.0), (False, 2, 2.2)), NAMES)
    overhead = LaunchOverhead(trees={"compile_s": tree})
    vectors = np.array(list(bound.legal.choices.vectors()), dtype=np.intp)
    configs = [rows.config_at(vector) for vector in vectors]
    expected = [overhead.parts(config)["compile_s"] for config in configs]
    assert overhead.at(rows.at(vectors)).seconds.tolist() == pytest.approx(expected)
    assert overhead.at(configs).seconds.tolist() == pytest.approx(expected)
