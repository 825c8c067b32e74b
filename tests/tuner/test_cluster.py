"""Tunes of many jobs on a simulated cluster that breaks in every way, in seconds."""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from tests.tune.cluster import Killed, SimulatedCluster, runner_of
from tests.tune.draws import Draws, go, stored
from torchx_cubicml.records.trial import State
from torchx_cubicml.tuner import Begun, Budget, Launching, Prepared, TuneResult, Waiting, tune
from torchx_cubicml.tuner.scheduler.jobs import JobRunner

if TYPE_CHECKING:
    from torchx_cubicml.records.trial import Trial


JOBS = int(os.environ.get("CUBICML_JOBS", "150"))  # `make test-slurm` runs a thousand


def check(cluster: SimulatedCluster, trials: list[Trial], launches: int) -> None:
    assert cluster.launched_twice() == []
    assert len(cluster.jobs) == launches
    assert cluster.in_flight() == 0
    by_launch = Counter(trial.launch_id for trial in trials)
    assert set(by_launch.values()) == {1}
    assert all(trial.state.ended for trial in trials)
    seen = {trial.launch_id: trial for trial in trials}
    wanted = {
        "done": {State.COMPLETED},
        "raises": {State.COMPLETED},
        "oom": {State.OUT_OF_MEMORY},
        "preempted": {State.INFRASTRUCTURE},
        "stuck": {State.INFRASTRUCTURE},
        "lost": {State.INFRASTRUCTURE},
        "silent": {State.UNKNOWN},
        "node": {State.UNKNOWN},
    }
    for job in cluster.jobs.values():
        assert seen[job.contract.launch_id].state in wanted[job.fate], (job.fate, seen[job.contract.launch_id])


def test_many_jobs_through_every_fault(prepared: Prepared) -> None:
    prepared = replace(prepared, request=replace(prepared.request, budget=Budget(launches=JOBS)))
    cluster = SimulatedCluster(seed=1)
    began = time.perf_counter()
    steps = go(prepared, cluster)
    print(f"{time.perf_counter() - began:.1f} s")
    (result,) = [step for step in steps if isinstance(step, TuneResult)]
    assert result.launches == JOBS
    assert max(len(step.in_flight) for step in steps if isinstance(step, Waiting)) == 16
    check(cluster, stored(prepared), JOBS)


@pytest.mark.parametrize("seed", range(2))
def test_repeated_kills_lose_and_double_no_launch(prepared: Prepared, seed: int) -> None:
    prepared = replace(prepared, request=replace(prepared.request, budget=Budget(launches=80)))
    cluster = SimulatedCluster(seed=seed)
    rng = random.Random(seed)
    steps: list[object] = []
    for _ in range(25):
        cluster.kill_in = rng.randint(1, 1500)
        with suppress(Killed):
            steps = go(prepared, cluster)
            break
    else:
        cluster.kill_in = 0
        steps = go(prepared, cluster)
    assert isinstance(steps[-1], TuneResult)
    assert steps[-1].launches == 80
    check(cluster, [trial for trial in stored(prepared) if trial.state is not State.STOPPED_EARLY], 80)


def test_a_job_queued_for_days_is_not_launched_again(prepared: Prepared) -> None:
    asked = replace(prepared.request, budget=Budget(launches=10), parallel=2, queue_timeout_s=1e6, trial_timeout_s=1e6)
    cluster = SimulatedCluster(seed=2, fates=("done",), run_s=(17_000.0, 18_000.0))
    purposes = []
    for step in tune(
        replace(prepared, request=asked),
        jobs=JobRunner("sim", runner=runner_of(cluster)),
        clock=cluster,
        advisor=Draws(),
    ):
        if isinstance(step, Launching):
            purposes.append(step.purpose)
            if len(cluster.jobs) == 1:
                first = cluster.jobs["job-1"]
                first.begins += timedelta(hours=40)
                first.ends += timedelta(hours=40)
    assert purposes.count("baseline") == 1


@pytest.mark.parametrize("requeued", ["job-1", "job-3"], ids=["own", "search"])
def test_a_requeued_job_is_not_launched_again(prepared: Prepared, requeued: str) -> None:
    asked = replace(prepared.request, budget=Budget(launches=8), parallel=2, queue_timeout_s=1e6, trial_timeout_s=1e6)
    cluster = SimulatedCluster(seed=2, fates=("done",))
    made = []
    for step in tune(
        replace(prepared, request=asked),
        jobs=JobRunner("sim", runner=runner_of(cluster)),
        clock=cluster,
        advisor=Draws(),
    ):
        if requeued in cluster.jobs:
            cluster.jobs[requeued].fate = "requeued"
        if isinstance(step, Launching) and requeued in cluster.open:
            made.append(step.purpose)
    job = cluster.jobs[requeued]
    assert job.cut_off is not None
    assert len(made) > 1
    assert not {"baseline", "again"}.intersection(made)
    trials_by_launch = {trial.launch_id: trial for trial in stored(prepared)}
    assert trials_by_launch[job.contract.launch_id].state is State.COMPLETED


def test_an_unreported_result_is_reported_later(prepared: Prepared) -> None:
    asked = replace(prepared, request=replace(prepared.request, budget=Budget(launches=12), parallel=4))
    cluster = SimulatedCluster(seed=2, fates=("done",))
    steps = tune(asked, jobs=JobRunner("sim", runner=runner_of(cluster)), clock=cluster, advisor=Draws())
    first = next(step for step in steps if isinstance(step, TuneResult))
    cluster.kill_in = 1
    with pytest.raises(Killed):
        next(steps)
    again = go(asked, cluster)
    assert again[-1] == first
    assert len(cluster.jobs) == 12
    begun = go(asked, cluster)[0]  # what was reported is over
    assert isinstance(begun, Begun)
    assert not begun.resumed


def test_a_failed_report_of_a_result_is_repeated(prepared: Prepared) -> None:
    asked = replace(prepared, request=replace(prepared.request, budget=Budget(launches=12), parallel=4))
    cluster = SimulatedCluster(seed=2, fates=("done",))
    steps = tune(asked, jobs=JobRunner("sim", runner=runner_of(cluster)), clock=cluster, advisor=Draws())
    first = next(step for step in steps if isinstance(step, TuneResult))
    steps.close()
    assert go(asked, cluster)[-1] == first
    assert len(cluster.jobs) == 12


def test_four_stay_in_flight(prepared: Prepared) -> None:
    prepared = replace(prepared, request=replace(prepared.request, budget=Budget(launches=60), parallel=4))
    cluster = SimulatedCluster(seed=3, fates=("done",), late_s=0.0)
    go(prepared, cluster)
    spans = [(job.submitted, job.ends) for job in cluster.jobs.values()]
    last = max(start for start, _ in spans)  # from then on nothing is left to launch
    first = min(start for start, _ in spans)
    busy = sum((min(end, last) - start).total_seconds() for start, end in spans)
    assert busy / (4 * (last - first).total_seconds()) > 0.95


def test_two_tunes_of_one_command_do_not_disturb_each_other(prepared: Prepared) -> None:
    prepared = replace(prepared, request=replace(prepared.request, budget=Budget(launches=20), parallel=4))
    cluster = SimulatedCluster(seed=4, fates=("done", "oom"))
    both = [
        tune(prepared, jobs=JobRunner("sim", runner=runner_of(cluster)), clock=cluster, advisor=Draws())
        for _ in range(2)
    ]
    results = []
    while both:
        for one in list(both):
            step = next(one, None)
            if step is None:
                both.remove(one)
            elif isinstance(step, TuneResult):
                results.append(step)
    assert [result.launches for result in results] == [20, 20]
    assert results[0].tune_id != results[1].tune_id
    check(cluster, stored(prepared), 40)


def test_the_image_of_the_workspace_is_built_once(prepared: Prepared) -> None:
    request = replace(prepared.request, budget=Budget(launches=5), workspace="file:///somewhere")
    cluster = SimulatedCluster(seed=5, fates=("done",))
    runner = runner_of(cluster, contained=True)
    jobs = JobRunner("sim", runner=runner, workspace=request.workspace)
    list(tune(replace(prepared, request=request), jobs=jobs, clock=cluster, advisor=Draws()))
    assert cluster.builds == 1
    assert cluster.images == ["built"] * 5


def test_a_hopeless_launch_is_ended_early_with_its_measurement(prepared: Prepared) -> None:
    from torchx_cubicml.records.trial import Measurement, Trial
    from torchx_cubicml.tuner.stopping import early_stop_reason

    def running(speed: float, spread: float, doubt: float | None = None) -> Trial:
        measured = Measurement(
            samples_per_second=speed,
            steps_counted=50,
            step_time_s=(1 - spread, 1.0, 1 + spread),
            relative_error=doubt,
        )
        return Trial(trial_id="t", workload={}, config={"a": 1}, state=State.RUNNING, measurement=measured)

    best = [Trial.completed(workload={}, config={"a": 2}, samples_per_second=100.0)]
    assert "60% below the best" in early_stop_reason(running(40.0, 0.05), best, objective="samples_per_second")
    assert early_stop_reason(running(95.0, 0.05), best, objective="samples_per_second") == ""
    assert early_stop_reason(running(40.0, 0.05, doubt=0.4), best, objective="samples_per_second") == ""
    assert early_stop_reason(running(70.0, 0.9), best, objective="samples_per_second") == ""
    assert early_stop_reason(running(70.0, 0.05), [], objective="samples_per_second") == ""
