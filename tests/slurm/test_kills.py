"""The tuner killed at random instants, on this machine and on Slurm: nothing is lost, nothing launched twice."""

from __future__ import annotations

import os
import random
import signal
import subprocess
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from torchx_cubicml import State, TrialStore
from torchx_cubicml.records.contract import decode_contract
from torchx_cubicml.tuner.journal import Journal, NoteKind

if TYPE_CHECKING:
    from torchx_cubicml.records.trial import Trial

TUNE = Path(__file__).resolve().parent.parent / "tune"
KILLS = int(os.environ.get("CUBICML_KILLS", "10"))
BUDGET = 14
SPACE = """
objective = "samples_per_second"

[parameters.micro_batch_size]
choices = [1, 2, 4, 8]
flag = "--batch_size"
changes_training = true

[parameters.width]
choices = [1, 2]
flag = "--width"
"""


@pytest.mark.parametrize("scheduler", ["local_cwd", "slurm"])
def test_killed_at_random_instants_it_comes_to_the_same_end(workspace: Path, scheduler: str) -> None:
    rng = random.Random(f"{scheduler} {KILLS}")
    kills, tunes = 0, 0
    while kills < KILLS // 2:  # a tune that comes to its end is followed by another, in a folder of its own
        tunes += 1
        folder = workspace / f"tune-{tunes}"
        folder.mkdir()
        done = kill_until_it_ends(folder, scheduler, rng, at_most=KILLS // 2 - kills)
        check(folder, done)
        kills += done
    print(f"{scheduler}: {kills} kills in {tunes} tunes")


def kill_until_it_ends(folder: Path, scheduler: str, rng: random.Random, *, at_most: int) -> int:
    (folder / "space.toml").write_text(SPACE)
    for kills in range(at_most):
        tune = start(folder, scheduler)
        with suppress(subprocess.TimeoutExpired):
            assert tune.wait(timeout=rng.uniform(0.3, 8.0)) == 0, last_output(folder)
            return kills
        tune.send_signal(signal.SIGKILL)
        tune.wait(timeout=30)
        if any(note.kind is NoteKind.FINISHED for note in Journal(str(folder / "store")).read()):
            return kills + 1  # it was only leaving
    assert start(folder, scheduler).wait(timeout=300) == 0, last_output(folder)
    return at_most


def start(folder: Path, scheduler: str) -> subprocess.Popen[bytes]:
    options = (
        f"--space space.toml --store store --scratch {folder}/scratch -s {scheduler} --parallel 3 --repeats 2 --yes"
    )
    script = f"--script {TUNE}/quick.py -- --batch_size 1 --width 1 --seconds 0.6 --ledger {folder}/ledger"
    words = f"torchx cubicml tune {options} --budget {BUDGET} -- {TUNE}/components.py:quick {script}".split()
    with (folder / "tune.log").open("ab") as log:
        return subprocess.Popen(words, cwd=folder, stdout=log, stderr=log, start_new_session=True)


def last_output(folder: Path) -> str:
    return (folder / "tune.log").read_text()[-3000:]


def check(workspace: Path, kills: int) -> None:
    ran = Counter(
        decode_contract(line.split()[0]).launch_id for line in (workspace / "ledger").read_text().splitlines()
    )
    assert set(ran.values()) == {1}, f"launched twice: {ran}"
    assert len(ran) <= BUDGET
    trials: dict[str, Trial] = {}
    for trial in TrialStore(str(workspace / "store")):
        assert trial.launch_id not in trials, "one launch, two trials"
        trials[trial.launch_id] = trial
    assert ran.keys() <= trials.keys(), "a launch without a trial"
    for launch_id in ran:
        assert trials[launch_id].state is State.COMPLETED, (trials[launch_id], kills, last_output(workspace))
        assert trials[launch_id].measurement is not None
    unmade = {State.STOPPED_EARLY, State.INFRASTRUCTURE}  # never submitted; killed as it was being submitted
    for launch_id in trials.keys() - ran.keys():
        assert trials[launch_id].state in unmade, (trials[launch_id], kills, last_output(workspace))
    configs = {(trials[name].config["micro_batch_size"], trials[name].config["width"]) for name in ran}
    assert configs == {(size, width) for size in (1, 2, 4, 8) for width in (1, 2)}
