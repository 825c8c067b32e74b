"""Ctrl-C while a job of TorchX's local scheduler is submitted: the job ends with the tune."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.tune.draws import prepare_in, suggestion_of
from torchx_cubicml.records.trial import State
from torchx_cubicml.tuner import prepare
from torchx_cubicml.tuner.journal import Journal
from torchx_cubicml.tuner.launches import PendingLaunches
from torchx_cubicml.tuner.polling import SystemClock
from torchx_cubicml.tuner.scheduler.jobs import JobRunner
from torchx_cubicml.tuner.scheduler.local import LocalQuery
from torchx_cubicml.tuner.state import TuneState
from torchx_cubicml.tuner.trials import TrialLog

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.launch


def test_no_job_is_left_behind(tmp_path: Path) -> None:
    request = prepare_in(tmp_path).request
    prepared = prepare(replace(request, component_args=(*request.component_args, "--seconds", "300")))
    url, clock = prepared.store_url, SystemClock()
    state = TuneState("tune-1", TrialLog(url), Journal(url), clock)
    with JobRunner("local_cwd", log_dir=str(tmp_path / "logs")) as jobs:
        submit = jobs._runner.schedule

        def interrupted(*args: object, **options: object) -> str:
            submit(*args, **options)
            raise KeyboardInterrupt

        jobs._runner.schedule = interrupted
        pending = PendingLaunches(prepared, state, jobs, clock)
        with pytest.raises(KeyboardInterrupt):
            pending.launch(suggestion_of({"micro_batch_size": 1, "width": 1}), "search")
        (launch_id,) = state.open_launches()
        seen = LocalQuery()
        while launch_id not in seen.find([launch_id]):  # a process shows its environment a moment after it starts
            time.sleep(0.05)
        pending.cancel_all("interrupted by the user")
        assert seen.find([launch_id]) == {}  # before the runner ends what it knows of
    (trial,) = state.own_trials()
    assert (trial.state, trial.reason) == (State.STOPPED_EARLY, "interrupted by the user")
