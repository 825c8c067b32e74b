"""A study per joule learns from the launches whose power was recorded, and from them alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from torchx_cubicml.advisor import Study
from torchx_cubicml.advisor.frontier_search import predicted_frontier
from torchx_cubicml.history.history import History
from torchx_cubicml.records.trial import Trial
from torchx_cubicml.space.toml import parse_space

SPACE = """
objective = "tokens_per_joule"
[parameters.clock]
choices = ["low", "middle", "high"]
flag = "--clock"
[parameters.batch]
choices = [1, 2, 4]
flag = "--batch"
changes_training = true
"""
# A transformer on a known device: its formulas must stay out of it, as they tell seconds alone.
WORKLOAD = {
    "program": "train.py",
    "world_size": 8,
    "n_layers": 32,
    "d_model": 4096,
    "n_params": 7_000_000_000,
    "seq_len": 2048,
    "device": "H100",
    "precision": "bf16",
}
CURRENT = {"clock": "high", "batch": 1}
SPEED = {"low": 0.8, "middle": 0.95, "high": 1.0}
WATTS = {"low": 400.0, "middle": 600.0, "high": 1000.0}


def trial(clock: str, batch: int, number: int, *, has_power: bool = True) -> Trial:
    rate = 40_000.0 * SPEED[clock] * batch**0.2 * (1.0 + 0.002 * (number % 3))
    done = Trial.completed(workload=WORKLOAD, config={"clock": clock, "batch": batch}, tokens_per_second=rate)
    assert done.measurement is not None
    power = {"power_watts": WATTS[clock], "power_of": "GPUs"} if has_power else {}
    return replace(
        done,
        trial_id=f"t{number:02d}",
        measurement=replace(done.measurement, **power),  # type: ignore[arg-type]  # fields of any type
        ended_at=f"2026-01-01T00:{number:02d}:00+00:00",
    )


def study(objective: str, *, has_power: bool = True) -> Study:
    rows = [(clock, batch) for clock in SPEED for batch in (1, 2) for _ in range(2)]
    trials = [trial(clock, batch, number, has_power=has_power) for number, (clock, batch) in enumerate(rows)]
    space = replace(parse_space(SPACE, where="x.toml"), objective=objective)
    return Study.of(space, workload=WORKLOAD, current=CURRENT, trials=trials)


def test_the_best_per_joule_is_not_the_fastest() -> None:
    best = {name: study(name).best_known() for name in ("tokens_per_second", "tokens_per_joule")}
    configs = {name: found.config for name, found in best.items() if found is not None}
    assert configs == {
        "tokens_per_second": {"clock": "high", "batch": 2},
        "tokens_per_joule": {"clock": "low", "batch": 2},
    }
    found = best["tokens_per_joule"]
    assert found is not None
    assert found.objective == "tokens_per_joule"
    assert found.throughput == pytest.approx(40_000 * 0.8 * 2**0.2 / 400, rel=0.05)


def test_a_frontier_has_an_untried_compromise_between_the_two() -> None:
    space = replace(parse_space(SPACE, where="x.toml"), objective="tokens_per_second")
    space = replace(space, second_objective="tokens_per_joule")
    trials = [trial(clock, batch, 2 * batch + place) for place, clock in enumerate(SPEED) for batch in (1, 2)]
    found = predicted_frontier(History(space=space, workload=WORKLOAD, current=CURRENT, trials=trials), seed=0)
    untried = [each.config for each in found.points if (each.launches == 0)]
    assert untried == [{"clock": clock, "batch": 4} for clock in ("high", "middle", "low")]


def test_launches_without_power_tell_nothing_per_joule() -> None:
    blind = study("tokens_per_joule", has_power=False)
    assert blind.posterior.measured() == []
    assert blind.best_known() is None
    assert blind.suggest()
