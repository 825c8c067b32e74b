"""What a launch says when it keeps its arguments although another config measured faster."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from torchx_cubicml.launch import Launch
from torchx_cubicml.records.trial import Trial
from torchx_cubicml.rewrite.rewriter import Options, rewrite
from torchx_cubicml.store import TrialStore

if TYPE_CHECKING:
    from pathlib import Path

    from torchx_cubicml.records.values import Value

SPACE = """
[parameters.micro_batch_size]
choices = [32, 64, 128, 256]
flag = "--batch"
changes_training = true
"""
LAUNCH = Launch(program="train.py", script_args=("--batch", "32"), world_size=2, nnodes=1, nproc_per_node=2)
WORKLOAD: dict[str, Value] = {"program": "train.py", "world_size": 2}
BUSY: dict[str, Value] = {"host_cpus": 2, "other_busy_cpus": 1.7, "idle_cpus": 0.02}
CROWDED = "(crowded: other processes kept 1.7 of 2 processors busy); launch both again when the machine is free"
NOTHING = "no recorded launch suggests a faster config that this launch may run"


def ran(batch: int, speed: float, *, error: float = 0.01, is_busy: bool = False, is_steady: bool = True) -> Trial:
    trial = Trial.completed(workload=WORKLOAD, config={"micro_batch_size": batch}, tokens_per_second=speed)
    assert trial.measurement is not None
    measurement = replace(trial.measurement, statistic="mean", relative_error=error, is_steady=is_steady)
    return replace(trial, observed=BUSY if is_busy else {}, measurement=measurement)


def reason(folder: Path, trials: list[Trial], *, rules: str = "") -> str:
    """Return why the launch keeps its arguments; its second launch, from the cache, says the same."""
    (folder / "space.toml").write_text(SPACE + rules)
    options = Options(space=str(folder / "space.toml"), store=str(folder / "store"))
    store = TrialStore(options.store)
    for trial in trials:
        store.add(trial)
    first, again = rewrite(LAUNCH, options), rewrite(LAUNCH, options)
    assert first == again
    assert first.launch == LAUNCH
    (line,) = [line for line in first.lines if "keeping your arguments: " in line]
    return line.partition("keeping your arguments: ")[2]


@pytest.mark.parametrize(
    ("trials", "told"),
    [
        (
            [ran(32, 1000.0, is_busy=True), *(ran(256, speed, is_busy=True) for speed in (1600.0, 1500.0, 1700.0))],
            f"batch 32 -> 256 measured 1.60x yours, not surely faster: it takes at least 1 more "
            f"launch of the two {CROWDED} (4 launches known)",
        ),
        (
            [
                *(ran(32, speed) for speed in (1000.0, 1001.0)),
                *(ran(256, 1600.0, error=each, is_busy=True) for each in (0.05, 0.5)),
            ],
            "batch 32 -> 256 measured 1.60x yours, not surely faster: the other config is known only within "
            f"a factor of 3.4 {CROWDED} (4 launches known)",
        ),
        (
            [ran(32, 1000.0), ran(256, 1200.0, error=0.2, is_steady=False), ran(128, 1100.0)],
            "batch 32 -> 256 measured 1.20x yours, not surely faster: it takes at least 3 more launches "
            "of the two; launch both again (3 launches known)",
        ),
        (
            [ran(32, 1000.0), ran(32, 1100.0), ran(256, 1080.0), ran(256, 1200.0)],
            "batch 32 -> 256 measured 1.09x yours, not surely faster: its launches and yours vary from run "
            "to run; launch both again (4 launches known)",
        ),
        ([ran(32, 1000.0), ran(256, 1010.0)], f"{NOTHING} (2 launches known)"),
        ([ran(64, 1000.0, error=0.9), ran(256, 1080.0, error=0.9)], f"{NOTHING} (2 launches known)"),
    ],
    ids=["crowded", "the other is crowded", "not steady", "from run to run", "hardly faster", "own never measured"],
)
def test_the_reason_names_the_measured_gain_and_its_doubt(tmp_path: Path, trials: list[Trial], told: str) -> None:
    assert reason(tmp_path, trials) == told


def test_a_config_that_may_not_run_is_not_named(tmp_path: Path) -> None:
    trials = [ran(32, 1000.0, is_busy=True), ran(256, 3600.0, is_busy=True)]
    told = reason(tmp_path, trials, rules='[rewrite]\nfreeze = ["micro_batch_size"]\n')
    assert told == f"{NOTHING} (2 launches known)"
