"""Where the time of a step and the memory of a device go: parts, what they rest on, and how that is said."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from itertools import takewhile
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchx_cubicml.advisor import Study
from torchx_cubicml.advisor.breakdown import Basis, Breakdown, Breakdowns
from torchx_cubicml.advisor.breakdown_text import breakdown_json, breakdown_lines
from torchx_cubicml.predictors.roofline import Roofline
from torchx_cubicml.predictors.roofline.step_time import EXPLAINED_PARTS
from torchx_cubicml.records.measurement import Measurement
from torchx_cubicml.records.trial import State, Trial
from torchx_cubicml.space import Parameter, SearchSpace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchx_cubicml.records.values import Config, Value

WORKLOAD: dict[str, Value] = {
    "program": "train.py",
    "world_size": 8,
    "n_layers": 4,
    "d_model": 1024,
    "seq_len": 1024,
    "vocab_size": 32_000,
    "device": "NVIDIA A100-SXM4-80GB",
    "attention_kernel": "flash",
}
SPACE = SearchSpace(
    parameters=(
        Parameter(name="micro_batch_size", choices=(1, 2, 4, 8)),
        Parameter(name="sharding_strategy", choices=("FULL_SHARD", "NO_SHARD"), per_layer="n_layers"),
    )
)
OWN: dict[str, Value] = {"micro_batch_size": 2, "sharding_strategy": ("FULL_SHARD",) * 4}
OTHER: dict[str, Value] = {"micro_batch_size": 8, "sharding_strategy": ("NO_SHARD", "FULL_SHARD") * 2}
SLOWER = 1.7  # than the formulas' defaults say


def launch(config: Config, *, seconds: float = 1.0, **facts: Value) -> Trial:
    """Return a launch whose step takes ``seconds`` times what the formulas' defaults say, and 1.5 times the memory."""
    row = {**WORKLOAD, **facts, **config}
    step_s = seconds * sum(Roofline().explain(row).values())
    peak = sum(float(size[0]) for size in Roofline().memory([row]).values()) / 2**30
    tokens = config["micro_batch_size"] * 8 * 1024
    return Trial(
        trial_id="t",
        workload={**WORKLOAD, **facts},
        config=config,
        state=State.COMPLETED,
        measurement=Measurement(
            tokens_per_second=tokens / step_s,
            mean_step_time_s=step_s,
            statistic="mean",
            relative_error=0.01,
            peak_memory_gib=1.5 * peak,
        ),
    )


def study(trials: Sequence[Trial], workload: dict[str, Value] | None = None) -> Study:
    named = [replace(trial, trial_id=f"t{number}") for number, trial in enumerate(trials)]
    return Study.of(SPACE, workload=WORKLOAD if workload is None else workload, current=OWN, trials=named)


def test_parts_are_calibrated_on_the_launches_of_the_workload() -> None:
    measured = [launch({**OWN, "micro_batch_size": size}, seconds=SLOWER) for size in (1, 2, 4, 8)]
    found = Breakdowns.estimate(study(measured), {"your config": OWN, "proposed 1": OTHER})
    own, other = found.of.values()
    assert own.measured_s == pytest.approx(SLOWER * sum(Roofline().explain({**WORKLOAD, **OWN}).values()))
    assert own.step_s == pytest.approx(own.measured_s, rel=0.1)
    assert own.peak_gib == pytest.approx(own.measured_gib, rel=0.05)
    assert (other.measured_s, other.measured_gib) == (None, None)
    assert other.step_s == pytest.approx(SLOWER * sum(Roofline().explain({**WORKLOAD, **OTHER}).values()), rel=0.3)
    assert (found.time.n_launches, found.time.are_own) == (found.memory.n_launches, found.memory.are_own) == (4, True)
    assert found.time.error is not None
    assert found.time.error < 0.1


def test_without_a_launch_the_formulas_have_their_defaults() -> None:
    found = Breakdowns.estimate(study([]), {"your config": OWN})
    assert found.time == found.memory == Basis()
    assert found.of["your config"].seconds == Roofline().explain({**WORKLOAD, **OWN})
    text = "\n".join(breakdown_lines(found))
    assert text.count("estimated from the formulas and 7 public sources") == 1
    assert text.count("estimated from the formulas' defaults") == 1


def test_launches_of_other_workloads_calibrate_a_new_one() -> None:
    others = [launch({**OWN, "micro_batch_size": size}, seconds=SLOWER, n_layers=4, program="b") for size in (1, 4)]
    found = Breakdowns.estimate(study(others), {"your config": OWN})
    assert (found.time.n_launches, found.time.are_own) == (2, False)
    assert found.of["your config"].measured_s is None
    assert "of 2 launches of other workloads" in breakdown_lines(found)[0]


def test_a_workload_without_the_facts_has_no_estimate_and_says_what_lacks() -> None:
    workload = {name: WORKLOAD[name] for name in ("program", "world_size", "n_layers")}
    found = Breakdowns.estimate(study([], workload), {"your config": OWN})
    assert not found.of
    (line,) = breakdown_lines(found)
    assert line == (
        "No estimate of where time and memory go: the formulas, which are for transformers and recommenders, lack "
        "d_model, seq_len "
        "(a recorded launch or [workload] of the space file may tell)."
    )
    assert breakdown_json(found)["missing"] in line


def test_a_step_is_known_from_throughput_alone() -> None:
    measured = [launch({**OWN, "micro_batch_size": size}, seconds=SLOWER) for size in (1, 2, 4)]
    own_s = 1.0 / measured[1].measurement.steps_per_second
    imported = [
        replace(trial, measurement=Measurement(tokens_per_second=trial.measurement.tokens_per_second))
        for trial in measured
    ]
    per_sample = [
        replace(
            trial,
            measurement=replace(
                trial.measurement,
                tokens_per_second=None,
                samples_per_second=trial.measurement.tokens_per_second / 1024,
            ),
        )
        for trial in imported
    ]
    for trials in (imported, per_sample):
        found = Breakdowns.estimate(study(trials), {"your config": OWN})
        assert found.of["your config"].measured_s == pytest.approx(own_s)
        assert found.of["your config"].step_s == pytest.approx(own_s, rel=0.1)
        assert found.time.error is not None


SIZES = st.sampled_from((1, 2, 4, 8))
LAYERS = st.tuples(*[st.sampled_from(("FULL_SHARD", "NO_SHARD"))] * 4)


@lru_cache
def studied(n_launches: int) -> Study:
    """Return a study of launches whose steps take ever longer than the formulas' defaults say."""
    configs: list[Config] = [OWN, OTHER, {**OWN, "micro_batch_size": 4}]
    return study([launch(config, seconds=1.0 + at) for at, config in enumerate(configs[:n_launches])])


@settings(max_examples=20)
@given(n_launches=st.integers(0, 3), size=SIZES, layers=LAYERS)
def test_parts_add_up_and_none_is_negative(n_launches: int, size: int, layers: tuple[str, ...]) -> None:
    config: dict[str, Value] = {"micro_batch_size": size, "sharding_strategy": layers}
    found = Breakdowns.estimate(studied(n_launches), {"your config": OWN, "proposed 1": config})
    for each in found.of.values():
        assert tuple(each.seconds) == EXPLAINED_PARTS
        assert all(part >= 0.0 for part in (*each.seconds.values(), *each.memory_gib.values()))
        assert each.step_s == pytest.approx(sum(each.seconds.values()))
        assert each.step_s > 0.0 < each.peak_gib
    heading, *rows = takewhile(lambda line: line.startswith(" "), breakdown_lines(found)[1:])
    assert heading.split() == ["your", "config", "proposed", "1"]
    assert len({len(line) for line in (heading, *rows)}) == 1  # aligned
    assert rows[0].split()[0] == "measured"
    for column in (-2, -1):
        total, *parts = (float(line.split()[column].replace(",", "")) for line in rows[1:])
        assert sum(parts) == pytest.approx(total, rel=0.02)


def test_the_measured_time_between_steps_is_the_median_of_the_launches() -> None:
    shares = (0.02, 0.3, 0.04, None)
    launches = [launch(OWN) for _ in shares]
    told = [
        replace(each, measurement=replace(each.measurement, share_outside_steps=share))
        for each, share in zip(launches, shares, strict=True)
    ]
    own, other = Breakdowns.estimate(study(told), {"your config": OWN, "proposed 1": OTHER}).of.values()
    assert (own.measured_outside, other.measured_outside) == (0.04, None)


def test_small_parts_are_shown_as_other() -> None:
    parts = Breakdown(seconds={"compute": 2.0, "optimizer": 0.01, "bubble": 0.0}, memory_gib={}, measured_s=1.9)
    lines = breakdown_lines(Breakdowns(of={"your config": parts}, time=Basis(n_launches=3, error=0.05)))
    assert lines == [
        "Where the time of a step goes, in seconds "
        "(estimated from the step of 3 launches, with a median error of 5 %; parts are not measured):",
        "               your config",
        "    measured           1.9",
        "    estimated         2.01",
        "    compute              2",
        "    other             0.01",
    ]


def test_many_configs_fit_a_narrow_terminal() -> None:
    parts = dict.fromkeys(EXPLAINED_PARTS, 1.0)
    names = ["your config", "next launch", *(f"proposed {number}" for number in range(1, 8))]
    lines = breakdown_lines(Breakdowns(of={name: Breakdown(seconds=parts, memory_gib={}) for name in names}))[1:]
    assert max(map(len, lines)) <= 80
    assert [len(line.split()) for line in lines if line.startswith("    estimated")] == [1 + 4, 1 + 4, 1 + 1]
    assert [name for name in names if not any(name in line for line in lines)] == []


def test_json_holds_every_part() -> None:
    found = Breakdowns.estimate(study([launch(OWN)]), {"your config": OWN})
    payload = breakdown_json(found)
    own = payload["configs"]["your config"]
    assert tuple(own["seconds"]) == EXPLAINED_PARTS
    assert own["step_s"] == pytest.approx(sum(own["seconds"].values()))
    assert own["peak_gib"] == pytest.approx(sum(own["memory_gib"].values()))
    assert payload["time_estimated_from"]["n_launches"] == 1
    assert own["hidden_seconds"]["data_parallel"] > 0.0
    assert own["measured_share_outside_steps"] is None
    assert payload["missing"] == ""


@pytest.mark.parametrize(("error", "is_told"), [(0.05, True), (0.4, True), (0.5, False), (0.99, False), (3.0, False)])
@pytest.mark.parametrize(("of", "what"), [("time", "the time of a step"), ("memory", "the memory of a device")])
def test_an_estimate_that_misses_its_launches_is_not_told(error: float, is_told: bool, of: str, what: str) -> None:
    parts = Breakdown(seconds={"compute": 1.0}, memory_gib={"parameters": 1.0})
    lines = breakdown_lines(Breakdowns(of={"a": parts}, **{of: Basis(n_launches=9, error=error)}))
    told = f"No estimate of where {what} goes: its median error on launches is {100 * error:.0f} %."
    assert (told in lines) is not is_told
    assert any(line.startswith(f"Where {what} goes") for line in lines) is is_told
