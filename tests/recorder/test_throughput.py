"""Recorded throughput against the clock of the training itself, launched for real."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.recorder.test_launch import start

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.launch


@pytest.mark.parametrize("evaluates", ["wrapped", "inner", "no_grad"])
def test_uneven_batches_of_all_ranks_over_the_time_they_took(evaluates: str, tmp_path: Path) -> None:
    done = start("train_uneven.py", evaluates, folder=tmp_path / "job").end()
    assert done.code == 0, done.stderr
    printed = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"rank"')]
    own = {each["rank"]: each["steps"] for each in printed}
    measured = done.trial().measurement
    assert measured is not None
    assert measured.warmup_steps + measured.steps_counted == 60
    last = own[0][-measured.steps_counted - 1 :]
    paused = sum(step["paused"] for step in last[:-1])
    samples = sum(step["samples"] for steps in own.values() for step in steps[-measured.steps_counted :])
    wall = last[-1]["end"] - last[0]["end"]
    assert measured.samples_per_second == pytest.approx(samples / (wall - paused), rel=0.05)
    assert measured.samples_per_second_overall == pytest.approx(samples / wall, rel=0.05)
    assert measured.evaluation_s + measured.checkpoint_s == pytest.approx(paused, rel=0.2)
    assert measured.checkpoint_s == pytest.approx(0.2, rel=0.2)
    assert measured.statistic == "mean"
    assert measured.relative_error > 0
