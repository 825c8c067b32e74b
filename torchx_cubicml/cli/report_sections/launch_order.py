"""Section of the launches: the frontier, predicted against measured, and the rank correlation of each round."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchx_cubicml.plots import round_figures
from torchx_cubicml.predictors.forecast_scores import forecast_scores
from torchx_cubicml.report.markup import Html, element, joined
from torchx_cubicml.report.sections.figures import figures_html

if TYPE_CHECKING:
    from torchx_cubicml.cli.report_sections.view import WorkloadView


def section(view: WorkloadView) -> Html:
    """Return the figures, and a sentence on how well the launches were predicted."""
    rounds = view.rounds
    drawn = round_figures.section(rounds).figures if view.colours is not None else ()
    name = f"figure-{view.place}"
    figures = figures_html(drawn, colours=view.colours, name=name) if view.colours is not None else Html("")
    scores = forecast_scores(rounds.trials, objective=rounds.objective, tune=rounds.tune)
    if scores is None:
        return figures
    of_tune = f"The predictions are those of {rounds.name} in rounds, the latest. " if rounds.name else ""
    return joined(figures, element("p", f"{of_tune}{scores}", class_="note"))


def data(view: WorkloadView) -> dict[str, object]:
    """Return the rounds as JSON values."""
    return view.rounds.table.to_json()
