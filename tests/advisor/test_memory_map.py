"""Map of the memory: its two parameters, the probability to fit, and the launches on it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.advisor.layered_job import CURRENT, LIMIT_GIB, SPACE, WORKLOAD, launches, memory_gib, throughput
from torchx_cubicml.advisor import Study
from torchx_cubicml.advisor.memory_map import MemoryMap, memory_map
from torchx_cubicml.records.trial import Trial
from torchx_cubicml.space import Parameter, SearchSpace
from torchx_cubicml.space.expression import parse_expression

if TYPE_CHECKING:
    from torchx_cubicml.records.values import Config

GIVEN = {"workload": WORKLOAD, "current": CURRENT}


@pytest.fixture(scope="module")
def trials() -> list[Trial]:
    return launches()


@pytest.fixture(scope="module")
def best(trials: list[Trial]) -> Config:
    return max((trial.config for trial in trials if trial.measurement is not None), key=throughput)


@pytest.fixture(scope="module")
def found(trials: list[Trial], best: Config) -> MemoryMap:
    made = memory_map(Study.of(SPACE, **GIVEN, trials=trials), best=best)
    assert made is not None
    return made


def test_the_axes_are_the_two_parameters_that_memory_depends_on(found: MemoryMap) -> None:
    assert found.y is not None
    axes = {axis.name: axis for axis in (found.x, found.y)}
    assert axes.keys() == {"micro_batch_size", "sharding_strategy"}
    assert axes["sharding_strategy"].counted == "NO_SHARD"
    assert axes["micro_batch_size"].labels == (1, 2, 4, 8, 16)


def test_the_boundary_is_where_memory_runs_out(found: MemoryMap, best: Config) -> None:
    assert found.y is not None
    for line, row in enumerate(found.fits.tolist()):
        for column, fits in enumerate(row):
            values = dict(
                zip((found.x.name, found.y.name), (found.x.labels[column], found.y.labels[line]), strict=True)
            )
            layers = ("NO_SHARD",) * int(values["sharding_strategy"])
            need = memory_gib({**best, "micro_batch_size": values["micro_batch_size"], "sharding_strategy": layers})
            if need < 0.8 * LIMIT_GIB:
                assert fits > 0.5, values
            if need > 1.25 * LIMIT_GIB:
                assert fits < 0.5, values


def test_every_launch_is_on_the_map_with_its_peak_or_its_failure(found: MemoryMap, trials: list[Trial]) -> None:
    assert len(found.launches) == len(trials)
    assert found.n_elsewhere == 0
    assert sum(each.has_failed for each in found.launches) == sum(trial.measurement is None for trial in trials)
    assert all((each.peak_gib is None) == each.has_failed for each in found.launches)
    like_best = [each for each in found.launches if each.is_like_best]
    assert like_best
    assert any(each.x == found.x.home for each in like_best)


def test_a_combination_that_is_not_legal_has_no_probability(trials: list[Trial], best: Config) -> None:
    rule = parse_expression("micro_batch_size < 16 or compile == false", where="constraints")
    space = replace(SPACE, constraints=(rule,))
    start = {**best, "compile": True, "micro_batch_size": 4}
    made = memory_map(Study.of(space, **GIVEN, trials=trials), best=start)
    assert made is not None
    assert np.isnan(made.fits).any()
    assert not np.isnan(made.fits).all()


def test_there_is_no_map_of_an_illegal_config_or_of_one_choice(trials: list[Trial]) -> None:
    study = Study.of(SPACE, **GIVEN, trials=trials)
    assert memory_map(study, best={**CURRENT, "micro_batch_size": 3}) is None
    single = SearchSpace(parameters=(Parameter(name="micro_batch_size", choices=(1,)),))
    config = {"micro_batch_size": 1}
    trial = Trial.completed(workload=WORKLOAD, config=config, tokens_per_second=1.0)
    assert memory_map(Study.of(single, workload=WORKLOAD, current=config, trials=[trial]), best=config) is None
