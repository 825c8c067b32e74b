"""Whole tunes on a simulated cluster whose scheduler falls silent while jobs are submitted."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from tests.tune.cluster import SimulatedCluster, StatusError, runner_of
from tests.tune.draws import Draws, stored
from torchx_cubicml.errors import LaunchError
from torchx_cubicml.records.trial import State
from torchx_cubicml.tuner import Budget, tune
from torchx_cubicml.tuner.progress import Ended, Notice
from torchx_cubicml.tuner.scheduler.job_state import JobState, no_answer
from torchx_cubicml.tuner.scheduler.jobs import JobRunner
from torchx_cubicml.tuner.scheduler.scheduler_query import SchedulerQuery
from torchx_cubicml.tuner.scheduler.torchx_state import torchx_state

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from torchx_cubicml.tuner import Prepared, Step


class Silence(SchedulerQuery):
    """A query of a cluster that does not answer for some time from its nth submission on.

    Args:
        cluster: the cluster.
        from_job: number of the submission, from 1.
        for_s: seconds of silence.
        accepts: whether that submission made a job.
    """

    def __init__(self, cluster: SimulatedCluster, *, from_job: int, for_s: float, accepts: bool) -> None:
        self.cluster, self.from_job, self.for_s, self.accepts = cluster, from_job, for_s, accepts
        self.jobs = JobRunner("sim", runner=runner_of(cluster))
        self.jobs._query = self
        self.until = cluster.time
        self.submitted = 0
        self._schedule, self.jobs._runner.schedule = self.jobs._runner.schedule, self.schedule

    def schedule(self, made: object) -> str:
        self.submitted += 1
        if self.submitted != self.from_job:
            return str(self._schedule(made))
        self.until = self.cluster.time + timedelta(seconds=self.for_s)
        if self.accepts:
            self._schedule(made)
        raise StatusError("connection reset by peer")

    @property
    def is_silent(self) -> bool:
        return self.cluster.time < self.until

    def look(self, app_id: str) -> JobState:
        return no_answer("no route") if self.is_silent else torchx_state(self.jobs._torchx, app_id)

    def find(self, launch_ids: Collection[str]) -> Mapping[str, str] | None:
        made = {job.contract.launch_id: name for name, job in self.cluster.jobs.items()}
        return None if self.is_silent else {name: made[name] for name in launch_ids if name in made}

    def cancel(self, app_id: str) -> bool:
        if not self.is_silent:
            self.cluster.cancel(app_id)
        return not self.is_silent


def go(prepared: Prepared, silence: Silence) -> list[Step]:
    few = replace(prepared, request=replace(prepared.request, budget=Budget(launches=12), parallel=4))
    return list(tune(few, jobs=silence.jobs, clock=silence.cluster, advisor=Draws()))


@pytest.mark.parametrize("for_s", [1.0, 300.0])
@pytest.mark.parametrize("accepts", [True, False], ids=["job", "no job"])
def test_each_launch_has_one_job_or_none(prepared: Prepared, accepts: bool, for_s: float) -> None:
    cluster = SimulatedCluster(seed=1, fates=("done",))
    steps = go(prepared, Silence(cluster, from_job=6, for_s=for_s, accepts=accepts))
    assert cluster.launched_twice() == []
    assert cluster.in_flight() == 0
    trials = {trial.launch_id: trial for trial in stored(prepared)}
    refused = [trial.reason for trial in trials.values() if trial.state is State.INFRASTRUCTURE]
    assert refused == ([] if accepts else ["sim rejected the job: StatusError: connection reset by peer"])
    assert {job.contract.launch_id for job in cluster.jobs.values()} == {
        name for name, trial in trials.items() if trial.state is State.COMPLETED
    }
    told = [step.text for step in steps if isinstance(step, Notice) and "may have a job" in step.text]
    assert told == [
        "launch 6 may have a job: local_cwd does not tell (connection reset by peer); no launch follows until it does"
    ]
    assert sum(isinstance(step, Ended) for step in steps) == len(trials)


def test_a_scheduler_that_never_answers_ends_the_tune(prepared: Prepared) -> None:
    cluster = SimulatedCluster(seed=1, fates=("done",))
    silence = Silence(cluster, from_job=1, for_s=1e6, accepts=False)
    with pytest.raises(
        LaunchError, match=r"does not answer, and may have the job of launch 1: connection reset"
    ) as told:
        go(prepared, silence)
    assert told.value.__notes__ == ["local_cwd did not end launch 1, which may run on"]
    (trial,) = stored(prepared)
    assert trial.state is State.PLANNED


@pytest.mark.parametrize("is_silent", [False, True], ids=["answers", "silent"])
def test_an_interruption_names_the_launches_that_may_run_on(prepared: Prepared, is_silent: bool) -> None:
    cluster = SimulatedCluster(seed=1, fates=("done",))
    silence = Silence(cluster, from_job=0, for_s=0, accepts=True)
    few = replace(prepared, request=replace(prepared.request, budget=Budget(launches=12), parallel=4))
    steps = tune(few, jobs=silence.jobs, clock=cluster, advisor=Draws())
    while cluster.in_flight() < 2:
        next(steps)
    silence.until = cluster.time + timedelta(hours=1) if is_silent else cluster.time
    running = cluster.in_flight()
    with pytest.raises(KeyboardInterrupt) as raised:  # Ctrl-C reaches the display
        steps.throw(KeyboardInterrupt())
    if is_silent:
        assert raised.value.__notes__ == ["local_cwd did not end launches 1, 2, which may run on"]
    assert cluster.in_flight() == (running if is_silent else 0)
    silence.until = cluster.time
    list(tune(few, jobs=silence.jobs, clock=cluster, advisor=Draws()))
    assert (cluster.launched_twice(), cluster.in_flight()) == ([], 0)
