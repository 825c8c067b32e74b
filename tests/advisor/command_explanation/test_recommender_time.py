"""Step time of recommenders before a launch: by formulas alone, then calibrated on launches of other sizes."""

from __future__ import annotations

import math

import numpy as np
import pytest

from torchx_cubicml.advisor.command_explanation.explanation import explain_command
from torchx_cubicml.advisor.command_explanation.history_rows import HistoryRows
from torchx_cubicml.advisor.command_explanation.recommender_forecast import RecommenderTimeForecast
from torchx_cubicml.launch.command_facts.command_facts import CommandFacts
from torchx_cubicml.predictors.roofline.recommender_layout import RecommenderLayout
from torchx_cubicml.predictors.roofline.recommender_predictor import RecommenderRoofline
from torchx_cubicml.records.trial import Trial
from torchx_cubicml.records.values import Value

Row = dict[str, Value]
ROW: Row = {
    "embedding_rows": (100_000, 1000),
    "embedding_dims": (64, 16),
    "embedding_pooling": (2.0, 1.0),
    "embedding_sharding": ("table_wise", "table_wise"),
    "layer_n_params": (10_000, 2000),
    "sharding_strategy": "DDP",
    "micro_batch_size": 256,
    "world_size": 2,
    "device": "cpu",
}


def trials(count: int, *, slower: float) -> list[Trial]:
    """Launches on a machine that takes ``slower`` times what the formulas say, with 5 % of noise."""
    rng = np.random.default_rng(1)
    found = []
    for _ in range(count):
        row = {**ROW, "micro_batch_size": int(2 ** rng.integers(5, 12)), "program": "dlrm.py"}
        rate = float(RecommenderRoofline().samples_per_second([row])[0]) / slower * math.exp(rng.normal(0.0, 0.05))
        found.append(Trial.completed(workload=row, config={}, samples_per_second=rate))
    return found


def seconds(row: Row) -> float:
    return float(np.sum(list(RecommenderRoofline().parts(RecommenderLayout.from_rows([row])).values())))


def test_formulas_alone_are_wide_and_centred_on_the_formulas() -> None:
    found = RecommenderTimeForecast.of(ROW, HistoryRows()).log_step(ROW)
    assert found is not None
    assert found.logarithm == pytest.approx(math.log(seconds(ROW)))
    assert 1.0 < found.spread < 2.5


def test_launches_of_other_sizes_move_and_narrow_it_and_more_so_those_of_the_program() -> None:
    found = {}
    for program in ("dlrm.py", "other.py"):
        row = {**ROW, "program": program}
        forecast = RecommenderTimeForecast.of(row, HistoryRows.of(trials(20, slower=4.0), row))
        found[program] = forecast.log_step(row)
        assert "20 launches of recommenders" in forecast.basis
    own, other = found["dlrm.py"], found["other.py"]
    assert own is not None
    assert other is not None
    assert own.logarithm == pytest.approx(math.log(4.0 * seconds(ROW)), abs=0.15)
    assert own.spread < 0.3
    assert 0.5 < other.spread < 1.2


def test_doubt_of_a_change_is_smaller_than_that_of_the_step() -> None:
    forecast = RecommenderTimeForecast.of(ROW, HistoryRows())
    step, gain = forecast.log_step(ROW), forecast.log_gain(ROW, {**ROW, "micro_batch_size": 512})
    assert step is not None
    assert gain is not None
    assert 0.0 < gain.logarithm < math.log(2.0)
    assert gain.spread < 0.5 * step.spread


def test_explanation_of_a_recommender_tells_its_unit_parts_and_what_the_planner_may_do() -> None:
    facts = {**ROW, "embedding_sharding": ("planner", "planner"), "n_params": 6_428_000}
    known = CommandFacts(facts=facts, sources=dict.fromkeys(facts, "--fact"))
    launches = trials(20, slower=4.0)
    found = explain_command(known, program="dlrm.py", trials=launches, device_gib=8.0)
    assert found.unit == "samples_per_second"
    assert found.parameters is not None
    assert found.parameters.middle == 6_428_000
    assert found.step_s is not None
    assert sum(found.seconds.values()) == pytest.approx(found.step_s.middle)
    assert found.peak_gib is not None
    assert sum(found.memory_gib.values()) == pytest.approx(found.peak_gib.middle)
    assert found.fits is not None
    assert found.fits > 0.99
    assert "2 tables" in found.unknown["embedding_plan"]
    known = CommandFacts(facts=dict(ROW), sources=dict.fromkeys(ROW, "--fact"))
    planned = explain_command(known, program="dlrm.py", trials=launches)
    assert planned.step_s is not None
    assert "embedding_plan" not in planned.unknown
    assert planned.step_s.high / planned.step_s.low <= found.step_s.high / found.step_s.low
    assert len(found.changes) == 3
    assert {*found.changes[0].after} <= {"micro_batch_size", "world_size", "nnodes", "embedding_sharding"}


def test_a_step_of_an_unknown_machine_is_not_told() -> None:
    found = explain_command(CommandFacts(facts=dict(ROW), sources=dict.fromkeys(ROW, "--fact")))
    assert found.step_s is None
    assert "no launch on such a device is recorded" in found.why_no_step


def test_without_tables_nothing_is_forecast() -> None:
    forecast = RecommenderTimeForecast.of(ROW, HistoryRows())
    bare = {name: value for name, value in ROW.items() if not name.startswith("embedding")}
    assert forecast.log_step(bare) is None
    assert forecast.log_gain(ROW, bare) is None
    assert forecast.parts(bare, 1.0) == {}
