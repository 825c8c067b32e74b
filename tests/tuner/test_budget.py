"""What a tune may spend and when it has found enough, on the simulated cluster."""

from __future__ import annotations

import random
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from tests.tune.cluster import Job, Killed, SimulatedCluster, speed
from tests.tune.draws import Draws, go, stored
from torchx_cubicml.errors import LaunchError
from torchx_cubicml.records.trial import State
from torchx_cubicml.tuner import Budget, Prepared, TuneResult, Waiting
from torchx_cubicml.tuner.budget import Spent
from torchx_cubicml.tuner.lease import ALIVE_EVERY_S

if TYPE_CHECKING:
    from torchx_cubicml.advisor import Suggestion
    from torchx_cubicml.tuner import Step
    from torchx_cubicml.tuner.proposer import Snapshot

SEEN_LATE_S = 10.0  # by which the end of a simulated job is reported, and seen


def asking(prepared: Prepared, **changes: object) -> Prepared:
    return replace(prepared, request=replace(prepared.request, **changes))


def ran_s(job: Job) -> float:
    return max(0.0, (job.ends - job.begins).total_seconds())


def span_s(cluster: SimulatedCluster) -> float:
    first = min(job.submitted for job in cluster.jobs.values())
    return (max(job.ends for job in cluster.jobs.values()) - first).total_seconds()


def through_kills(prepared: Prepared, cluster: SimulatedCluster, *, kills: int) -> list[Step]:
    """Return the steps of the last of several processes, of which all others were killed at random calls."""
    rng = random.Random(kills)
    for _ in range(kills):
        cluster.kill_in = rng.randint(100, 1500)
        with suppress(Killed):
            return go(prepared, cluster)
    cluster.kill_in = 0
    return go(prepared, cluster)


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        ("200 gpu-hours", Budget(device_hours=200)),
        ("1 gpu-hour", Budget(device_hours=1)),
        ("0.5 device-hours", Budget(device_hours=0.5)),
        ("6 hours", Budget(hours=6)),
        ("1.5h", Budget(hours=1.5)),
        ("40 launches", Budget(launches=40)),
        ("40", Budget(launches=40)),
    ],
)
def test_a_budget_is_read(text: str, budget: Budget) -> None:
    assert Budget.parse(text) == budget
    assert Budget.parse(str(budget)) == budget


@pytest.mark.parametrize(
    "text", ["", "0 hours", "-1 hours", "2.5 launches", "6 days", "1e9 hours", "nan hours", "hours"]
)
def test_an_illegal_budget_is_refused(text: str) -> None:
    with pytest.raises(LaunchError, match="gpu-hours"):
        Budget.parse(text)


def test_launches_at_a_time_share_the_hours_that_are_left() -> None:
    spent = Spent(hours=5.0, launch_hours=0.5)
    assert Budget(hours=6).launches_left(spent) == 2
    assert Budget(hours=6).launches_left(spent, parallel=4) == 8


@pytest.mark.parametrize("parallel", [1, 4])
@pytest.mark.parametrize("kills", [0, 6], ids=["one-process", "killed"])
def test_device_hours_are_kept(prepared: Prepared, parallel: int, kills: int) -> None:
    asked = asking(prepared, budget=Budget(device_hours=0.25), parallel=parallel)
    cluster = SimulatedCluster(seed=parallel, fates=("done",))
    steps = through_kills(asked, cluster, kills=kills)
    spent_s = sum(map(ran_s, cluster.jobs.values()))
    assert spent_s <= 900 + parallel * SEEN_LATE_S
    # What is left is less than a launch, or less than the three that find a winner and confirm it.
    assert spent_s >= 900 - 3 * 200 - parallel * SEEN_LATE_S
    assert cluster.launched_twice() == []
    assert cluster.in_flight() == 0
    assert isinstance(steps[-1], TuneResult)
    # What the result tells was counted by looking; each job's own clock tells the same but for the time of a look.
    assert steps[-1].device_hours * 3600 == pytest.approx(spent_s, abs=len(cluster.jobs) * SEEN_LATE_S)
    ends = {trial.state for trial in stored(prepared) if trial.started_at}
    assert ends <= {State.COMPLETED, State.STOPPED_EARLY}


@pytest.mark.parametrize("parallel", [1, 4])
@pytest.mark.parametrize("kills", [0, 6], ids=["one-process", "killed"])
def test_hours_are_kept(prepared: Prepared, parallel: int, kills: int) -> None:
    asked = asking(prepared, budget=Budget(hours=0.25), parallel=parallel)
    cluster = SimulatedCluster(seed=parallel, fates=("done",))
    steps = through_kills(asked, cluster, kills=kills)
    # How long a process lived after its last note is not known.
    assert 900 - 3 * 200 - SEEN_LATE_S <= span_s(cluster) <= 900 + SEEN_LATE_S + kills * ALIVE_EVERY_S
    assert cluster.in_flight() == 0
    assert cluster.launched_twice() == []
    assert isinstance(steps[-1], TuneResult)
    assert len(cluster.jobs) > 900 / 200 * parallel / 2


def test_a_spent_budget_of_hours_launches_no_more(prepared: Prepared) -> None:
    asked = asking(prepared, budget=Budget(hours=0.1), parallel=2)
    cluster = SimulatedCluster(seed=2, fates=("done",), run_s=(1000.0, 1000.0))
    steps = go(asked, cluster)
    assert len(cluster.jobs) == 2
    assert {trial.state for trial in stored(prepared)} == {State.STOPPED_EARLY}
    assert {trial.reason for trial in stored(prepared)} == {"the budget of 0.1 hours was spent"}
    assert isinstance(steps[-1], TuneResult)
    assert steps[-1].comparison is None


def test_the_remaining_budget_is_reported(prepared: Prepared) -> None:
    asked = asking(prepared, budget=Budget(device_hours=0.2), parallel=2)
    steps = go(asked, SimulatedCluster(seed=1, fates=("done",)))
    left = [float(step.budget_left.split()[0]) for step in steps if isinstance(step, Waiting)]
    assert left[0] == 0.2
    assert left[-1] < 0.06


def test_rounds_wait_for_all_in_flight(prepared: Prepared) -> None:
    asked = asking(prepared, budget=Budget(launches=20), parallel=4, rounds=True)
    cluster = SimulatedCluster(seed=5, fates=("done", "done", "oom"))
    go(asked, cluster)
    jobs = sorted(cluster.jobs.values(), key=lambda job: job.submitted)
    rounds = Counter(job.submitted for job in jobs)
    # The last launches measure the winner again, so they wait until it is known.
    assert list(rounds.values())[:3] == [4] * 3
    assert max(rounds.values()) == 4
    for snapshot in rounds:
        assert all(job.ends <= snapshot for job in jobs if job.submitted < snapshot)


def test_without_rounds_a_slot_is_filled_as_it_frees(prepared: Prepared) -> None:
    asked = asking(prepared, budget=Budget(launches=20), parallel=4)
    cluster = SimulatedCluster(seed=5, fates=("done", "done", "oom"))
    go(asked, cluster)
    assert max(Counter(job.submitted for job in cluster.jobs.values()).values()) == 4
    assert len({job.submitted for job in cluster.jobs.values()}) > 10


@dataclass(frozen=True, slots=True)
class Gains(Draws):
    """Knows what the best is worth, and what another launch promises: ``promise`` over the launches made."""

    promise: float | None = None

    def best_known(self, snapshot: Snapshot) -> Suggestion | None:
        best = Draws.best_known(self, snapshot)
        return None if best is None else replace(best, gain=speed(best.config) / speed(snapshot.current))

    def expected_gain(self, snapshot: Snapshot) -> float | None:
        return None if self.promise is None else self.promise / len(snapshot.trials)


@pytest.mark.parametrize("kills", [0, 4], ids=["one-process", "killed"])
def test_a_confirmed_target_ends_the_tune(prepared: Prepared, kills: int) -> None:
    own = speed(prepared.current)
    target = 1.0 + 0.6 * ((100.0 + 2 * 96) / own - 1.0)  # of what there is to be had
    asked = asking(prepared, budget=Budget(launches=400), parallel=2, target_gain=target, repeats=2)
    cluster = SimulatedCluster(seed=6, fates=("done",))
    steps: list[Step] = []
    rng = random.Random(1)
    for _ in range(kills):
        cluster.kill_in = rng.randint(50, 300)
        with suppress(Killed):
            steps = go(asked, cluster, Gains())
            break
    else:
        cluster.kill_in = 0
        steps = go(asked, cluster, Gains())
    result = steps[-1]
    assert isinstance(result, TuneResult)
    assert result.launches < 400
    assert result.comparison is not None
    assert result.comparison.gain >= target
    assert result.comparison.claims_gain
    assert len(result.comparison.best.throughputs) == 2


def test_a_target_out_of_reach_spends_the_budget(prepared: Prepared) -> None:
    asked = asking(prepared, budget=Budget(launches=30), parallel=2, target_gain=50.0)
    result = go(asked, SimulatedCluster(seed=6, fates=("done",)), Gains())[-1]
    assert isinstance(result, TuneResult)
    assert result.launches == 30


@pytest.mark.parametrize(("promise", "fewest", "most"), [(0.5, 40, 60), (0.1, 8, 20)], ids=["much", "little"])
def test_a_tune_stops_where_launches_promise_little(prepared: Prepared, promise: float, fewest: int, most: int) -> None:
    asked = asking(prepared, budget=Budget(launches=400), parallel=2, stop_under=0.01)
    cluster = SimulatedCluster(seed=7, fates=("done",))
    result = go(asked, cluster, Gains(promise=promise))[-1]
    assert isinstance(result, TuneResult)
    assert fewest <= result.launches <= most
    assert result.comparison is not None  # the winner and the own config are measured again before it ends


@pytest.mark.parametrize("waits_s", [1e6, 3000.0], ids=["waits", "waits-too-long"])
def test_the_queue_time_of_a_requeued_job_is_not_run_time(prepared: Prepared, waits_s: float) -> None:
    asked = asking(prepared, budget=Budget(launches=6), parallel=2, trial_timeout_s=600.0, queue_timeout_s=waits_s)
    cluster = SimulatedCluster(seed=3, fates=("done",), fates_of={2: "requeued"})
    result = go(asked, cluster)[-1]
    assert isinstance(result, TuneResult)
    job = cluster.jobs["job-2"]
    assert job.cut_off is not None
    assert job.begins - job.cut_off == timedelta(hours=2)
    requeued = {trial.launch_id: trial for trial in stored(prepared)}[job.contract.launch_id]
    if waits_s > 7200:
        assert requeued.state is State.COMPLETED
    else:
        assert (requeued.state, requeued.reason) == (
            State.INFRASTRUCTURE,
            "cancelled after 3000 s in the queue (--queue-timeout)",
        )
    ran = sum(map(ran_s, cluster.jobs.values())) + job.ran_before_s
    assert abs(3600 * result.device_hours - ran) <= (len(cluster.jobs) + 1) * SEEN_LATE_S


@pytest.mark.parametrize("kills", [0, 6], ids=["one-process", "killed"])
def test_a_job_past_its_deadline_is_cancelled(prepared: Prepared, kills: int) -> None:
    asked = asking(prepared, budget=Budget(launches=60), parallel=4, trial_timeout_s=150.0)
    cluster = SimulatedCluster(seed=3, fates=("done",))
    through_kills(asked, cluster, kills=kills)
    assert all(ran_s(job) <= 150 + SEEN_LATE_S for job in cluster.jobs.values())
    by_launch = {trial.launch_id: trial for trial in stored(prepared)}
    for job in cluster.jobs.values():
        trial = by_launch[job.contract.launch_id]
        assert trial.state is (State.TIMEOUT if job.cancelled else State.COMPLETED)
        if job.cancelled:
            assert trial.reason == "cancelled after running for 150 s (--trial-timeout)"
    assert 0 < sum(job.cancelled for job in cluster.jobs.values()) < 60


@pytest.mark.parametrize(
    ("budget", "spent", "left"),
    [
        (Budget(launches=5), Spent(launches=3), 2),
        (Budget(launches=5), Spent(launches=7), 0),
        (Budget(device_hours=10), Spent(device_hours=4, launch_device_hours=2), 3),
        (Budget(device_hours=10), Spent(device_hours=5, launch_device_hours=2), 2),  # the third would end too late
        (Budget(device_hours=10), Spent(device_hours=4), 10_000),  # nobody knows yet how long one takes
        (Budget(device_hours=10), Spent(device_hours=9, launch_device_hours=1e-9), 10_000),
        (Budget(device_hours=10), Spent(device_hours=10), 0),
        (Budget(hours=1), Spent(hours=0.5, launch_hours=0.25, device_hours=99), 2),
        (Budget(hours=1), Spent(hours=2), 0),
    ],
)
def test_launches_that_a_budget_allows(budget: Budget, spent: Spent, left: int) -> None:
    assert budget.launches_left(spent) == left


@pytest.mark.parametrize(
    ("budget", "spent", "over"),
    [
        (Budget(launches=5), Spent(launches=9, hours=9, used_device_hours=9), False),
        (Budget(device_hours=2), Spent(device_hours=3, used_device_hours=1.9), False),  # in flight, but not yet run
        (Budget(device_hours=2), Spent(used_device_hours=2), True),
        (Budget(hours=2), Spent(hours=1.9), False),
        (Budget(hours=2), Spent(hours=2), True),
    ],
)
def test_a_budget_of_time_is_over_when_it_is_used(budget: Budget, spent: Spent, over: bool) -> None:
    assert budget.is_exhausted(spent) is over


@pytest.mark.parametrize(
    ("budget", "words"),
    [
        (Budget(launches=5), "3 of 5 launches left"),
        (Budget(device_hours=2.5), "1.50 of 2.5 gpu-hours left"),
        (Budget(hours=4), "2.75 of 4 hours left"),
    ],
)
def test_the_rest_is_told_in_the_unit_of_the_budget(budget: Budget, words: str) -> None:
    assert budget.describe_remaining(Spent(launches=2, device_hours=1, hours=1.25)) == words
    none = budget.describe_remaining(Spent(launches=99, device_hours=99, hours=99))
    assert float(none.split()[0]) == 0.0


@pytest.mark.parametrize(
    "limits", [{}, {"launches": 1, "hours": 1}, {"launches": 0}, {"hours": -1}, {"hours": float("inf")}], ids=str
)
def test_a_budget_limits_one_resource_to_more_than_nothing(limits: dict[str, float]) -> None:
    with pytest.raises(LaunchError, match="give one of launches"):
        Budget(**limits)
