"""Plots of a space: what its parameters are worth and what fits in memory, against formulas that are known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.plots.simulated import CURRENT, GIVEN, SPACE, WORKLOAD, launches, memory_gib, throughput
from torchx_cubicml import SearchSpace, plot_memory, plot_parameter_worth
from torchx_cubicml.errors import RecordError, SpaceError
from torchx_cubicml.space import Parameter
from torchx_cubicml.space.expression import parse_expression


@pytest.fixture(scope="module")
def trials() -> list[Any]:
    return launches(40)


def cells(figure: Any) -> dict[tuple[str, str], dict[str, Any]]:
    return {(each["x"], each["y"]): each for each in figure.to_dict()["data"]["values"]}


def test_the_loss_by_each_other_value_is_predicted(trials: list[Any]) -> None:
    rows = plot_parameter_worth(SPACE, **GIVEN, trials=trials).to_dict()["data"]["values"]
    best = {row["parameter"]: row["best"] for row in rows}
    assert best.keys() == {"micro_batch_size", "sharding_strategy", "activation_checkpointing", "compile"}
    assert all(row["low"] <= row["predicted"] <= row["high"] for row in rows)
    (compiled,) = (row for row in rows if row["parameter"] == "compile")
    assert (compiled["best"], compiled["value"]) == ("True", "False")
    assert compiled["predicted"] == pytest.approx(1 / 1.15, rel=0.05)
    measured = [row for row in rows if row["measured"] is not None]
    assert measured
    for row in measured:
        home = {name: type(CURRENT[name])(text == "True" if name == "compile" else text) for name, text in best.items()}
        other = {
            **home,
            row["parameter"]: type(CURRENT[row["parameter"]])(row["value"] if row["value"] != "False" else 0),
        }
        assert row["measured"] == pytest.approx(throughput(other) / throughput(home), rel=0.06)


def test_the_boundary_is_where_memory_ends(trials: list[Any]) -> None:
    figure = plot_memory(SPACE, **GIVEN, trials=trials)
    found = cells(figure)
    assert len(found) == 15
    for (batch, strategy), cell in found.items():
        needed = memory_gib({**CURRENT, "micro_batch_size": int(batch), "sharding_strategy": strategy})
        assert (cell["fits"] > 0.5) == (needed <= 80.0), (batch, strategy, needed, cell["fits"])
    x, y = (figure.to_dict()["layer"][0]["encoding"][axis] for axis in "xy")
    assert (x["title"], x["sort"]) == ("micro_batch_size", ["1", "2", "4", "8", "16"])
    assert (y["title"], y["sort"]) == ("sharding_strategy", ["NO_SHARD", "SHARD_GRAD_OP", "FULL_SHARD"])
    assert figure.to_dict()["title"]["subtitle"][1] == "activation_checkpointing=none compile=False"


def test_a_cell_of_launches_says_what_they_measured(trials: list[Any]) -> None:
    found = cells(plot_memory(SPACE, **GIVEN, trials=trials))
    seen = 0
    for trial in trials:
        if {**trial.config, "micro_batch_size": 0, "sharding_strategy": ""} == {
            **CURRENT,
            "micro_batch_size": 0,
            "sharding_strategy": "",
        }:
            cell = found[str(trial.config["micro_batch_size"]), trial.config["sharding_strategy"]]
            assert cell["text"] == (f"{memory_gib(trial.config):.3g} GiB" if trial.measurement else "too large")
            seen += 1
    assert seen >= 5


def test_a_plot_of_one_parameter_and_of_named_ones(trials: list[Any]) -> None:
    one = cells(plot_memory(SPACE, **GIVEN, trials=trials, parameters=["compile"]))
    assert list(one) == [("False", ""), ("True", "")]
    two = cells(plot_memory(SPACE, **GIVEN, trials=trials, parameters=["compile", "micro_batch_size"]))
    assert {key[0] for key in two} == {"False", "True"}
    assert {key[1] for key in two} == {"1", "2", "4", "8", "16"}


def test_illegal_configs_have_no_cell(trials: list[Any]) -> None:
    rule = parse_expression("micro_batch_size < 16", where="constraints")
    found = cells(plot_memory(replace(SPACE, constraints=(rule,)), **GIVEN, trials=trials))
    assert {batch for batch, _ in found} == {"1", "2", "4", "8"}


@pytest.mark.parametrize("names", [["speed"], ["compile", "micro_batch_size", "sharding_strategy"]], ids=str)
def test_wrong_names_are_one_sentence(names: list[str], trials: list[Any]) -> None:
    with pytest.raises(SpaceError, match=r"needs one or two of the free parameters micro_batch_size, .*, got "):
        plot_memory(SPACE, **GIVEN, trials=trials, parameters=names)


def test_an_odd_name_is_no_title_of_an_axis() -> None:
    odd = 'a"] + datum["x'
    space = SearchSpace(parameters=(Parameter(name=odd, choices=(1, 2)),))
    figure = plot_memory(space, workload=WORKLOAD, current={odd: 1}, trials=[])
    assert figure.to_dict()["layer"][0]["encoding"]["x"]["title"] == "first parameter"
    assert "image/svg+xml" in figure._repr_mimebundle_()


def test_a_workload_without_a_measurement_has_no_worth() -> None:
    with pytest.raises(RecordError, match="none of 0 ended trials of this workload measured a config of the space"):
        plot_parameter_worth(SPACE, **GIVEN, trials=[])
