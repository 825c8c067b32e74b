"""Recorded throughput against the clock of the training itself, launched for real.

The training notes the time around each moment that is recorded, so the bounds hold on a machine of any speed.
"""

from __future__ import annotations

import json
from operator import itemgetter
from statistics import mean
from typing import TYPE_CHECKING

import pytest

from tests.recorder.test_launch import start

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.launch


def test_uneven_batches_of_all_ranks_give_the_throughput(tmp_path: Path) -> None:
    done = start("train_uneven.py", folder=tmp_path / "job").end()
    assert done.code == 0, done.stderr
    printed = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"rank"')]
    own, other = sorted(printed, key=itemgetter("rank"))
    measured = done.trial().measurement
    assert measured is not None
    counted = measured.steps_counted
    assert measured.warmup_steps + counted == 60
    first, last = own["steps"][-counted - 1], own["steps"][-1]
    # A stall of each fifth step counts as over whole periods, with up to one more or less than the steps show.
    stall_s = 0.08
    wall = (last["before"] - first["after"] - stall_s, last["after"] - first["before"] + stall_s)
    pauses = [each for each in own["pauses"] if each["step"] >= 60 - counted - 1]
    assert len(pauses) == 3, "an evaluation is in the warm-up"
    paused, saving = (
        (sum(each[f"{kind}inside"] for each in pauses), sum(each[f"{kind}within"] for each in pauses))
        for kind in ("", "saving_")
    )
    # The other rank counts steps of its own warm-up; it is left out up to a fifth of the steps.
    of_other = [mean(each["samples"] for each in other["steps"][warmup:]) for warmup in range(2, 13)]
    samples = [sum(each["samples"] for each in own["steps"][-counted:]) + counted * rate for rate in sorted(of_other)]
    least, most = samples[0], samples[-1]
    assert least / (wall[1] - paused[0]) <= measured.samples_per_second <= most / (wall[0] - paused[1])
    assert least / wall[1] <= measured.samples_per_second_overall <= most / wall[0]
    assert paused[0] <= measured.evaluation_s + measured.checkpoint_s <= paused[1]
    assert saving[0] <= measured.checkpoint_s <= saving[1]
    assert measured.statistic == "mean"
    assert measured.relative_error > 0
