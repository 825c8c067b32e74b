"""Every plot of odd trials: a picture of finite size, or a sentence on why there is nothing to plot."""

from __future__ import annotations

import inspect
import pkgutil
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING

import pytest

from tests.plots.simulated import GIVEN, SPACE, launches
from tests.report.test_odd_data import marks_of
from torchx_cubicml import State, plot_frontier, plot_memory, plot_parameter_worth, plot_predicted, plots
from torchx_cubicml.errors import RecordError
from torchx_cubicml.records.measurement import LEAST_THROUGHPUT, MOST_THROUGHPUT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torchx_cubicml import Trial
    from torchx_cubicml.report.figure import Figure

PLOTS: dict[str, Callable[[list[Trial]], Figure]] = {
    "plot_frontier": plot_frontier,
    "plot_predicted": plot_predicted,
    "plot_parameter_worth": lambda trials: plot_parameter_worth(SPACE, **GIVEN, trials=trials),
    "plot_memory": lambda trials: plot_memory(SPACE, **GIVEN, trials=trials),
}
NOTHING = {"all failed": {"plot_predicted", "plot_parameter_worth"}}
"""Odd trials -> plots that have nothing to show of them."""


def measured_at(trial: Trial, rate: float) -> Trial:
    if trial.measurement is None:
        return trial
    return replace(trial, measurement=replace(trial.measurement, tokens_per_second=rate))


def odd_trials(kind: str) -> list[Trial]:
    trials = launches(8)
    if kind == "one":
        return trials[:1]
    if kind == "all failed":
        return [replace(each, state=State.UNKNOWN, measurement=None, reason="") for each in trials]
    if kind == "equal":
        return [measured_at(each, 5.0) for each in trials]
    rate = {"huge": 0.5 * MOST_THROUGHPUT, "tiny": LEAST_THROUGHPUT}[kind]
    return [measured_at(each, rate * (1 + place % 2)) for place, each in enumerate(trials)]


def plot_functions() -> Iterator[str]:
    """Yield the names of the functions below ``plots`` that return a figure for a notebook."""
    for module in pkgutil.iter_modules(plots.__path__, f"{plots.__name__}."):
        for name, found in inspect.getmembers(import_module(module.name), inspect.isfunction):
            if found.__module__ == module.name and not name.startswith("_"):
                yield from [name] * (found.__annotations__.get("return") == "Figure")


def test_every_plot_is_tried() -> None:
    assert set(plot_functions()) == PLOTS.keys()


@pytest.mark.parametrize("kind", ["one", "all failed", "equal", "huge", "tiny"])
@pytest.mark.parametrize("name", PLOTS)
def test_odd_trials_are_drawn(name: str, kind: str) -> None:
    if name in NOTHING.get(kind, ()):
        with pytest.raises(RecordError, match=r"nothing to plot|has both"):
            PLOTS[name](odd_trials(kind))
        return
    width, height, labels = marks_of(PLOTS[name](odd_trials(kind)).to_dict())
    assert 30 < width < 4000
    assert 30 < height < 4000
    assert labels
