"""Section of the responses: throughput at each value of each telling parameter, and of two together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchx_cubicml.advisor.responses import joint_response, responses
from torchx_cubicml.cli.report_sections.view import drawn_figures
from torchx_cubicml.launch.messages import best_word
from torchx_cubicml.plots.axis_texts import axis_name, axis_texts, counted_text
from torchx_cubicml.plots.round_figures import objective_text
from torchx_cubicml.records.redaction import mask, printable
from torchx_cubicml.report.figures.cell_grid import BEST, OWN
from torchx_cubicml.report.figures.response_curves import response_curves
from torchx_cubicml.report.figures.response_map import response_map
from torchx_cubicml.report.markup import Html, element, joined
from torchx_cubicml.report.sections.numbers_table import numbers_html

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torchx_cubicml.advisor.responses import Response
    from torchx_cubicml.cli.report_sections.view import WorkloadView
    from torchx_cubicml.records.values import Config

_MOST_PANELS = 9
_LIKELY = 0.5  # probability to fit in memory below which a value is marked


def section(view: WorkloadView) -> Html:
    """Return the figures and their numbers; nothing where no parameter has a known effect."""
    if view.study is None or view.best is None:
        return Html("")
    found = responses(view.study, best=view.best)
    if not found:
        return Html("")
    panels = response_panels(found[:_MOST_PANELS], own=view.own)
    drawn = [response_curves(panels, unit=objective_text(view.objective))]
    if len(found) > 1:
        axes = (found[0].axes[0], found[1].axes[0])
        joint = joint_response(view.study, best=view.best, axes=axes)
        names, texts = [axis_name(axis) for axis in axes], [axis_texts(axis) for axis in axes]
        cells = response_cells(joint, own=view.own)
        drawn.append(response_map(cells, x=texts[0], y=texts[1], names=(names[0], names[1])))
    figures = drawn_figures(drawn, view=view, name="response")
    return joined(
        element("h3", "How throughput responds"),
        element("p", _reading(view.objective, shown=len(panels), total=len(found)), class_="note"),
        figures,
        numbers_html(
            ("parameter", "value", "predicted", "80 % interval", "measured"),
            [_cells(panel, point) for panel in panels for point in panel["points"]],
            is_open=not figures,
        ),
    )


def data(view: WorkloadView) -> list[dict[str, Any]]:
    """Return the plots of one parameter as JSON values, those of most effect first."""
    if view.study is None or view.best is None:
        return []
    return response_panels(responses(view.study, best=view.best), own=view.own)


def response_panels(found: Sequence[Response], *, own: Config | None) -> list[dict[str, Any]]:
    """Return the panels of ``response_curves``.

    Args:
        found: responses to one parameter each.
        own: the user's own config; ``None`` where unknown.
    """
    panels = []
    for response in found:
        (axis,) = response.axes
        texts = axis_texts(axis)
        marks = _marks(response, own)
        points = [
            {
                "value": texts[point.place[0]],
                "predicted": point.predicted,
                "low": point.low,
                "high": point.high,
                "measured": list(point.measured),
                "fits": point.probability_to_fit >= _LIKELY,
                "is_best": point.place == (axis.home,),
                "mark": marks.get(point.place, ""),
            }
            for point in response.points
        ]
        known = {point["value"] for point in points}
        values = [text for text in texts if text in known]
        names = {"name": printable(mask(axis.name)), "detail": counted_text(axis)}
        panels.append({**names, "is_number": axis.is_number, "values": values, "points": points})
    return panels


def response_cells(found: Response, *, own: Config | None) -> list[dict[str, Any]]:
    """Return the cells of ``response_map``; none where the best config itself has no prediction.

    Args:
        found: response to two parameters.
        own: the user's own config; ``None`` where unknown.
    """
    x, y = found.axes
    home = next((point.predicted for point in found.points if point.place == (x.home, y.home)), None)
    if home is None:
        return []
    texts, marks = (axis_texts(x), axis_texts(y)), _marks(found, own)
    return [
        {
            "x": texts[0][point.place[0]],
            "y": texts[1][point.place[1]],
            "ratio": point.predicted / home,
            "low": point.low / home,
            "high": point.high / home,
            "measured": len(point.measured),
            "fits": point.probability_to_fit >= _LIKELY,
            "mark": marks.get(point.place, ""),
        }
        for point in found.points
    ]


def _marks(found: Response, own: Config | None) -> dict[tuple[int | None, ...], str]:
    marks = {tuple(axis.place(own) for axis in found.axes): OWN} if own is not None else {}
    marks[tuple(axis.home for axis in found.axes)] = BEST
    return marks


def _reading(objective: str, *, shown: int, total: int) -> str:
    many = f" The {shown} of most effect of {total} are shown." if shown < total else ""
    return (
        f"Each plot takes the {best_word(objective)} config and changes one parameter, or two. What is filled is "
        f"predicted from all launches of the workload; rings are launches that differ in nothing else.{many}"
    )


def _cells(panel: Mapping[str, Any], point: Mapping[str, Any]) -> tuple[str, ...]:
    low, predicted, high = (f"{point[key]:,.4g}" for key in ("low", "predicted", "high"))
    risk = "" if point["fits"] else ", may not fit"
    measured = ", ".join(f"{each:,.4g}" for each in point["measured"][:3])
    name = ": ".join(filter(None, (panel["name"], panel["detail"])))
    return name, f"{point['value']}{risk}", predicted, f"{low} to {high}", measured
