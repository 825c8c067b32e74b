"""Tunes of many jobs on a simulated cluster that breaks in every way, in seconds."""

from __future__ import annotations

import json
import os
import random
import time
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

import pytest

from tests.tune.cluster import Killed, SimulatedCluster, runner_of, speed, usual_measurement
from tests.tune.draws import Draws, go, stored
from torchx_cubicml.records.trial import State
from torchx_cubicml.tuner import Begun, Budget, Ended, Launching, Prepared, TuneResult, Waiting, tune
from torchx_cubicml.tuner.journal import Journal, NoteKind
from torchx_cubicml.tuner.proposer import FinalReport
from torchx_cubicml.tuner.scheduler.jobs import JobRunner

if TYPE_CHECKING:
    from torchx_cubicml.advisor import Suggestion
    from torchx_cubicml.records.contract import Contract
    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.records.values import Config
    from torchx_cubicml.tuner.proposer import Snapshot


JOBS = int(os.environ.get("CUBICML_JOBS", "100"))  # `make test-slurm` runs a thousand


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


def test_a_tune_on_a_crowded_host_is_surer_by_repeats(prepared: Prepared) -> None:
    """The load was the same beside each launch, and repeats were equal, though each is known within a factor of 5."""
    prepared = replace(prepared, request=replace(prepared.request, budget=Budget(launches=12)))
    busy = {"world_size": 2, "host_cpus": 2, "other_busy_cpus": 1.7, "idle_cpus": 0.0}
    steps = go(prepared, SimulatedCluster(seed=1, fates=("done",), observed=busy))
    (result,) = [step for step in steps if isinstance(step, TuneResult)]
    assert result.comparison is not None
    assert result.comparison.faster is not None
    assert result.comparison.faster > 0.9
    assert min(result.comparison.baseline.uncertainties) > 0.9
    (note,) = [note for note in Journal(prepared.store_url).read() if note.kind is NoteKind.FINISHED]
    assert ('"unconfirmed": null' in json.dumps(dict(note.facts))) is result.claims_gain


@pytest.mark.parametrize("seed", range(2))
def test_repeated_kills_lose_and_double_no_launch(prepared: Prepared, seed: int) -> None:
    prepared = replace(prepared, request=replace(prepared.request, budget=Budget(launches=50)))
    cluster = SimulatedCluster(seed=seed)
    rng = random.Random(seed)
    steps: list[object] = []
    for _ in range(25):
        cluster.kill_in = rng.randint(1, 1000)
        with suppress(Killed):
            steps = go(prepared, cluster)
            break
    else:
        cluster.kill_in = 0
        steps = go(prepared, cluster)
    assert isinstance(steps[-1], TuneResult)
    assert steps[-1].launches == 50
    check(cluster, [trial for trial in stored(prepared) if trial.state is not State.STOPPED_EARLY], 50)


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
    # Nothing faster is found, and one launch is too few to find and confirm it.
    assert [result.launches for result in results] == [19, 19]
    assert results[0].tune_id != results[1].tune_id
    check(cluster, stored(prepared), 38)


def test_the_image_of_the_workspace_is_built_once(prepared: Prepared) -> None:
    request = replace(prepared.request, budget=Budget(launches=5), workspace="file:///somewhere")
    cluster = SimulatedCluster(seed=5, fates=("done",))
    runner = runner_of(cluster, contained=True)
    jobs = JobRunner("sim", runner=runner, workspace=request.workspace)
    list(tune(replace(prepared, request=request), jobs=jobs, clock=cluster, advisor=Draws()))
    assert cluster.builds == 1
    assert len(cluster.jobs) > 1
    assert cluster.images == ["built"] * len(cluster.jobs)


def test_a_hopeless_launch_is_ended_early_with_its_measurement(prepared: Prepared) -> None:
    from torchx_cubicml.records.measurement import Measurement
    from torchx_cubicml.records.trial import Trial
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
    assert "60% below the fastest seen" in early_stop_reason(running(40.0, 0.05), best, objective="samples_per_second")
    assert early_stop_reason(running(95.0, 0.05), best, objective="samples_per_second") == ""
    assert early_stop_reason(running(40.0, 0.05, doubt=0.4), best, objective="samples_per_second") == ""
    assert early_stop_reason(running(70.0, 0.9), best, objective="samples_per_second") == ""
    assert early_stop_reason(running(70.0, 0.05), [], objective="samples_per_second") == ""


def test_only_slow_searches_are_ended_early(prepared: Prepared) -> None:
    """The user's own config is slow too, but what it measures is needed."""
    asked = replace(prepared, request=replace(prepared.request, budget=Budget(launches=30), parallel=3))
    cluster = SimulatedCluster(
        seed=4,
        fates=("done",),
        run_s=(60.0, 200.0),
        reports_after_s=10.0,
        measure=lambda config: replace(usual_measurement(config), steps_counted=20, relative_error=0.001),
    )
    steps = go(asked, cluster)
    purposes = {step.number: step.purpose for step in steps if isinstance(step, Launching)}
    trials = {trial.launch_id: trial for trial in stored(prepared)}
    early = []
    for job in cluster.jobs.values():
        trial = trials[job.contract.launch_id]
        done = [speed(other.contract.config) for other in cluster.jobs.values() if other.ends < job.ends]
        if job.cancelled:
            early.append(purposes[int(trial.launch_id[-4:])])
            assert trial.state is State.STOPPED_EARLY
            assert trial.reason.startswith("ended early: ")
            assert trial.measurement is not None
            assert speed(trial.config) < 0.91 * max(done)
            assert (job.ends - job.begins).total_seconds() >= 10.0
        else:
            assert trial.state is State.COMPLETED
    assert set(early) == {"search"}
    assert len(early) > 10
    repeated = [
        trial.state for trial in trials.values() if trial.config == asked.current and trial.measurement is not None
    ]
    assert repeated == [State.COMPLETED] * asked.request.repeats_made


@pytest.mark.parametrize(("world_size", "devices"), [(None, 1), (2, 2)])
def test_the_result_counts_each_device(prepared: Prepared, world_size: int | None, devices: int) -> None:
    asked = replace(prepared, request=replace(prepared.request, budget=Budget(launches=8), parallel=2))
    launch = replace(asked.component.launch, world_size=world_size)
    cluster = SimulatedCluster(seed=4, fates=("done",))
    steps = tune(
        replace(asked, component=replace(asked.component, launch=launch)),
        jobs=JobRunner("sim", runner=runner_of(cluster)),
        clock=cluster,
        advisor=Confident(),
    )
    *_, result = steps
    assert isinstance(result, TuneResult)
    assert result.confidence == 0.75
    ran_s = sum((job.ends - job.begins).total_seconds() for job in cluster.jobs.values())
    assert result.device_hours * 3600 == pytest.approx(devices * ran_s, abs=devices * 8 * 10.0)
    assert result.best is not None
    assert result.command[:3] == (asked.request.component, *asked.request.component_args[:2])
    words = list(result.command)
    for flag, name in (("--batch_size", "micro_batch_size"), ("--width", "width")):
        assert words[words.index(flag) + 1] == str(result.best.config[name])


class Confident(Draws):
    def account(self, snapshot: Snapshot, winner: Config) -> FinalReport:
        best = self.best_known(snapshot)
        assert best is not None
        assert winner == best.config
        return FinalReport(confidence=0.75)


def test_a_heartbeat_is_written_each_minute(prepared: Prepared) -> None:
    asked = replace(prepared, request=replace(prepared.request, budget=Budget(launches=8), parallel=2))
    cluster = SimulatedCluster(seed=4, fates=("done",))
    begin = cluster.time
    go(asked, cluster)
    notes = Journal(prepared.store_url).read()
    beats = [begin, *(datetime.fromisoformat(note.time) for note in notes if note.kind is NoteKind.ALIVE)]
    gaps = [(after - before).total_seconds() for before, after in pairwise(beats)]
    assert len(gaps) >= 4
    assert all(60.0 <= gap <= 72.0 for gap in gaps)


def test_after_a_rejection_the_next_launch_waits(prepared: Prepared, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = SimulatedCluster(seed=4, fates=("done",))
    submit, asked_at = SimulatedCluster.submit, []

    def some(self: SimulatedCluster, contract: Contract, devices: str | None) -> str:
        asked_at.append(self.time)
        if len(asked_at) in {3, 4}:
            raise RuntimeError("no quota")
        return submit(self, contract, devices)

    monkeypatch.setattr(SimulatedCluster, "submit", some)
    asked = replace(prepared, request=replace(prepared.request, budget=Budget(launches=8), parallel=2))
    steps = go(asked, cluster)
    waits = [(after - before).total_seconds() for before, after in pairwise(asked_at)]
    assert waits[0] == 0.0
    assert waits[2:4] == [10.0, 10.0]
    rejected = [step.trial for step in steps if isinstance(step, Ended) and step.trial.state is State.INFRASTRUCTURE]
    assert ["no quota" in trial.reason for trial in rejected] == [True, True]
    assert isinstance(steps[-1], TuneResult)
    assert steps[-1].launches == 8


def test_the_end_of_a_launch_is_told_with_its_numbers(prepared: Prepared) -> None:
    class Promises(Draws):
        def suggest(self, snapshot: Snapshot) -> list[Suggestion]:
            return [replace(each, throughput=1234.0, low=1000.0, high=1500.0) for each in super().suggest(snapshot)]

    asked = replace(prepared, request=replace(prepared.request, budget=Budget(launches=12), parallel=2))
    steps = go(asked, SimulatedCluster(seed=4, fates=("done", "done", "oom")), Promises())
    purposes = {step.number: step.purpose for step in steps if isinstance(step, Launching)}
    best: float | None = None
    own: list[float] = []
    for step in steps:
        if isinstance(step, Ended):
            done = step.trial.state is State.COMPLETED
            own += [speed(step.trial.config)] if done and step.trial.config == asked.current else []
            assert step.own == (median(own) if own else None)
            assert step.purpose == purposes[step.number]
            assert step.throughput == (speed(step.trial.config) if done else None)
            assert step.expected == (1234.0 if purposes[step.number] == "search" else None)
            best = max(filter(None, (best, step.throughput)), default=None)
        elif isinstance(step, Waiting):
            assert step.best == best
    assert best is not None
    assert own
    assert list(purposes) == list(range(1, 13))
