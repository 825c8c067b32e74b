"""A recorded launch of two ranks tells the power of the packages beside its throughput."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.forked_programs import ForkedProgram
from torchx_cubicml.records.trial import State
from torchx_cubicml.store import TrialStore

pytestmark = pytest.mark.launch

JOB = Path(__file__).parents[1] / "jobs" / "train_metered.py"


def test_the_power_of_a_launch_is_that_of_its_counter(tmp_path: Path) -> None:
    words = ("--standalone", "--nproc_per_node", "2", "-m", "torchx_cubicml.recorder", "--", str(JOB))
    environment = {**os.environ, "TORCHX_CUBICML_STORE": str(tmp_path / "store"), "OMP_NUM_THREADS": "1"}
    launch = ForkedProgram("torchrun", *words, str(tmp_path / "powercap"), env=environment)
    _, stderr = launch.communicate(timeout=600)
    assert launch.returncode == 0, stderr
    assert "warning" not in stderr
    (trial,) = TrialStore(str(tmp_path / "store"))
    assert trial.state is State.COMPLETED
    measured = trial.measurement
    assert measured is not None
    assert measured.power_of == "CPU packages"
    # The job's counter grows by 40 J in a second, in steps of as long as its thread waits.
    assert measured.power_watts == pytest.approx(40.0, rel=0.2)
    assert measured.mean_step_time_s is not None
    assert measured.joules_per_step == pytest.approx(measured.power_watts * measured.mean_step_time_s)
    rate = trial.throughput("samples_per_second")
    assert rate is not None
    assert trial.throughput("samples_per_joule") == pytest.approx(rate / measured.power_watts)
