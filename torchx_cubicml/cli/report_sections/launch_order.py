"""Section of the launches: the frontier, predicted against measured, and the rank correlation of each round."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchx_cubicml.plots import round_figures
from torchx_cubicml.predictors.forecast_scores import forecast_scores
from torchx_cubicml.report.markup import Html, element, joined
from torchx_cubicml.report.sections.figures import figures_html

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from torchx_cubicml.cli.report_sections.view import WorkloadView

_LAUNCHES = (
    "Each point is what one launch measured, and the line is the best so far. Shapes on the axis are launches without "
    "a throughput, one for each way to end."
)
_PREDICTIONS = "The predictions were written down before each launch, and are compared with what it then measured."


def section(view: WorkloadView) -> Html:
    """Return the figures, and a sentence on how well the launches were predicted."""
    rounds = view.rounds
    frontier, *compared = round_figures.section(rounds).figures
    scores = forecast_scores(rounds.trials, objective=rounds.objective, tune=rounds.tune)
    of_tune = f"The predictions are those of {rounds.name} in rounds, the latest. " if rounds.name else ""
    said = [element("p", f"{of_tune}{scores}", class_="note")] if scores is not None else []
    first = joined(
        element("h3", "Launches"), element("p", _LAUNCHES, class_="note"), _figures(view, [frontier], "order")
    )
    if not compared and not said:
        return first
    second = _figures(view, compared, "predictions")
    note = element("p", _PREDICTIONS, class_="note")
    return joined(first, element("h3", "Predictions"), note, *said, second)


def _figures(view: WorkloadView, figures: Sequence[Mapping[str, Any]], name: str) -> Html:
    """Return the figures; their descriptions without the renderer."""
    if view.colours is None:
        return joined(*(element("p", str(each["description"])) for each in figures))
    return figures_html(figures, colours=view.colours, name=f"{name}-{view.place}")


def data(view: WorkloadView) -> dict[str, object]:
    """Return the rounds as JSON values."""
    return view.rounds.table.to_json()
