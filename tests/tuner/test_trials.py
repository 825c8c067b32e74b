"""What the ledger tells of the attempts of a launch, by which one that is adopted ran as long as it ran."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from torchx_cubicml.records.event import Event, EventKind
from torchx_cubicml.records.trial import Measurement, State
from torchx_cubicml.tuner.journal import Journal
from torchx_cubicml.tuner.polling import SystemClock
from torchx_cubicml.tuner.resume import _pending_launch
from torchx_cubicml.tuner.state import TuneState
from torchx_cubicml.tuner.trials import TrialLog

if TYPE_CHECKING:
    from pathlib import Path

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
LAUNCH = "launch-0123456789abcdef-0001"


def told(kind: EventKind, minute: int, *, restarts: int = 0, state: State | None = None) -> Event:
    time = (NOON + timedelta(minutes=minute)).isoformat()
    return Event(kind=kind, trial_id="t", launch_id=LAUNCH, attempt=(restarts, 0), time=time, state=state)


def test_a_wait_between_attempts_is_not_run_time(tmp_path: Path) -> None:
    url = str(tmp_path / "store")
    trial_log = TrialLog(url)
    for event in (
        told(EventKind.STARTED, 0),
        told(EventKind.ENDED, 10, state=State.INFRASTRUCTURE),
        told(EventKind.STARTED, 190, restarts=1),
        told(EventKind.MEASURED, 192, restarts=1),
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


def test_trials_are_converted_to_the_requested_statistic(tmp_path: Path) -> None:
    measured = Measurement(tokens_per_second=80.0, step_time_s=(0.8, 1.0, 1.6), mean_step_time_s=1.25, statistic="mean")
    url = str(tmp_path / "store")
    TrialLog(url).append(replace(told(EventKind.MEASURED, 1), measurement=measured))
    for statistic, expected in (("mean", 80.0), ("p50", 100.0)):
        trial_log = TrialLog(url, statistic=statistic)
        trial_log.refresh()
        found = trial_log.of_launch(LAUNCH)
        assert found is not None
        assert found.measurement is not None
        assert found.measurement.tokens_per_second == expected
        assert trial_log.trials() == [found]
