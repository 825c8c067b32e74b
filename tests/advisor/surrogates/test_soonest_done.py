"""A study of the time until a job is done: what pays after many steps is not proposed for a few."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from torchx_cubicml.advisor import Study
from torchx_cubicml.advisor.surrogates.base import JointSurrogate
from torchx_cubicml.records.measurement import Measurement
from torchx_cubicml.records.trial import Trial
from torchx_cubicml.space.toml import parse_space

SPACE = """
objective = "soonest_done"
[job]
steps = {steps}
[parameters.compile]
choices = [false, true]
flag = "--compile"
[parameters.threads]
choices = [1, 2, 4]
flag = "--threads"
"""
WORKLOAD = {"program": "train.py", "world_size": 1}
COMPILE_S, QUEUE_S, STARTUP_S = 100.0, 40.0, 12.0
CONFIGS = [(compiled, threads) for compiled in (False, True) for threads in (1, 2, 4)]


def step_s(*, compiled: bool, threads: int) -> float:
    """Return the true seconds of a step: a compiled one is 1.3 times as fast."""
    return 0.2 * threads**-0.3 / (1.3 if compiled else 1.0)


def trials() -> list[Trial]:
    return [
        replace(
            Trial.completed(
                workload=WORKLOAD, config={"compile": compiled, "threads": threads}, samples_per_second=1.0
            ),
            trial_id=f"t{number}-{repeat}",
            observed={"queue_s": QUEUE_S + 6.0 * repeat},
            measurement=Measurement(
                mean_step_time_s=step_s(compiled=compiled, threads=threads) * (1 + 0.002 * repeat),
                statistic="mean",
                startup_s=STARTUP_S + 0.1 * repeat,
                compile_s=COMPILE_S + repeat if compiled else 0.0,
                warmup_s=0.0,
            ),
            ended_at=f"2026-01-01T00:0{number}:0{repeat}+00:00",
        )
        for number, (compiled, threads) in enumerate(CONFIGS)
        for repeat in range(2)
    ]


def study(steps: int, *, compiled: bool = False) -> Study:
    space = parse_space(SPACE.format(steps=steps), where="x.toml")
    return Study.of(space, workload=WORKLOAD, current={"compile": compiled, "threads": 1}, trials=trials())


@pytest.mark.parametrize(("steps", "compiled"), [(1_000, False), (10_000, True)])
def test_a_compiled_config_is_taken_only_for_a_long_job(steps: int, compiled: bool) -> None:
    best = study(steps, compiled=not compiled).best_known()
    assert best is not None
    assert best.config == {"compile": compiled, "threads": 4}
    parts = best.time_to_done
    assert parts is not None
    assert parts["queue_s"] == pytest.approx(43.0)
    assert parts["startup_s"] == pytest.approx(12.05)
    assert parts["compile_s"] == pytest.approx(100.5 if compiled else 0.0)
    assert parts["steps_s"] == pytest.approx(steps * step_s(compiled=compiled, threads=4), rel=0.03)
    assert 1.0 / best.throughput == pytest.approx(sum(parts.values()))
    assert f"then {steps:,} steps in" in best.reason
    assert ("compilation 100 s" in best.reason) == compiled
    true = [
        QUEUE_S + 3 + STARTUP_S + flag * COMPILE_S + steps * step_s(compiled=flag, threads=threads)
        for flag, threads in ((not compiled, 1), (compiled, 4))
    ]
    assert best.gain == pytest.approx(true[0] / true[1], rel=0.03)
    assert "in jobs per day" in best.reason


def test_doubt_of_the_steps_counts_by_their_share() -> None:
    config = {"compile": False, "threads": 4}
    short, long = (study(steps).posterior for steps in (10, 1_000_000))
    rate = long.surrogate.source.forecast([long.rows.of(config)])
    assert long.forecast([config]).spread == pytest.approx(rate.spread, rel=0.01)
    overhead = short.timing.overhead.at([config])
    assert short.forecast([config]).spread == pytest.approx(overhead.doubt_s / (overhead.seconds + 1.3), rel=0.05)


def test_samples_and_ratios_agree_with_the_forecast() -> None:
    posterior = study(3_000).posterior
    assert isinstance(posterior.surrogate, JointSurrogate)
    configs = [{"compile": compiled, "threads": threads} for compiled, threads in CONFIGS]
    forecast = posterior.forecast(configs)
    drawn = posterior.sample(configs, count=4_000, rng=np.random.default_rng(0))
    assert drawn.mean(axis=0) == pytest.approx(forecast.logarithm, abs=0.01)
    assert drawn.std(axis=0) == pytest.approx(forecast.spread, rel=0.15)
    gains = posterior.gains(configs, configs[0])
    assert gains.logarithm == pytest.approx(forecast.logarithm - forecast.logarithm[0], abs=0.01)
    ratios = drawn - drawn[:, :1]
    assert gains.spread[1:] == pytest.approx(ratios.std(axis=0)[1:], rel=0.35)
    assert gains.spread[0] == 0.0


def test_each_search_of_a_tune_sees_the_time_until_done() -> None:
    posterior = study(1_000).posterior
    config = {"compile": True, "threads": 2}
    forecast = posterior.forecast([config]).logarithm
    one = posterior.by_predictor("boosting", rng=np.random.default_rng(0)).forecast([config]).logarithm
    members = [each.forecast([config]).logarithm for each in posterior.ensemble(one=False)]
    sampled = posterior.sample_function(np.random.default_rng(0))(
        np.array([posterior.space.encode(config)], dtype=np.intp)
    ).logarithm
    others = [one, *members, sampled, posterior.optimistic().forecast([config]).logarithm]
    others += [posterior.fantasize([config]).forecast([config]).logarithm]
    assert all(each == pytest.approx(forecast, abs=0.2) for each in others)


def test_the_noise_of_the_throughput_is_learned_and_that_of_the_time_is_shown() -> None:
    text = SPACE.replace("soonest_done", "steps_per_second").replace("[job]\nsteps = {steps}\n", "")
    plain = Study.of(
        parse_space(text, where="x.toml"),
        workload=WORKLOAD,
        current={"compile": False, "threads": 1},
        trials=[replace(each, timed=None) for each in trials()],
    ).posterior
    posterior = study(10).posterior  # overheads take nearly all of the time
    assert posterior.data.noise == pytest.approx(plain.data.noise)
    assert posterior.noise != pytest.approx(plain.noise)
