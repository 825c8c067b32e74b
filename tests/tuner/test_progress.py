"""What is displayed of a tune while it waits."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from torchx_cubicml.advisor import Suggestion
from torchx_cubicml.records.measurement import Measurement
from torchx_cubicml.records.trial import State, Trial
from torchx_cubicml.tuner import Budget
from torchx_cubicml.tuner.budget import Spent
from torchx_cubicml.tuner.launch_state import Cancellation, PendingLaunch
from torchx_cubicml.tuner.progress import Waiting, progress_of, throughput_of
from torchx_cubicml.tuner.scheduler.job_state import JobEnd, JobPhase, JobState

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
LATER = NOON + timedelta(seconds=90)
QUEUED = JobState(phase=JobPhase.QUEUED)
HOPE = Suggestion(config={"a": 2}, throughput=50.0, low=40.0, high=60.0, probability_to_fit=1.0, reason="", n_trials=0)
PENDING = PendingLaunch(launch_id="l", number=3, purpose="search", config={"a": 2}, submitted_at=NOON)
TRIAL = Trial(
    trial_id="t",
    workload={},
    config={"a": 2},
    state=State.RUNNING,
    measurement=Measurement(tokens_per_second=45.0, relative_error=0.02),
)


def waiting(
    *pending: PendingLaunch,
    trial: Trial | None = None,
    best: Trial | None = None,
    budget: Budget = Budget(launches=10),  # noqa: B008 - frozen
    spent: Spent = Spent(),  # noqa: B008 - likewise
) -> Waiting:
    request = SimpleNamespace(budget=budget, parallel=2)
    prepared = SimpleNamespace(request=request, space=SimpleNamespace(objective="tokens_per_second"))
    state = SimpleNamespace(now=lambda: LATER, trial_log=SimpleNamespace(of_launch=lambda _: trial))
    return progress_of(prepared, state, SimpleNamespace(under_way=list(pending)), spent=spent, best=best)


def changed(**fields: object) -> PendingLaunch:
    return replace(PENDING, **fields)


@pytest.mark.parametrize(
    ("pending", "phase"),
    [
        (PENDING, "submitted"),
        (changed(state=QUEUED), "queued"),
        (changed(state=JobState(phase=JobPhase.RUNNING)), "running"),
        (changed(state=QUEUED, ended=(JobState(phase=JobPhase.ENDED, end=JobEnd.FAILED), NOON)), "ending"),
        (changed(state=QUEUED, cancellation=Cancellation(state=State.TIMEOUT, reason="", since=NOON)), "ending"),
    ],
)
def test_a_launch_is_displayed_by_its_phase(pending: PendingLaunch, phase: str) -> None:
    (found,) = waiting(pending).in_flight
    assert found.phase == phase


def test_a_launch_shows_expected_and_measured_throughput() -> None:
    (found,) = waiting(changed(suggestion=HOPE, running_since=NOON + timedelta(seconds=30)), trial=TRIAL).in_flight
    assert (found.number, found.purpose, dict(found.config), found.since_s) == (3, "search", {"a": 2}, 60.0)
    assert (found.expected, found.measured, found.uncertainty) == (50.0, 45.0, 0.02)
    (bare,) = waiting(PENDING).in_flight
    assert (bare.since_s, bare.expected, bare.measured, bare.uncertainty) == (90.0, None, None, 0.0)


def test_the_time_left_counts_parallel_launches() -> None:
    """Seven are left and one is in flight: four times half an hour."""
    found = waiting(PENDING, best=TRIAL, spent=Spent(launches=3, launch_hours=0.5))
    assert found.time_left_s == 4 * 1800.0
    assert (found.best, found.best_config, found.budget_left) == (45.0, {"a": 2}, "7 of 10 launches left")
    before = waiting(PENDING)
    assert (before.time_left_s, before.best, before.best_config) == (None, None, None)


def test_nothing_measured_has_no_throughput() -> None:
    assert throughput_of(None, "tokens_per_second") is None
    assert throughput_of(replace(TRIAL, measurement=None), "tokens_per_second") is None
    assert throughput_of(TRIAL, "samples_per_second") is None
    assert throughput_of(TRIAL, "tokens_per_second") == 45.0
