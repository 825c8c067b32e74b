"""Plots of a space: what its parameters are worth and what fits in memory, against formulas that are known."""

from __future__ import annotations

from typing import Any

import pytest

from tests.plots.simulated import CURRENT, GIVEN, SPACE, WORKLOAD, launches, memory_gib, throughput
from torchx_cubicml import SearchSpace, plot_memory, plot_parameter_worth
from torchx_cubicml.errors import RecordError
from torchx_cubicml.report.figures.cell_grid import BEST, OWN
from torchx_cubicml.report.figures.parameter_worth import OVER_OWN
from torchx_cubicml.space import Parameter

VALUES = {str(choice): choice for each in SPACE.parameters for choice in each.choices}


@pytest.fixture(scope="module")
def trials() -> list[Any]:
    return launches(40)


def rate(trial: Any) -> float:
    return trial.throughput("tokens_per_second") or 0.0


def test_each_parameter_is_worth_what_the_formula_says(trials: list[Any]) -> None:
    rows = plot_parameter_worth(SPACE, **GIVEN, trials=trials).to_dict()["data"]["values"]
    changes = {row["parameter"]: tuple(VALUES[text] for text in row["change"].split(" → ")) for row in rows}
    assert changes.keys() == CURRENT.keys()
    best = {name: after for name, (_, after) in changes.items()}
    for row in rows:
        name = row["parameter"]
        before, _ = changes[name]
        assert row["kind"] != OVER_OWN or before == CURRENT[name]
        gain = throughput(best) / throughput({**best, name: before})
        assert row["low"] <= row["gain"] <= row["high"]
        assert row["gain"] == pytest.approx(gain, rel=0.08)
        assert row["measured"] is None or row["measured"] == pytest.approx(gain, rel=0.06)


def test_the_boundary_is_where_memory_ends(trials: list[Any]) -> None:
    figure = plot_memory(SPACE, **GIVEN, trials=trials).to_dict()
    cells = next(layer["data"]["values"] for layer in figure["layer"] if layer["mark"]["type"] == "rect")
    names = [layer["data"]["values"][0]["name"] for layer in figure["layer"] if "name" in layer["data"]["values"][0]]

    def launched_at(cell: dict[str, Any]) -> list[Any]:
        place = {name: VALUES[cell[key]] for name, key in zip(names, "xy", strict=True)}
        return [trial for trial in trials if place.items() <= trial.config.items()]

    (marked,) = (cell for cell in cells if cell["mark"] == BEST)
    best = max(launched_at(marked), key=rate)
    assert rate(best) > 0.97 * max(map(rate, trials))
    for cell in cells:
        place = {name: VALUES[cell[key]] for name, key in zip(names, "xy", strict=True)}
        assert (cell["fits"] > 0.5) == (memory_gib({**best.config, **place}) <= 80.0), cell["label"]
        assert cell["mark"] != OWN or place.items() <= CURRENT.items()
        here = launched_at(cell)
        assert cell["ran"] + cell["failed"] == len(here)
        assert cell["failed"] == sum(trial.measurement is None for trial in here)


def test_a_store_without_launches_has_no_memory_and_no_worth() -> None:
    space = SearchSpace(parameters=(Parameter(name="speed", choices=(1, 2)),))
    given = {"workload": WORKLOAD, "current": {"speed": 1}, "trials": []}
    with pytest.raises(RecordError, match="none of 0 ended trials of this workload measured a config of the space"):
        plot_parameter_worth(space, **given)
    with pytest.raises(RecordError, match="0 ended trials of this workload tell of no parameter with an effect"):
        plot_memory(space, **given)
