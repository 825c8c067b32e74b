from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from torchx_cubicml.advisor import Study
from torchx_cubicml.advisor.breakdown import Breakdowns
from torchx_cubicml.advisor.breakdown_text import breakdown_json, breakdown_lines
from torchx_cubicml.advisor.first_launch import FirstLaunch
from torchx_cubicml.predictors.roofline import Roofline
from torchx_cubicml.records.trial import Trial
from torchx_cubicml.space import Parameter, SearchSpace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchx_cubicml.records.values import Value

WORKLOAD: dict[str, Value] = {
    "program": "train.py",
    "world_size": 8,
    "n_layers": 32,
    "d_model": 4096,
    "n_heads": 32,
    "seq_len": 4096,
    "vocab_size": 32_000,
    "sharding_strategy": "FULL_SHARD",
    "precision": "bf16",
    "attention_kernel": "flash",
    "device": "NVIDIA A100-SXM4-80GB",
}
SPACE = SearchSpace(parameters=(Parameter(name="micro_batch_size", choices=(1, 2, 4)),))
OWN: dict[str, Value] = {"micro_batch_size": 2}
PREDICTED = re.compile(
    r"Predicted for your config, from formulas and (.*): ([\d,]+) tokens/s "
    r"\(80 % interval: ([\d,]+) to ([\d,]+)\)(; a peak of \d+ GiB \(\d+ to \d+\))?\."
)


def estimated(trials: Sequence[Trial] = (), **facts: Value) -> Breakdowns:
    study = Study.of(SPACE, workload={**WORKLOAD, **facts}, current=OWN, trials=trials)
    return Breakdowns.estimate(study, {"your config": OWN})


def launch(speed: float, micro: int, **facts: Value) -> Trial:
    row = {**WORKLOAD, **facts, "micro_batch_size": micro}
    tokens = speed * float(Roofline().tokens_per_second([row])[0])
    return Trial.completed(workload={**WORKLOAD, **facts}, config={"micro_batch_size": micro}, tokens_per_second=tokens)


def test_a_first_launch_is_predicted_from_public_sources() -> None:
    found = estimated()
    line, held = found.first_launch.lines
    assert breakdown_lines(found)[-2:] == [line, held]
    shares = found.first_launch.held.values()
    assert held == f"Such intervals held {int(100 * min(shares))} % or more of each of 6 public sources left out."
    basis, *numbers, peak = PREDICTED.fullmatch(line).groups()
    assert basis == "7 public sources, no measured launch of yours"
    low, middle, high = (float(number.replace(",", "")) for number in (numbers[1], numbers[0], numbers[2]))
    assert low < middle < high
    assert middle == pytest.approx(Roofline().tokens_per_second([{**WORKLOAD, **OWN}])[0], rel=0.05)
    assert peak
    table = json.loads(json.dumps(breakdown_json(found)))["first_launch"]
    assert (len(table["sources"]), table["n_launches"], table["uncovered"]) == (7, 0, {})
    assert table["throughput"]["your config"] == pytest.approx([low, middle, high], rel=0.05)


@pytest.mark.parametrize(
    ("facts", "what"),
    [({"device": "cpu"}, "the device cpu"), ({"n_layers": 2}, "n_layers of 2 (only 12 to 126)")],
    ids=["device", "size"],
)
def test_nothing_is_claimed_beyond_the_sources(facts: dict[str, Value], what: str) -> None:
    found = estimated(**facts)
    assert found.first_launch.lines == [
        f"No prediction of your config: you have no measured launch, and the public sources tell too little of {what}."
    ]
    assert ("public sources)" in breakdown_lines(found)[0]) == (what != "the device cpu")


def test_launches_of_other_models_count_beside_the_sources() -> None:
    others = [launch(0.5, micro, n_layers=16, program="other.py") for micro in (1, 2, 4)]
    found = estimated(others)
    (line,) = found.first_launch.lines
    basis, middle, low, high, peak = PREDICTED.fullmatch(line).groups()
    assert basis == "3 launches of other workloads and 7 public sources, no measured launch of this workload"
    alone = float(Roofline().tokens_per_second([{**WORKLOAD, **OWN}])[0])
    assert float(middle.replace(",", "")) / alone == pytest.approx(0.5, abs=0.1)
    assert peak is None
    # Launches never make it less sure than none.
    first = estimated().first_launch.throughput["your config"]
    known = [float(number.replace(",", "")) for number in (low, high)]
    assert known[1] / known[0] <= 1.1 * first[2] / first[0]


def test_own_launches_need_no_public_source() -> None:
    found = estimated([launch(0.5, micro) for micro in (1, 4)])
    assert found.first_launch == FirstLaunch()
    assert found.first_launch.lines == []


def test_without_the_prior_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHX_CUBICML_PUBLIC_PRIOR", "off")
    found = estimated()
    assert found.first_launch.lines == []
    assert "formulas' defaults" in breakdown_lines(found)[0]


def test_sources_are_told_where_they_cover_one_device_of_two() -> None:
    known, unknown = ({**OWN, "device": name} for name in (WORKLOAD["device"], "Foo chip"))
    rows = {name: {**WORKLOAD, **config} for name, config in {"your config": known, "next launch": unknown}.items()}
    predicted, lacking, _ = FirstLaunch.by_public_prior(rows).lines
    assert PREDICTED.fullmatch(predicted).group(1) == "7 public sources, no measured launch of yours"
    assert lacking.startswith("No prediction of next launch: ")
    assert lacking.endswith("too little of the device Foo chip.")


def test_memory_is_told_where_the_throughput_is_not() -> None:
    facts: dict[str, Value] = {"world_size": 16, "tp_degree": 16, "sharding_strategy": "NO_SHARD"}
    (line,) = FirstLaunch.by_public_prior({"your config": {**WORKLOAD, **OWN, **facts}}).lines
    assert "too little of tensor parallelism across nodes; a peak of " in line
