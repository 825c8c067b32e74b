"""Plots of trials: which workload they draw, what they leave out, and what they say where there is nothing to draw."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.plots.simulated import WORKLOAD, launches
from torchx_cubicml import plot_frontier, plot_predicted
from torchx_cubicml.errors import RecordError


def subtitle(figure: object) -> str:
    return str(figure.to_dict()["title"]["subtitle"])  # type: ignore[attr-defined]  # a figure


def values(figure: object, mark: str) -> list[dict[str, object]]:
    """Return the values of the first layer of a mark."""
    layers = figure.to_dict()["layer"]  # type: ignore[attr-defined]  # a figure
    return next(each["data"]["values"] for each in layers if each["mark"]["type"] == mark and "data" in each)


def test_the_workload_of_most_launches_is_drawn_and_the_others_are_counted() -> None:
    trials = launches()
    others = [replace(trial, workload={**WORKLOAD, "world_size": 16}) for trial in trials[:5]]
    figure = plot_frontier([*others, *trials])
    points = [each["throughput"] for each in values(figure, "point")]
    assert points == [trial.throughput("tokens_per_second") for trial in trials if trial.measurement]
    assert subtitle(figure).startswith("train.py; 24 launches; ")
    assert subtitle(figure).endswith("; 5 trials of other workloads left out")
    assert subtitle(plot_frontier([*others, *trials], workload={"world_size": 16})).startswith("train.py; 5 launches")


def test_predictions_stand_beside_what_was_measured() -> None:
    trials = launches()
    rows = plot_predicted(trials).to_dict()["data"]["values"]
    pairs = [(trial.suggestion["throughput"], trial.throughput("tokens_per_second")) for trial in trials]
    assert [(row["predicted"], row["measured"]) for row in rows] == [pair for pair in pairs if pair[1] is not None]


def test_a_figure_is_in_the_unit_that_is_asked_for() -> None:
    trials = [
        replace(trial, measurement=replace(trial.measurement, samples_per_second=7.0))
        for trial in launches()
        if trial.measurement
    ]
    assert {each["throughput"] for each in values(plot_frontier(trials, objective="samples_per_second"), "point")} == {
        7
    }
    with pytest.raises(RecordError, match="unknown objective 'speed'; choose from"):
        plot_frontier(trials, objective="speed")


@pytest.mark.parametrize(
    ("trials", "workload", "sentence"),
    [
        ([], None, "there is no trial to plot"),
        (launches(3), {"world_size": 4}, "none of 3 trials is of the workload world_size=4"),
        (
            [replace(trial, suggestion=None) for trial in launches(3)],
            None,
            r"no trial of train.py \(3 recorded\) has both a predicted and a measured throughput in tokens per second",
        ),
    ],
    ids=["empty", "other workload", "no prediction"],
)
def test_nothing_to_draw_is_one_sentence(trials: list[object], workload: object, sentence: str) -> None:
    with pytest.raises(RecordError, match=sentence):
        plot_predicted(trials, workload=workload)  # type: ignore[arg-type]  # as parametrised
