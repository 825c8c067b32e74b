"""Recorded throughput beside what real trainings know of themselves, and what a launch makes of it.

The many of them are in ``benchmarks/throughput.py``; these are a few of its trainings.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from torchx_cubicml.records.trial import Origin
from torchx_cubicml.store import TrialStore

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
from lib.trainings import FAMILIES, Schedule
from throughput import counted_window, drawn, launch, launched, realised

if TYPE_CHECKING:
    from torchx_cubicml.records.trial import Trial

# Picked for being short, and unlike: stalls, sequences of varying lengths, evaluation and saving on two ranks.
TRAININGS = [("periodic_stalls", 0, 1), ("batches", 0, 13), ("pauses", 0, 11)]
LOADERS = ("stalling", "steady")
SPACE = """
objective = "samples_per_second"
[parameters.loader]
choices = ["stalling", "steady"]
flag = "--loader"
"""


def test_the_true_rate_excludes_evaluation_and_saving() -> None:
    log = [
        ("begin", 0.0),
        *(("work", 0.1, 8, 80), ("step", 1.0, 0), ("work", 1.1, 8, 80), ("step", 2.0, 0)),
        *(("evaluation", 2.0, 5.0), ("work", 5.0, 4, 40), ("step", 6.0, 0), ("save", 6.0, 7.5)),
        *(("work", 7.6, 8, 80), ("step", 8.0, 0)),
    ]
    window = counted_window(log, warmup=1, counted=3)
    assert window == (1.0, 8.0)
    assert realised(log, *window) == (20 / 2.5, 200 / 2.5)
    assert counted_window(log, warmup=2, counted=3) is None


@pytest.mark.parametrize("family", [family for family in FAMILIES if family not in {"warm_up", "short"}])
def test_a_family_states_the_rate_of_its_steps(family: str) -> None:
    """The false-alarm rate of each family is one in 16,000 (4 standard errors), and the seeds are fixed."""
    schedules = [drawn(family, 1, number) for number in range(400)]
    excess = np.array([sum(each.seconds) * each.rate / sum(each.work()) - 1 for each in schedules])
    assert abs(excess.mean()) < 4 * excess.std() / len(excess) ** 0.5


@pytest.mark.launch
def test_recorded_throughput_is_true(tmp_path: Path) -> None:
    with ThreadPoolExecutor(len(TRAININGS)) as pool:
        verdicts = [*pool.map(partial(launched, folder=tmp_path), TRAININGS)]
    assert [each for each in verdicts if not each.is_right] == []


@pytest.mark.launch
def test_no_launch_is_rewritten_into_a_loader_that_stalls(tmp_path: Path) -> None:
    """Most steps of the stalling loader are twice as fast as those of the steady one, and their mean half as fast."""
    stalling, steady = (schedule(np.where(np.arange(40) % 5 == 4, 0.25, 0.015)), schedule(np.full(60, 0.03)))
    (tmp_path / "space.toml").write_text(SPACE)
    start = partial(launch, tmp_path, {"stalling": stalling, "steady": steady})
    space = ["--cubicml-space", str(tmp_path / "space.toml")]
    with ThreadPoolExecutor(2) as pool:
        known = pool.map(lambda loader: start([*space, "--cubicml-mode", "record"], loader=loader), LOADERS)
        assert [*known] == ["", ""]
    assert start([*space, "--cubicml-mode", "rewrite"], loader="steady") == ""
    trials = [*TrialStore(str(tmp_path / "store"))]
    rates = {each.config["loader"]: rate_of(each) for each in trials if each.origin is Origin.USER}
    assert rates["steady"] > 1.5 * rates["stalling"]
    assert [each.config["loader"] for each in trials if each.origin is not Origin.USER] == []
    assert len(trials) == 3


def rate_of(trial: Trial) -> float:
    assert trial.measurement is not None
    rate = trial.measurement.samples_per_second
    assert rate is not None
    return rate


def schedule(seconds: np.ndarray[tuple[int], np.dtype[np.float64]]) -> str:
    """Return a training whose loader takes most of each step."""
    return Schedule(
        family="",
        seconds=seconds.tolist(),
        loader_s=(seconds - 0.008).tolist(),
        batches=[[8]] * len(seconds),
        rate=8 / float(seconds.mean()),
    ).as_json()
