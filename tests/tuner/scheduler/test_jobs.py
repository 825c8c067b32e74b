"""Jobs on TorchX's local scheduler."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING

import pytest
from torchx import specs

from torchx_cubicml import settings
from torchx_cubicml.tuner.scheduler.job_state import JobPhase
from torchx_cubicml.tuner.scheduler.jobs import JobRunner

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.launch


def app_of(program: str) -> specs.AppDef:
    role = specs.Role(name="role", image="", entrypoint=sys.executable, args=["-c", program], num_replicas=1)
    return specs.AppDef(name="app", roles=[role])


@pytest.mark.parametrize("words", ["", "print('said', file=sys.stderr, flush=True)"], ids=["silent", "talking"])
def test_the_lines_of_a_running_job_are_not_waited_for(tmp_path: Path, words: str) -> None:
    with JobRunner("local_cwd", log_dir=str(tmp_path)) as jobs:
        handle = jobs.submit(app_of(f"import sys, time; {words or 'pass'}; time.sleep(300)"), launch_id="launch-1")
        jobs.last_lines(handle, "role")
        assert jobs.look(handle).phase is JobPhase.RUNNING
        jobs.cancel(handle)


def test_the_lines_of_an_ended_job_are_shown(tmp_path: Path) -> None:
    with JobRunner("local_cwd", log_dir=str(tmp_path)) as jobs:
        handle = jobs.submit(app_of("import sys; sys.exit('its last words')"), launch_id="launch-1")
        while jobs.look(handle).phase is not JobPhase.ENDED:
            pass
        assert jobs.last_lines(handle, "role") == ("its last words",)


def test_a_job_inherits_nothing_that_our_libraries_have_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "_NOT_SET_AT_START", ("KMP_INIT_AT_FORK",))
    monkeypatch.setenv("KMP_INIT_AT_FORK", "FALSE")
    program = f"import os; open({str(tmp_path / 'seen')!r}, 'w').write(str(os.environ.get('KMP_INIT_AT_FORK')))"
    with JobRunner("local_cwd", log_dir=str(tmp_path / "logs")) as jobs:
        handle = jobs.submit(app_of(program), launch_id="launch-1")
        end = time.monotonic() + 60
        while jobs.look(handle).phase is not JobPhase.ENDED and time.monotonic() < end:
            time.sleep(0.05)
    assert (tmp_path / "seen").read_text() == "None"
    assert os.environ["KMP_INIT_AT_FORK"] == "FALSE"
