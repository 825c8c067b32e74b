"""A tune with two objectives finds their frontier, and hands over the best of the first."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.tune.plans import next_launch, winner_of
from torchx_cubicml.advisor.pareto_front import frontier_of, measured_points
from torchx_cubicml.records.trial import Origin, Trial
from torchx_cubicml.tuner import Budget, Prepared, TuneRequest, prepare
from torchx_cubicml.tuner.proposer import StudyProposer

if TYPE_CHECKING:
    from pathlib import Path

    from torchx_cubicml.records.values import Config

SPACE = """
objective = ["tokens_per_second", "tokens_per_device_hour"]
[parameters.nproc_per_node]
choices = [1, 2, 4, 8]
torchrun = "--nproc_per_node"
changes_training = true
[parameters.batch]
choices = [1, 2, 4, 8]
flag = "--batch"
changes_training = true
[parameters.kernel]
choices = ["a", "b", "c"]
flag = "--kernel"
"""
PAIR = ("tokens_per_second", "tokens_per_device_hour")
LAUNCHES = 20


def request_in(folder: Path) -> TuneRequest:
    (folder / "space.toml").write_text(SPACE)
    arguments = ("-j", "1x2", "--script", "train.py", "--", "--batch", "1", "--kernel", "a")
    return TuneRequest(
        component="dist.ddp",
        component_args=arguments,
        space=str(folder / "space.toml"),
        store=str(folder / "store"),
        scheduler="local_cwd",
        budget=Budget(launches=LAUNCHES),
        repeats=2,
    )


@pytest.fixture
def prepared(tmp_path: Path) -> Prepared:
    return prepare(request_in(tmp_path))


def speed(config: Config) -> float:
    processes, batch = (int(str(config[name])) for name in ("nproc_per_node", "batch"))
    return 100.0 * processes**0.5 * batch**0.4 * {"a": 1.0, "b": 1.6, "c": 0.7}[str(config["kernel"])]


def ran(prepared: Prepared, config: Config, number: int) -> Trial:
    done = Trial.completed(
        workload=prepared.workload, config=config, tokens_per_second=speed(config) * (1.0 + 0.004 * (number % 3))
    )
    minute, size = f"2026-01-01T00:{number:02d}:00+00:00", config["nproc_per_node"]
    observed = {"world_size": size}
    return replace(done, trial_id=f"t{number:02d}", origin=Origin.TUNE, observed=observed, started_at=minute)


def test_the_frontier_is_found_and_the_best_of_the_first_is_handed_over(prepared: Prepared) -> None:
    proposer = StudyProposer.serving(prepared)
    trials: list[Trial] = []
    for number in range(LAUNCHES):
        planned = next_launch(prepared, trials, launches_left=LAUNCHES - number, advisor=proposer)
        assert planned is not None
        trials.append(ran(prepared, planned[1].config, number))
    # The frontier is known: the fastest kernel and the largest batch, on each number of processes.
    found = frontier_of(measured_points(trials, PAIR), PAIR, current=prepared.current)
    best = {each.config["nproc_per_node"] for each in found.points if each.is_best and each.config["batch"] == 8}
    assert {1, 8} <= best
    assert len(best) >= 3
    assert all(each.config["kernel"] == "b" for each in found.points if each.is_best)
    winner, comparison = winner_of(prepared, trials, known=frozenset(), advisor=proposer)
    assert winner is not None
    assert (winner.config["nproc_per_node"], winner.config["batch"], winner.config["kernel"]) == (8, 8, "b")
    assert comparison is not None
    assert comparison.objective == PAIR[0]
