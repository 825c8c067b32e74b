"""What the ledger tells of the attempts of a launch, by which one that is adopted ran as long as it ran."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from torchx_cubicml.advisor import Suggestion
from torchx_cubicml.records.event import TUNER, Event, EventKind
from torchx_cubicml.records.measurement import Measurement
from torchx_cubicml.records.trial import Origin, State
from torchx_cubicml.tuner.budget import Spent
from torchx_cubicml.tuner.journal import Journal, Note, NoteKind
from torchx_cubicml.tuner.polling import SystemClock
from torchx_cubicml.tuner.resume import _pending_launch
from torchx_cubicml.tuner.scheduler.job_state import JobEnd
from torchx_cubicml.tuner.state import Cost, TuneState
from torchx_cubicml.tuner.trials import TrialLog

if TYPE_CHECKING:
    from pathlib import Path

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
LAUNCH = "launch-0123456789abcdef-0001"


def event_of(kind: EventKind, minute: int, *, restarts: int = 0, state: State | None = None) -> Event:
    time = (NOON + timedelta(minutes=minute)).isoformat()
    return Event(kind=kind, trial_id="t", launch_id=LAUNCH, attempt=(restarts, 0), time=time, state=state)


def test_a_wait_between_attempts_is_not_run_time(tmp_path: Path) -> None:
    url = str(tmp_path / "store")
    trial_log = TrialLog(url)
    for event in (
        event_of(EventKind.STARTED, 0),
        event_of(EventKind.ENDED, 10, state=State.INFRASTRUCTURE),
        event_of(EventKind.STARTED, 190, restarts=1),
        event_of(EventKind.MEASURED, 192, restarts=1),
    ):
        trial_log.append(event)
    trial_log.refresh()
    first, second = (
        (NOON + timedelta(minutes=each), NOON + timedelta(minutes=each + ran)) for each, ran in ((0, 10), (190, 2))
    )
    assert trial_log.attempts(LAUNCH) == [first, second]
    tune_state = TuneState("tune-0123456789abcdef", trial_log, Journal(url), SystemClock())
    pending = _pending_launch(tune_state, LAUNCH, "slurm://torchx/7")
    assert pending.ran_s(NOON + timedelta(minutes=193)) == 13 * 60


def test_trials_are_read_at_the_requested_statistic(tmp_path: Path) -> None:
    measured = Measurement(tokens_per_second=80.0, step_time_s=(0.8, 1.0, 1.6), mean_step_time_s=1.25, statistic="mean")
    url = str(tmp_path / "store")
    TrialLog(url).append(replace(event_of(EventKind.MEASURED, 1), measurement=measured))
    for statistic, expected in (("mean", 80.0), ("p50", 100.0)):
        trial_log = TrialLog(url, statistic=statistic)
        trial_log.refresh()
        found = trial_log.of_launch(LAUNCH)
        assert found is not None
        assert found.measurement is not None
        assert found.measurement.tokens_per_second == expected
        assert trial_log.trials() == [found]


def test_a_tune_sees_that_what_it_asked_for_did_not_fit(tmp_path: Path) -> None:
    measured = Measurement(samples_per_second=80.0)
    caught = {"micro_batch_size": 4, "caught_out_of_memory": "torch.OutOfMemoryError: CUDA out of memory"}
    trial_log = TrialLog(str(tmp_path / "store"))
    running = replace(event_of(EventKind.MEASURED, 1), config={"micro_batch_size": 8}, observed=caught)
    trial_log.append(replace(running, measurement=measured))
    trial_log.refresh()
    found = trial_log.of_launch(LAUNCH)
    assert found is not None
    assert (found.state, found.measurement) == (State.RUNNING, measured)
    trial_log.append(event_of(EventKind.ENDED, 2, state=State.COMPLETED))
    trial_log.refresh()
    found = trial_log.of_launch(LAUNCH)
    assert found is not None
    assert (found.state, found.measurement) == (State.OUT_OF_MEMORY, None)
    (recorded,) = trial_log.trials()
    assert (recorded.state, recorded.measurement) == (State.COMPLETED, measured)


def test_events_of_a_launch_stay_at_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trial_log = TrialLog(str(tmp_path / "store"))
    plan = Event(kind=EventKind.PLANNED, launch_id=LAUNCH, config={"x": 1})
    for event in (plan, replace(plan, launch_id="launch-of-another"), event_of(EventKind.STARTED, 0)):
        trial_log.append(event)
    trial_log.refresh()
    monkeypatch.setattr("torchx_cubicml.store.local._read_file", lambda place: pytest.fail(f"{place} is read again"))
    trial_log.refresh()
    assert trial_log.planned(LAUNCH) == plan
    assert trial_log.planned("launch-of-none") is None
    assert trial_log.launches("launch-0123456789abcdef-") == [LAUNCH]
    assert [trial.trial_id for trial in trial_log.trials()] == ["t", "launch-of-another"]
    found = trial_log.of_launch(LAUNCH)
    assert found is not None
    assert (found.trial_id, found.config) == ("t", {"x": 1})
    monkeypatch.setattr("torchx_cubicml.tuner.trials.folded", lambda *_: pytest.fail("the events are folded again"))
    assert trial_log.of_launch(LAUNCH) == found
    assert trial_log.of_launch("launch-of-none") is None
    assert trial_log.last_event_at(LAUNCH) == NOON


def test_the_measured_trial_of_a_launch_is_returned(tmp_path: Path) -> None:
    trial_log = TrialLog(str(tmp_path / "store"))
    ended = event_of(EventKind.ENDED, 1, state=State.USER_ERROR)
    measured = replace(event_of(EventKind.MEASURED, 2), measurement=Measurement(tokens_per_second=80.0))
    for number, event in enumerate((event_of(EventKind.STARTED, 0), ended, measured, event_of(EventKind.STARTED, 3))):
        trial_log.append(replace(event, trial_id=f"t{number}"))
        trial_log.refresh()
        found = trial_log.of_launch(LAUNCH)
        assert found is not None
        assert found.trial_id == f"t{min(number, 2)}"
    assert len(trial_log.trials()) == 4


def test_events_that_name_their_trial_only_belong_to_its_launch(tmp_path: Path) -> None:
    trial_log = TrialLog(str(tmp_path / "store"))
    trial_log.append(replace(event_of(EventKind.STARTED, 0), launch_id=""))
    trial_log.refresh()
    assert trial_log.of_launch(LAUNCH) is None
    trial_log.append(event_of(EventKind.MEASURED, 5))
    trial_log.refresh()
    assert trial_log.attempts(LAUNCH) == [(NOON, NOON + timedelta(minutes=5))]
    assert [trial.launch_id for trial in trial_log.trials()] == [LAUNCH]


def test_events_of_another_launch_are_not_returned(tmp_path: Path) -> None:
    trial_log = TrialLog(str(tmp_path / "store"))
    trial_log.append(event_of(EventKind.STARTED, 0))
    trial_log.append(replace(event_of(EventKind.STARTED, 9), launch_id="launch-of-another"))
    trial_log.refresh()
    assert trial_log.attempts(LAUNCH) == [(NOON, NOON)]


def test_two_launches_with_the_same_trial_id_stay_apart(tmp_path: Path) -> None:
    trial_log = TrialLog(str(tmp_path / "store"))
    other = f"{LAUNCH[:-1]}2"
    first, second = event_of(EventKind.STARTED, 0), replace(event_of(EventKind.STARTED, 5), launch_id=other)
    for event in (
        first,
        replace(first, kind=EventKind.ENDED, state=State.COMPLETED),
        Event(kind=EventKind.PLANNED, launch_id=other, config={"x": 2}),
        second,
    ):
        trial_log.append(event)
    trial_log.refresh()
    ended, running = trial_log.of_launch(LAUNCH), trial_log.of_launch(other)
    assert ended is not None
    assert running is not None
    assert (ended.state, running.state, running.config) == (State.COMPLETED, State.RUNNING, {"x": 2})
    assert trial_log.launches(LAUNCH[:-1]) == [LAUNCH, other]


def test_a_plan_is_no_part_of_an_attempt(tmp_path: Path) -> None:
    trial_log = TrialLog(str(tmp_path / "store"))
    plan = replace(event_of(EventKind.PLANNED, 0), trial_id="")
    trial_log.append(plan)
    trial_log.append(event_of(EventKind.STARTED, 7))
    trial_log.refresh()
    assert trial_log.attempts(LAUNCH) == [(NOON + timedelta(minutes=7),) * 2]
    assert trial_log.planned(LAUNCH) is not None
    assert trial_log.planned("launch-other") is None


class Noon:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.minute = 0.0

    def now(self) -> datetime:
        return NOON + timedelta(minutes=self.minute)

    def sleep(self, seconds: float) -> None:
        raise AssertionError("nothing waits")


OWN = Suggestion(config={"a": 1}, throughput=None, low=None, high=None, probability_to_fit=1.0, reason="", n_trials=0)


class TestSpent:
    def state(self, folder: Path, clock: Noon) -> TuneState:
        url = str(folder / "store")
        journal = Journal(url)
        journal.write(Note(kind=NoteKind.BEGUN, tune_id="tune-1", time=clock.now().isoformat()))
        return TuneState("tune-1", TrialLog(url), journal, clock)

    def test_launches_in_flight_count_as_long_as_the_others_took(self, tmp_path: Path) -> None:
        clock = Noon()
        tune_state = self.state(tmp_path, clock)
        for number in range(1, 6):
            assert tune_state.next_launch_id() == f"launch-1-000{number}"
            tune_state.plan(f"launch-1-000{number}", OWN, {})
        first, second, third, fourth, fifth = tune_state.open_launches()
        tune_state.settled(first, Cost(run_s=1000.0, queue_s=5.0), JobEnd.SUCCEEDED)
        tune_state.settled(second, Cost(run_s=2000.0, queue_s=5.0), JobEnd.FAILED)
        assert tune_state.open_launches() == [third, fourth, fifth]
        clock.minute = 90.0
        spent = tune_state.spent(4, running_s=[1800.0, 600.0])
        # Settled: 3000 s of two, 1500 s each. In flight: 1800 s already, 1500 s instead of 600 s, 1500 s for the last.
        assert spent == Spent(
            launches=5,
            device_hours=pytest.approx(7800 / 3600 * 4),
            used_device_hours=pytest.approx(5400 / 3600 * 4),
            hours=pytest.approx(1.5),
            launch_hours=pytest.approx(1500 / 3600),
            launch_device_hours=pytest.approx(1500 / 3600 * 4),
        )
        assert tune_state.device_hours(4) == pytest.approx(3000 / 3600 * 4)
        assert tune_state.usual_run_s() == (1000.0, 1000.0)

    def test_device_hours_follow_the_size_of_each_launch(self, tmp_path: Path) -> None:
        tune_state = self.state(tmp_path, Noon())
        for number in range(1, 4):
            tune_state.plan(f"launch-1-000{number}", OWN, {})
        first, second, _ = tune_state.open_launches()
        tune_state.settled(first, Cost(run_s=1000.0, queue_s=0.0, devices=8), JobEnd.SUCCEEDED)
        tune_state.settled(second, Cost(run_s=2000.0, queue_s=0.0), JobEnd.SUCCEEDED)
        assert tune_state.device_hours(2) == pytest.approx((8000 + 4000) / 3600)
        spent = tune_state.spent(2, running_s=[1500.0])
        # The one in flight has as many devices as the settled ones on average, weighted by their time.
        assert spent.used_device_hours == pytest.approx((12000 + 1500 * 4) / 3600)
        assert spent.launch_device_hours == pytest.approx(1500 * 4 / 3600)
        spent = tune_state.spent(2, running_s=[1800.0], running_on=[64])
        assert spent.used_device_hours == spent.device_hours == pytest.approx((12000 + 1800 * 64) / 3600)

    def test_a_launch_that_never_had_a_job_is_none(self, tmp_path: Path) -> None:
        tune_state = self.state(tmp_path, Noon())
        tune_state.plan("launch-1-0001", OWN, {})
        tune_state.settled("launch-1-0001", Cost(run_s=0.0, queue_s=0.0, launched=False), "")
        assert tune_state.spent(1) == Spent()
        assert tune_state.usual_run_s() is None

    def test_another_process_resumes_from_journal_and_store(self, tmp_path: Path) -> None:
        clock = Noon()
        before = self.state(tmp_path, clock)
        for launch_id in ("launch-1-0001", "launch-1-0002"):
            before.plan(launch_id, OWN, {})
        before.submitted("launch-1-0001", "slurm://torchx/7", "baseline", image="image:1")
        before.settled("launch-1-0001", Cost(run_s=600.0, queue_s=0.0), JobEnd.SUCCEEDED)
        after = self.state(tmp_path, clock)
        assert after.open_launches() == ["launch-1-0002"]
        assert after.next_launch_id() == "launch-1-0003"
        assert after.number("launch-1-0002") == 2
        assert after.number("launch-2-0002") == 0
        assert (after.handle("launch-1-0001"), after.handle("launch-1-0002")) == ("slurm://torchx/7", "")
        assert (after.purpose("launch-1-0001"), after.purpose("launch-1-0002")) == ("baseline", "")
        assert after.image() == "image:1"
        assert after.usual_run_s() == (600.0, 600.0)
        assert [trial.launch_id for trial in after.own_trials()] == ["launch-1-0001", "launch-1-0002"]
        assert [trial.launch_id for trial in after.settled_trials()] == ["launch-1-0001"]
        assert after.others() == frozenset()

    def test_an_end_that_the_tuner_writes_is_the_last_word(self, tmp_path: Path) -> None:
        tune_state = self.state(tmp_path, Noon())
        tune_state.plan("launch-1-0001", OWN, {})
        tune_state.end("launch-1-0001", State.TIMEOUT, "too slow")
        (trial,) = tune_state.own_trials()
        assert (trial.state, trial.reason, dict(trial.config)) == (State.TIMEOUT, "too slow", {"a": 1})

    def test_a_plan_in_the_store_is_of_the_tuner(self, tmp_path: Path) -> None:
        clock = Noon()
        tune_state = self.state(tmp_path, clock)
        clock.minute = 5.0
        hope = replace(OWN, throughput=7.0, low=6.0, high=8.0)
        tune_state.plan("launch-1-0001", hope, {"world_size": 2})
        tune_state.trial_log.refresh()
        plan = tune_state.trial_log.planned("launch-1-0001")
        assert plan is not None
        assert (plan.writer, plan.time, plan.origin) == (TUNER, "2026-01-01T12:05:00.000+00:00", Origin.TUNE)
        assert (dict(plan.workload), dict(plan.config)) == ({"world_size": 2}, {"a": 1})
        assert plan.suggestion == hope.promise()

    def test_an_end_belongs_to_the_trial_of_the_training(self, tmp_path: Path) -> None:
        tune_state = self.state(tmp_path, Noon())
        tune_state.plan("launch-1-0001", OWN, {})
        for number, kind in enumerate((EventKind.STARTED, EventKind.MEASURED)):
            tune_state.trial_log.append(
                Event(
                    kind=kind,
                    trial_id="t",
                    launch_id="launch-1-0001",
                    sequence=number,
                    time=NOON.isoformat(),
                    measurement=Measurement(tokens_per_second=5.0) if number else None,
                )
            )
        tune_state.trial_log.refresh()
        tune_state.end("launch-1-0001", State.TIMEOUT, "too slow")
        (trial,) = tune_state.trial_log.trials()
        assert (trial.trial_id, trial.state, trial.reason) == ("t", State.TIMEOUT, "too slow")
        assert trial.measurement is not None

    def test_trials_of_other_tunes_are_others(self, tmp_path: Path) -> None:
        tune_state = self.state(tmp_path, Noon())
        tune_state.plan("launch-1-0001", OWN, {})
        for launch_id in ("launch-2-0001", "launch-12-0001", ""):
            tune_state.trial_log.append(
                Event(kind=EventKind.STARTED, trial_id=f"of {launch_id}", launch_id=launch_id, time=NOON.isoformat())
            )
        tune_state.trial_log.refresh()
        assert tune_state.others() == {"of launch-2-0001", "of launch-12-0001", "of "}
        assert [trial.launch_id for trial in tune_state.own_trials()] == ["launch-1-0001"]
        assert tune_state.next_launch_id() == "launch-1-0002"

    def test_times_that_jobs_took_span_those_that_succeeded(self, tmp_path: Path) -> None:
        tune_state = self.state(tmp_path, Noon())
        for number, (run_s, end) in enumerate(
            [(50.0, JobEnd.SUCCEEDED), (10.0, JobEnd.FAILED), (30.0, JobEnd.SUCCEEDED), (90.0, JobEnd.LOST)], start=1
        ):
            tune_state.plan(f"launch-1-{number:04}", OWN, {})
            tune_state.settled(f"launch-1-{number:04}", Cost(run_s=run_s, queue_s=0.0), end)
        assert tune_state.usual_run_s() == (30.0, 50.0)
        assert tune_state.spent(1).launch_hours == pytest.approx(45.0 / 3600)
        assert tune_state.open_launches() == []

    def test_notes_of_another_tune_do_not_count(self, tmp_path: Path) -> None:
        before = self.state(tmp_path, Noon())
        before.submitted("launch-1-0001", "sim://torchx/1", "search")
        before.settled("launch-1-0001", Cost(run_s=60.0, queue_s=0.0), JobEnd.SUCCEEDED)
        url = str(tmp_path / "store")
        other = TuneState("tune-2", TrialLog(url), Journal(url), Noon())
        assert other.spent(1) == Spent()
        assert (other.handle("launch-1-0001"), other.image(), other.usual_run_s()) == ("", "", None)

    def test_heartbeats_and_the_end_are_in_the_journal(self, tmp_path: Path) -> None:
        clock = Noon()
        tune_state = self.state(tmp_path, clock)
        clock.minute = 6.0
        tune_state.alive()
        tune_state.finished({"result": {"launches": 3}})
        _, alive, finished = Journal(str(tmp_path / "store")).read()
        assert (alive.kind, alive.tune_id, alive.launch_id) == (NoteKind.ALIVE, "tune-1", "")
        assert alive.time == "2026-01-01T12:06:00.000+00:00"
        assert dict(alive.facts) == {}
        assert (finished.kind, dict(finished.facts)) == (NoteKind.FINISHED, {"result": {"launches": 3}})
        assert tune_state.now() == clock.now()
        assert tune_state.spent(1).hours == pytest.approx(0.1)
