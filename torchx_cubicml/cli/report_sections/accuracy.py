"""Section of how the predictions became more accurate: those that were stored with launches, by what was known then."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from torchx_cubicml.cli.report_sections.view import drawn_figures
from torchx_cubicml.launch.messages import rate_text
from torchx_cubicml.predictors.forecast_growth import forecast_errors, growth
from torchx_cubicml.records.redaction import mask, printable
from torchx_cubicml.records.value_text import config_text
from torchx_cubicml.report.figures.forecast_accuracy import forecast_accuracy
from torchx_cubicml.report.markup import Html, element, joined
from torchx_cubicml.report.sections.numbers_table import numbers_html

if TYPE_CHECKING:
    from torchx_cubicml.cli.report_sections.view import WorkloadView
    from torchx_cubicml.predictors.forecast_growth import ForecastError, GrowthGroup

_FEWEST = 8  # predicted and measured launches
_MOST_LETTERS = 160  # of a config beside a point
_READING = (
    "Each prediction was written down before its launch. Beside it stands what was then measured, over the number of "
    "measurements that the workload had by then. The intervals are of the true throughput: they leave out the error "
    "of a single measurement."
)


def section(view: WorkloadView) -> Html:
    """Return the figure and the accuracy by known measurements; nothing for fewer than eight predicted launches."""
    errors = forecast_errors(view.trials, objective=view.objective)
    if len(errors) < _FEWEST:
        return Html("")
    drawn = forecast_accuracy([_row(each, view.objective) for each in errors])
    heads = ("known measurements", "launches", "median error", "Kendall's tau among them", "inside their interval")
    return joined(
        element("h3", "How accurate the predictions became"),
        element("p", _READING, class_="note"),
        drawn_figures([drawn], view=view, name="accuracy"),
        numbers_html(heads, [_cells(group) for group in growth(errors)], is_open=True),
    )


def data(view: WorkloadView) -> list[dict[str, Any]]:
    """Return the accuracy by known measurements as JSON values."""
    return [asdict(group) for group in growth(forecast_errors(view.trials, objective=view.objective))]


def _row(each: ForecastError, objective: str) -> dict[str, Any]:
    low, high = each.interval if each.interval is not None else (0.0, 0.0)
    predicted, measured = (rate_text(value, objective) for value in (each.predicted, each.measured))
    config = printable(mask(config_text(each.trial.config)))[:_MOST_LETTERS]
    return {
        "known": each.known,
        "ratio": each.measured / each.predicted,
        "low": low / each.predicted or None,
        "high": high / each.predicted or None,
        "label": f"{each.known:,} measurements known; predicted {predicted}; measured {measured}; {config}",
    }


def _cells(group: GrowthGroup) -> tuple[str, ...]:
    tau = f"{group.tau:.2f}" if group.tau is not None else ""
    inside = f"{group.inside} of {group.with_interval}" if group.with_interval else ""
    return (f"{group.first:,} to {group.last:,}", f"{group.launches:,}", f"{group.error:.1%}", tau, inside)
