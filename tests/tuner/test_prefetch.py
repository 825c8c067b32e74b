"""Slots stay filled although thinking takes time and ends are told late, on the simulated cluster."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest

from tests.tune.cluster import SimulatedCluster
from tests.tune.draws import Draws, go, stored, suggestion_of
from torchx_cubicml.predictors.features.history import config_key
from torchx_cubicml.records.measurement import Measurement
from torchx_cubicml.records.trial import State, Trial
from torchx_cubicml.tuner import Budget, Prepared, TuneRequest
from torchx_cubicml.tuner.launch_state import FinishedLaunch, PendingLaunch
from torchx_cubicml.tuner.poll_interval import poll_interval_s
from torchx_cubicml.tuner.polling import SystemClock
from torchx_cubicml.tuner.prefetch import Prefetch

if TYPE_CHECKING:
    from torchx_cubicml.advisor import Suggestion
    from torchx_cubicml.tuner.proposer import Snapshot


PARALLEL = 4


@dataclass(slots=True)
class Ponders(Draws):
    """Takes ``seconds`` of the cluster's time for each suggestion, and counts the results that it knew."""

    cluster: SimulatedCluster
    seconds: float
    known: list[tuple[int, int]]  # (launches, results of them)

    def suggest(self, snapshot: Snapshot) -> list[Suggestion]:
        self.known.append((len(snapshot.trials), sum(trial.state.ended for trial in snapshot.trials)))
        self.cluster.sleep(self.seconds)
        return Draws.suggest(self, snapshot)


def filled(prepared: Prepared, cluster: SimulatedCluster, seconds: float, **changes: object) -> tuple[float, Ponders]:
    """Return the share of slots that were filled until the last search, by what really ran."""
    asked = replace(prepared.request, budget=Budget(launches=40), parallel=PARALLEL, **changes)
    advisor = Ponders(cluster=cluster, seconds=seconds, known=[])
    go(replace(prepared, request=asked), cluster, advisor)
    measured = Counter(config_key(trial.config) for trial in stored(prepared) if trial.measurement is not None)
    assert max(measured.values()) <= 1 + asked.repeats_made
    assert cluster.launched_twice() == []
    spans = [(job.submitted, job.ends) for job in cluster.jobs.values()]
    # The last launches measure the winner again, which waits until it is known.
    starts = sorted(start for start, _ in spans)
    first, last = starts[PARALLEL - 1], starts[-1 - 2 * asked.repeats_made]
    under_way = [(max(start, first), min(end, last)) for start, end in spans if end > first and start < last]
    busy = sum((end - start).total_seconds() for start, end in under_way)
    return busy / (PARALLEL * (last - first).total_seconds()), advisor


@pytest.mark.parametrize(("seconds", "late_s"), [(0.0, 0.0), (5.0, 0.0), (0.0, 3.0), (3.0, 2.0)])
def test_slots_stay_filled(prepared: Prepared, seconds: float, late_s: float) -> None:
    cluster = SimulatedCluster(seed=3, fates=("done",), late_s=late_s)
    assert filled(prepared, cluster, seconds)[0] > 0.95


def test_no_more_are_in_flight_than_were_asked_for(prepared: Prepared) -> None:
    cluster = SimulatedCluster(seed=3, fates=("done", "oom"), late_s=1.0)
    filled(prepared, cluster, 5.0)
    jobs = cluster.jobs.values()
    assert max(sum(job.submitted <= one.submitted < job.ends for job in jobs) for one in jobs) == PARALLEL


def test_a_quick_proposal_knows_all_results(prepared: Prepared) -> None:
    _, advisor = filled(prepared, SimulatedCluster(seed=3, fates=("done",), late_s=0.0), 0.1)
    assert max(launches - results for launches, results in advisor.known) == PARALLEL - 1


def test_a_slow_proposal_knows_one_result_less(prepared: Prepared) -> None:
    _, advisor = filled(prepared, SimulatedCluster(seed=3, fates=("done",), late_s=0.0), 5.0)
    pending = Counter(launches - results for launches, results in advisor.known[2 * PARALLEL :])
    assert pending.most_common(1)[0][0] == PARALLEL
    assert max(pending) == PARALLEL


@pytest.mark.parametrize("changes", [{"target_gain": 9.0}, {"rounds": True}], ids=["target", "rounds"])
def test_a_waiting_tune_knows_all_results(prepared: Prepared, changes: dict[str, object]) -> None:
    _, advisor = filled(prepared, SimulatedCluster(seed=3, fates=("done",), late_s=0.0), 5.0, **changes)
    assert max(launches - results for launches, results in advisor.known) < PARALLEL


def test_a_failure_counts_in_the_next_proposal(prepared: Prepared) -> None:
    cluster = SimulatedCluster(seed=3, fates=("done", "oom"), late_s=0.0)
    _, advisor = filled(prepared, cluster, 5.0)
    failed = sum(trial.state is State.OUT_OF_MEMORY for trial in stored(prepared))
    fresh = sum(launches - results < PARALLEL for launches, results in advisor.known)
    assert fresh >= failed - 2 * prepared.request.repeats


@pytest.mark.parametrize(
    ("age_s", "usual_s", "least", "most"),
    [
        (0.0, None, 0.2, 0.2),
        (100.0, None, 3.0, 3.0),
        (10_000.0, None, 10.0, 10.0),
        (50.0, (100.0, 100.0), 2.0, 4.0),
        (88.0, (100.0, 100.0), 0.2, 2.0),  # to be there when it may end
        (100.0, (100.0, 100.0), 0.2, 1.0),
        (150.0, (100.0, 100.0), 4.0, 5.0),
    ],
)
def test_a_job_is_looked_at_most_often_when_it_may_end(
    age_s: float, usual_s: tuple[float, float] | None, least: float, most: float
) -> None:
    assert least <= poll_interval_s(age_s, eager=False, usual_s=usual_s) <= most
    assert poll_interval_s(age_s, eager=True, usual_s=usual_s) == 0.2


@pytest.mark.parametrize(
    ("age_s", "usual_s", "expected"),
    [
        (1.0, None, 0.2),  # never less
        (10.0, None, 0.3),
        (1e6, None, 10.0),  # never more
        (80.0, (100.0, 200.0), 4.8),  # six per cent, well before the first may end
        (89.0, (100.0, 200.0), 1.0),  # no later than nine tenths of the shortest
        (90.0, (100.0, 200.0), 0.9),  # one per cent from then on
        (219.0, (100.0, 200.0), 2.19),
        (221.0, (100.0, 200.0), 6.63),  # three per cent, a tenth after the longest
    ],
)
def test_the_poll_interval_follows_the_age_of_a_job(
    age_s: float, usual_s: tuple[float, float] | None, expected: float
) -> None:
    assert poll_interval_s(age_s, eager=False, usual_s=usual_s) == pytest.approx(expected)


HOPE = suggestion_of({"micro_batch_size": 1})


def prefetch(**changes: object) -> Prefetch:
    """Of a tune that repeats thrice and has four launches in flight; the last suggestion took ten seconds."""
    fields = {"component": "", "component_args": (), "space": "", "store": "", "scheduler": "", "repeats": 3}
    request = TuneRequest(**{**fields, "budget": Budget(hours=9), "parallel": PARALLEL, **changes})
    return Prefetch(request=request, compute_s=10.0)


@pytest.mark.parametrize(
    ("changes", "left", "usual_run_s", "pays"),
    [
        ({}, 11, 100.0, True),
        ({}, 10, 100.0, False),  # three repeats of two, and those in flight
        ({"repeats": 2}, 9, 100.0, True),
        ({"repeats": 2}, 8, 100.0, False),
        ({}, 99, 1999.0, True),
        ({}, 99, 2001.0, False),  # the four slots wait for two per cent of their time
        ({}, 99, 0.0, False),  # nobody knows how long one runs
        ({"parallel": 1}, 99, 100.0, False),
        ({"parallel": 2}, 99, 100.0, True),
        ({"rounds": True}, 99, 100.0, False),
        ({"target_gain": 2.0}, 99, 100.0, False),
        ({"stop_under": 0.1}, 99, 100.0, False),
    ],
)
def test_a_suggestion_is_prefetched_where_slots_would_wait(
    changes: dict[str, object], left: int, usual_run_s: float, pays: bool
) -> None:
    assert prefetch(**changes).pays(launches_left=left, usual_run_s=usual_run_s) is pays


def test_a_suggestion_is_prefetched_once() -> None:
    ready = prefetch()
    for kept in (HOPE, None):
        ready.keep(kept)
        assert not ready.pays(launches_left=99, usual_run_s=100.0)
        assert ready.take(launches_left=99) is kept
        assert ready.take(launches_left=99) is None
        assert ready.pays(launches_left=99, usual_run_s=100.0)


@pytest.mark.parametrize(("left", "taken"), [(7, HOPE), (6, None)])
def test_the_last_launches_are_not_prefetched(left: int, taken: Suggestion | None) -> None:
    ready = prefetch()
    ready.keep(HOPE)
    assert ready.take(launches_left=left) is taken
    assert ready.take(launches_left=99) is None


@pytest.mark.parametrize(
    ("state", "is_measured", "taken"),
    [
        (State.COMPLETED, True, HOPE),
        (State.COMPLETED, False, None),
        (State.OUT_OF_MEMORY, True, None),
        (State.OUT_OF_MEMORY, False, None),
    ],
)
def test_a_launch_without_a_result_drops_the_prefetched(
    state: State, is_measured: bool, taken: Suggestion | None
) -> None:
    measurement = Measurement(samples_per_second=1.0) if is_measured else None
    trial = Trial(trial_id="t", workload={}, config={}, state=state, measurement=measurement)
    pending = PendingLaunch(launch_id="l", number=1, purpose="search", config={}, submitted_at=SystemClock().now())
    ready = prefetch()
    ready.keep(HOPE)
    ready.hear(FinishedLaunch(pending=pending, trial=trial))
    assert ready.pays(launches_left=99, usual_run_s=100.0) is (taken is None)
    assert ready.take(launches_left=99) is taken
    ready.keep(None)
    ready.hear(FinishedLaunch(pending=pending, trial=trial))
    assert ready.pays(launches_left=99, usual_run_s=100.0)
