"""Tunes whose store does not answer for a while, on the simulated cluster."""

from __future__ import annotations

import math
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from tests.tune.cluster import SimulatedCluster, runner_of
from tests.tune.draws import Draws, go, prepare_in, stored
from torchx_cubicml.errors import StoreError
from torchx_cubicml.records.trial import State
from torchx_cubicml.store.backend import NO_DIRECTORIES, never
from torchx_cubicml.store.local import LocalBackend
from torchx_cubicml.tuner import Begun, Budget, Ended, Prepared, Step, TuneResult, tune
from torchx_cubicml.tuner.journal import Journal, NoteKind
from torchx_cubicml.tuner.polling import StoreRetry
from torchx_cubicml.tuner.scheduler.jobs import JobRunner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from torchx_cubicml.store.backend import Directory, Listing


LAUNCHES = 30


@pytest.fixture
def prepared(tmp_path: Path) -> Prepared:
    asked = prepare_in(tmp_path)
    return replace(asked, request=replace(asked.request, budget=Budget(launches=LAUNCHES), parallel=6))


@pytest.fixture
def cluster() -> SimulatedCluster:
    return SimulatedCluster(seed=2, fates=("done",))


@contextmanager
def outage(cluster: SimulatedCluster, *, begin_s: float = 0.0, end_s: float = math.inf) -> Iterator[None]:
    """The store cannot be listed, nor its notes be written, while the cluster's time lies in a span; jobs write on."""
    start = cluster.time
    list_objects, publish = LocalBackend.list_objects, LocalBackend.publish

    def refuse() -> None:
        if begin_s <= (cluster.time - start).total_seconds() < end_s:
            raise StoreError("store s3://bucket cannot be read: ClientError: 503 Slow Down")

    def listed(
        folder: LocalBackend,
        known: Mapping[str, Directory] = NO_DIRECTORIES,
        out_of_time: Callable[[], bool] = never,
    ) -> Listing:
        refuse()
        return list_objects(folder, known, out_of_time)

    def published(folder: LocalBackend, day: str, name: str, data: bytes) -> None:
        if b'"note"' in data:
            refuse()
        publish(folder, day, name, data)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalBackend, "list_objects", listed)
        patch.setattr(LocalBackend, "publish", published)
        yield


def test_a_store_that_fails_for_minutes_is_asked_again(prepared: Prepared, cluster: SimulatedCluster) -> None:
    begun = cluster.time
    with outage(cluster, begin_s=100.0, end_s=280.0):
        steps = go(prepared, cluster)
    jobs = cluster.jobs.values()
    assert not any(100.0 < (job.submitted - begun).total_seconds() < 280.0 for job in jobs)
    assert isinstance(steps[-1], TuneResult)
    assert steps[-1].launches == len(cluster.jobs) == LAUNCHES
    assert {trial.state for trial in stored(prepared)} == {State.COMPLETED}
    settled = [note.launch_id for note in Journal(prepared.store_url).read() if note.kind is NoteKind.SETTLED]
    assert len(settled) == len(set(settled)) == LAUNCHES


def test_a_tune_without_its_store_can_be_continued(prepared: Prepared, cluster: SimulatedCluster) -> None:
    with (
        outage(cluster, begin_s=100.0),
        pytest.raises(StoreError, match=r"503 Slow Down; .*its jobs keep running; run the same command to resume"),
    ):
        go(prepared, cluster)
    made = len(cluster.jobs)
    assert 0 < made < LAUNCHES
    assert not any(job.cancelled for job in cluster.jobs.values())
    steps = go(prepared, cluster)
    assert isinstance(steps[0], Begun)
    assert steps[0].resumed
    assert steps[0].launches == made
    assert isinstance(steps[-1], TuneResult)
    assert len(cluster.jobs) == LAUNCHES
    assert {trial.state for trial in stored(prepared)} == {State.COMPLETED}


def test_a_store_that_never_answered_is_not_waited_for(prepared: Prepared, cluster: SimulatedCluster) -> None:
    began = cluster.time
    with outage(cluster), pytest.raises(StoreError, match="503 Slow Down"):
        go(prepared, cluster)
    assert cluster.time == began
    assert cluster.jobs == {}


def test_an_interrupt_does_not_wait_for_the_store(prepared: Prepared, cluster: SimulatedCluster) -> None:
    steps = tune(prepared, jobs=JobRunner("sim", runner=runner_of(cluster)), clock=cluster, advisor=Draws())
    first: Step = next(step for step in steps if isinstance(step, Ended))
    assert isinstance(first, Ended)
    began = cluster.time
    with outage(cluster), pytest.raises(KeyboardInterrupt):
        steps.throw(KeyboardInterrupt())
    assert cluster.time - began < timedelta(seconds=1)
    assert cluster.in_flight() == 0
    assert go(prepared, cluster)[-1].launches == LAUNCHES


class Failing:
    """An operation on a store that fails in some seconds of a clock, which sleeping moves on."""

    def __init__(self, *, begin_s: float, end_s: float) -> None:
        self.begin_s, self.end_s, self.passed_s, self.calls_s = begin_s, end_s, 0.0, []

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self.passed_s)

    def sleep(self, seconds: float) -> None:
        self.passed_s += seconds

    def __call__(self) -> str:
        self.calls_s.append(self.passed_s)
        if self.begin_s <= self.passed_s < self.end_s:
            raise StoreError("503")
        return "done"


def answered(clock: Failing) -> StoreRetry:
    retry = StoreRetry(clock)
    assert (retry.read(clock), retry.write(clock)) == ("done", "done")
    clock.passed_s = clock.begin_s
    clock.calls_s.clear()
    return retry


@pytest.mark.parametrize("kind", ["read", "write"])
def test_an_operation_is_repeated_each_five_seconds(kind: str) -> None:
    clock = Failing(begin_s=10.0, end_s=31.0)
    assert getattr(answered(clock), kind)(clock) == "done"
    assert clock.calls_s == [10.0, 15.0, 20.0, 25.0, 30.0, 35.0]


@pytest.mark.parametrize(("end_s", "gives_up"), [(310.0, False), (310.1, True)])
def test_five_minutes_of_silence_are_the_most(end_s: float, gives_up: bool) -> None:
    clock = Failing(begin_s=10.0, end_s=end_s)
    retry = answered(clock)
    if gives_up:
        with pytest.raises(StoreError, match="503"):
            retry.read(clock)
    else:
        assert retry.read(clock) == "done"
    assert clock.passed_s == 310.0
    assert len(clock.calls_s) == 61


def test_a_store_that_can_be_read_need_not_be_writable() -> None:
    clock = Failing(begin_s=10.0, end_s=20.0)
    retry = StoreRetry(clock)
    assert retry.read(clock) == "done"
    clock.passed_s = 10.0
    with pytest.raises(StoreError, match="503"):
        retry.write(clock)
    assert clock.passed_s == 10.0
    assert retry.read(clock) == "done"


def test_in_a_hurry_nothing_is_repeated() -> None:
    clock = Failing(begin_s=10.0, end_s=20.0)
    retry = answered(clock)
    retry.hurry()
    with pytest.raises(StoreError, match="503"):
        retry.read(clock)
    assert clock.calls_s == [10.0]
