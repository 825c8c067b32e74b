"""Responses of throughput to one parameter and to two."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.advisor.layered_job import CURRENT, SPACE, WORKLOAD, launches, throughput
from torchx_cubicml.advisor import Study
from torchx_cubicml.advisor.responses import joint_response, responses

if TYPE_CHECKING:
    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.records.values import Config


@pytest.fixture(scope="module")
def trials() -> list[Trial]:
    return launches()


@pytest.fixture(scope="module")
def best(trials: list[Trial]) -> Config:
    return max((trial.config for trial in trials if trial.measurement is not None), key=throughput)


@pytest.fixture(scope="module")
def study(trials: list[Trial]) -> Study:
    return Study.of(SPACE, workload=WORKLOAD, current=CURRENT, trials=trials)


def test_telling_parameters_come_in_the_order_of_their_effect(study: Study, best: Config) -> None:
    found = responses(study, best=best)
    names = [response.axes[0].name for response in found]
    assert names[0] == "micro_batch_size"
    assert {"sharding_strategy", "compile"} <= set(names)
    assert [response.effect for response in found] == sorted((response.effect for response in found), reverse=True)


def test_the_response_follows_the_job_with_an_interval(study: Study, best: Config) -> None:
    (batch,) = (response for response in responses(study, best=best) if response.axes[0].name == "micro_batch_size")
    labels = [batch.axes[0].labels[point.place[0]] for point in batch.points]
    assert labels == [1, 2, 4, 8, 16]
    for label, point in zip(labels, batch.points, strict=True):
        assert point.predicted == pytest.approx(throughput({**best, "micro_batch_size": label}), rel=0.15)
        assert point.low < point.predicted < point.high
    assert batch.points[-1].predicted > batch.points[0].predicted


def test_what_was_measured_is_beside_it(study: Study, best: Config, trials: list[Trial]) -> None:
    (compiled,) = (response for response in responses(study, best=best) if response.axes[0].name == "compile")
    for point in compiled.points:
        config = {**best, "compile": compiled.axes[0].labels[point.place[0]]}
        rates = sorted(trial.throughput("tokens_per_second") or 0.0 for trial in trials if trial.config == config)
        assert point.measured == pytest.approx(rates)
        assert rates


def test_two_parameters_together_have_a_point_at_each_pair(study: Study, best: Config) -> None:
    first, second = (response.axes[0] for response in responses(study, best=best)[:2])
    found = joint_response(study, best=best, axes=(first, second))
    assert len(found.points) == len(first.steps) * len(second.steps)
    home = next(point for point in found.points if point.place == (first.home, second.home))
    assert home.predicted == pytest.approx(throughput(best), rel=0.05)


def test_an_illegal_config_has_no_responses(study: Study) -> None:
    assert responses(study, best={**CURRENT, "micro_batch_size": 3}) == ()
