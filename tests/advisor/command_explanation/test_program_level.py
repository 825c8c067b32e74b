"""Intervals of step times after earlier launches, in simulated stores whose spread is known."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from torchx_cubicml.advisor.command_explanation.history_rows import HistoryRows
from torchx_cubicml.advisor.command_explanation.program_level import ProgramLevel
from torchx_cubicml.advisor.command_explanation.program_spread import new_program_doubt
from torchx_cubicml.advisor.command_explanation.time_forecast import TimeForecast
from torchx_cubicml.predictors.roofline import Roofline
from torchx_cubicml.records.trial import Trial
from torchx_cubicml.records.values import Value

Row = dict[str, Value]
PROGRAMS = ("a.py", "b.py", "c.py")
OTHERS = tuple(f"{letter}.py" for letter in "bcdef")
TOLD: Row = {"seq_len": 128, "vocab_size": 4096, "world_size": 1, "device": "cpu", "precision": "fp32"}
UNTOLD: Row = {"torch_version": "2.9.0", "python_version": "3.11.7", "cpu": "a kind", "optimizer": "AdamW"}
Z = 1.2816


def rows(rng: np.random.Generator, program: str, count: int) -> list[Row]:
    """Facts as commands tell them."""
    return [
        {
            **TOLD,
            "program": program,
            "n_layers": int(rng.integers(1, 12)),
            "d_model": int(rng.choice([128, 256, 512])),
            "micro_batch_size": int(rng.choice([1, 4, 16])),
        }
        for _ in range(count)
    ]


def launches(
    rng: np.random.Generator, given: list[Row], *, factor: float, noise: float, project: str = "p"
) -> list[Trial]:
    """Launches that take ``factor`` times what the formulas say, with log-normal noise; they record more facts."""
    rates = Roofline().tokens_per_second(given) / factor * np.exp(rng.normal(0.0, noise, len(given)))
    workloads = [{**row, "project": (f"{project}:src",)} for row in given]
    return [
        replace(Trial.completed(workload=each, config={}, tokens_per_second=float(rate)), observed=UNTOLD)
        for each, rate in zip(workloads, rates, strict=True)
    ]


def misses(forecast: TimeForecast, asked: list[Trial], given: list[Row]) -> list[float]:
    """Errors of the logarithms of step times over the spread that was told."""
    found = []
    for trial, row in zip(asked, given, strict=True):
        step, rate = forecast.log_step(row), trial.throughput("tokens_per_second")
        assert step is not None
        assert rate is not None
        work = float(TOLD["seq_len"]) * float(row["micro_batch_size"])  # type: ignore[arg-type]  # numbers
        found.append((math.log(work / rate) - step.logarithm) / step.spread)
    return found


def test_intervals_hold_about_four_fifths_of_the_launches_of_a_program_that_is_noisier_than_others() -> None:
    missed: dict[str, list[float]] = {"a.py": [], "b.py": []}
    for seed in range(10):
        rng = np.random.default_rng(seed)
        factors = np.exp(rng.normal(0.0, 0.4, len(PROGRAMS)))
        known, asked = [], {}
        for program, factor, noise in zip(PROGRAMS, factors.tolist(), (0.3, 0.05, 0.1), strict=True):
            given = rows(rng, program, 25)
            made = launches(rng, given, factor=factor, noise=noise)
            known += made[:15]
            asked[program] = (made[15:], given[15:])
        for program in missed:
            row = asked[program][1][0]
            missed[program] += misses(TimeForecast.of(row, HistoryRows.of(known, row)), *asked[program])
    for found in missed.values():
        assert 0.68 <= float(np.mean(np.abs(found) < Z)) <= 0.95  # 100 seeded draws of each


@pytest.mark.parametrize("n_groups", [1, 3, 10])
def test_doubt_of_a_new_program_holds_four_fifths_of_levels_as_spread_as_the_prior(n_groups: int) -> None:
    rng = np.random.default_rng(0)
    held = []
    for _ in range(1000):
        levels = rng.normal(0.0, 0.5, n_groups)
        others = (levels.sum() - levels) / max(n_groups - 1, 1)
        misses_of_groups = (levels - others).tolist() if n_groups > 1 else []
        new = rng.normal(0.0, 0.5)
        held.append(abs(new - levels.mean()) <= Z * new_program_doubt(misses_of_groups, n_groups=n_groups))
    assert 0.77 <= float(np.mean(held)) <= 0.92  # 1000 seeded draws; few groups leave the variance in doubt, too


def test_intervals_of_a_program_without_launches_hold_the_spread_between_those_of_others() -> None:
    missed = []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        known = [
            trial
            for program in OTHERS
            for trial in launches(rng, rows(rng, program, 3), factor=math.exp(rng.normal(0.0, 0.8)), noise=0.1)
        ]
        given = rows(rng, "a.py", 12)
        forecast = TimeForecast.of(given[0], HistoryRows.of(known, given[0], project=("p:src",)))
        for row in given:
            made = launches(rng, [row], factor=math.exp(rng.normal(0.0, 0.8)), noise=0.1)
            missed += misses(forecast, made, [row])
    assert 0.7 <= float(np.mean(np.abs(missed) < Z)) <= 0.97  # 72 seeded draws of 6 stores


def test_programs_of_one_project_tell_little_of_those_of_another() -> None:
    rng = np.random.default_rng(0)
    known = [trial for each in OTHERS for trial in launches(rng, rows(rng, each, 3), factor=1.0, noise=0.05)]
    (row,) = rows(rng, "a.py", 1)
    near, far = (HistoryRows.of(known, row, project=(f"{name}:src",)) for name in ("p", "q"))
    assert (len({*near.groups}), len({*far.groups})) == (len(OTHERS), 1)
    doubts = [TimeForecast.of(row, each).level for each in (near, far)]
    assert doubts[0] is not None
    assert doubts[1] is not None
    assert doubts[0].doubt < 0.6 * doubts[1].doubt


def test_a_fact_that_no_command_tells_is_not_new_to_a_program_with_launches() -> None:
    rng = np.random.default_rng(0)
    made = launches(rng, rows(rng, "a.py", 30), factor=1.5, noise=0.05)
    (row,) = rows(rng, "a.py", 1)
    told = TimeForecast.of(row, HistoryRows.of(made, row)).log_step({**row, **UNTOLD})
    untold = TimeForecast.of(row, HistoryRows.of(made, row)).log_step(row)
    other = TimeForecast.of(row, HistoryRows.of(made, row)).log_step({**row, "torch_version": "3.0.0"})
    assert told is not None
    assert untold is not None
    assert other is not None
    assert untold.spread == pytest.approx(told.spread)
    assert other.spread > told.spread


def test_one_launch_of_the_program_moves_the_forecast_and_many_settle_it() -> None:
    doubts = []
    for count in (0, 1, 10):
        level = ProgramLevel.of(np.full(count, 1.0), np.zeros(count), 0.3)
        doubts.append(level.doubt)
        assert level.offset <= 1.0
    assert doubts[0] == 0.5
    assert 0.2 < doubts[1] < 0.3
    assert doubts[2] < 0.1
    noisy = ProgramLevel.of(np.ones(1), np.ones(1), 0.3)
    assert noisy.offset < 0.5 * ProgramLevel.of(np.ones(1), np.zeros(1), 0.3).offset
    assert replace(noisy, doubt=0.4, error=0.3).spread == pytest.approx(0.5)
