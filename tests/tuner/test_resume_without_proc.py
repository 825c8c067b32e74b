"""A resumed local tune on a system that shows no processes: a launch that lives is not taken for gone."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from tests.tune.draws import prepare_in, suggestion_of
from torchx_cubicml.records.trial import State
from torchx_cubicml.tuner import prepare
from torchx_cubicml.tuner.journal import Journal
from torchx_cubicml.tuner.launches import PendingLaunches
from torchx_cubicml.tuner.polling import SystemClock
from torchx_cubicml.tuner.resume import adopt_all
from torchx_cubicml.tuner.scheduler import local
from torchx_cubicml.tuner.scheduler.jobs import JobRunner
from torchx_cubicml.tuner.state import TuneState
from torchx_cubicml.tuner.trials import TrialLog

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from torchx_cubicml.tuner import Prepared


def pending_launches(prepared: Prepared, jobs: JobRunner) -> tuple[PendingLaunches, TuneState]:
    url = prepared.store_url
    state = TuneState("tune-1", TrialLog(url), Journal(url), SystemClock())
    return PendingLaunches(prepared, state, jobs, SystemClock()), state


def test_a_living_launch_is_followed_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    request = prepare_in(tmp_path).request
    prepared = prepare(replace(request, component_args=(*request.component_args, "--seconds", "5")))
    with JobRunner("local_cwd", log_dir=str(tmp_path / "logs")) as of_dead_process:
        first, _ = pending_launches(prepared, of_dead_process)
        first.launch(suggestion_of({"micro_batch_size": 1, "width": 1}), "search")
        monkeypatch.setattr(local, "_PROC", tmp_path / "no-proc")
        jobs = JobRunner("local_cwd", log_dir=str(tmp_path / "logs"))
        resumed, state = pending_launches(prepared, jobs)
        assert adopt_all(resumed, state, jobs, SystemClock()) == 1
        finished, lived_at_a_look = [], False
        while not finished:
            state.trial_log.refresh()
            finished = list(resumed.watch())
            lived_at_a_look |= not finished
            time.sleep(0.1)
    (launch,) = finished
    assert lived_at_a_look
    assert (launch.trial.state, launch.refused) == (State.COMPLETED, False)
    assert launch.trial.measurement is not None
