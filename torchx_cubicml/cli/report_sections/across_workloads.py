"""Top of a report of several workloads: their index, what was learned across them, and their scale curves."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from torchx_cubicml.cli.report_sections.workload_summary import summary_of_workload
from torchx_cubicml.errors import CubicMLError
from torchx_cubicml.launch.messages import rate_text
from torchx_cubicml.plots.round_figures import objective_text
from torchx_cubicml.plots.scale_rows import scale_lines
from torchx_cubicml.plots.winning_values import winning_values
from torchx_cubicml.records.redaction import mask, printable
from torchx_cubicml.records.value_text import config_text, value_text
from torchx_cubicml.records.workload import value_key
from torchx_cubicml.report.figures.scale_curves import MOST_LINES, scale_efficiency, scale_throughput
from torchx_cubicml.report.markup import Html, element, joined
from torchx_cubicml.report.sections.figures import figures_html
from torchx_cubicml.report.sections.numbers_table import numbers_html
from torchx_cubicml.report.sections.workload_index import IndexRow, index_html

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from torchx_cubicml.cli.report_sections.view import WorkloadView
    from torchx_cubicml.cli.report_sections.workload_summary import WorkloadSummary
    from torchx_cubicml.plots.scale_rows import ScaleLine
    from torchx_cubicml.plots.winning_values import WinningValue

_MOST_VALUES = 24  # rows of the table of winning values
_PER_PARAMETER = 3
_MOST_LETTERS = 60  # of a name or a value
_GRADED_WORKLOADS, _GRADED_TRIALS, _FEWEST_TRIALS = 8, 60, 5  # left out in turn; trials of each; of one that is graded
_MOST_SCALE_ROWS = 120


def across_workloads(views: Sequence[WorkloadView], *, chapters: int, predictor: str) -> Html:
    """Return the top of the page.

    Args:
        views: of all workloads, those of most launches first.
        chapters: number of them with a chapter on the page.
        predictor: name of the chosen predictor.
    """
    summaries = [summary_of_workload(view) for view in views]
    return joined(
        index_html(_index_rows(summaries), chapters=chapters),
        *(part for part in (_learned(views, predictor=predictor), _scale(views)) if part),
    )


def across_data(views: Sequence[WorkloadView], *, predictor: str) -> dict[str, Any]:
    """Return the same as JSON values."""
    return {
        "winning_values": [
            {"parameter": each.parameter, "value": each.value, "wins": each.wins, "workloads": each.workloads}
            | {"wins_by_chance": each.by_chance}
            for each in _winning(views)
        ],
        "tau_on_left_out_workloads": _grade(views, predictor),
        "scale": [
            {
                "program": line.program,
                "facts": line.facts,
                "objective": line.objective,
                "points": [
                    {"devices": point.devices, "throughput": point.throughput, "efficiency": point.efficiency}
                    | {"configs": point.configs, "config": dict(point.trial.config), "trial_id": point.trial.trial_id}
                    for point in line.points
                ],
            }
            for line in _lines(views)
        ],
    }


def _index_rows(summaries: Sequence[WorkloadSummary]) -> list[IndexRow]:
    """Return the rows; the facts in which workloads differ stand first."""
    values = [{name: value_key(value) for name, value in each.workload.items()} for each in summaries]
    names = dict.fromkeys(name for facts in values for name in facts)
    differ = {name for name in names if len({facts.get(name) for facts in values}) > 1}
    return [_index_row(each, differ) for each in summaries]


def _index_row(each: WorkloadSummary, differ: Collection[str]) -> IndexRow:
    return IndexRow(
        name=each.name,
        facts=each.facts_text(first=differ),
        best=rate_text(each.throughput, each.objective) if each.throughput is not None else "",
        gain=f"{each.gain:.2f}x" if each.gain is not None else "",
        is_claimed=each.is_claimed,
        launches=each.launches,
        failures=each.failures,
        course=each.best_so_far,
    )


def _winning(views: Sequence[WorkloadView]) -> list[WinningValue]:
    return winning_values((view.objective, view.best, view.trials) for view in views)


def _lines(views: Sequence[WorkloadView]) -> list[ScaleLine]:
    return scale_lines((view.objective, view.trials) for view in views)


def _learned(views: Sequence[WorkloadView], *, predictor: str) -> Html:
    """Return the values that win across workloads, and how well workloads predict one another."""
    parts = [*_values_html(_winning(views)), *_graded_html(_grade(views, predictor))]
    if not parts:
        return Html("")
    return element("section", element("h2", "Across workloads"), *parts)


def _values_html(found: Sequence[WinningValue]) -> list[Html]:
    kept: list[WinningValue] = []
    for each in found:
        if each.wins and sum(other.parameter == each.parameter for other in kept) < _PER_PARAMETER:
            kept.append(each)
    if not kept:
        return []
    reading = (
        "In how many workloads the best measured config has each value. Only workloads count in which another value of "
        "the parameter was measured, too. Beside it, the number to expect if each measured config were equally likely "
        f"the best. Up to {_PER_PARAMETER} values of a parameter are listed."
    )
    cut = f" {len(kept) - _MOST_VALUES} more rows are left out." if len(kept) > _MOST_VALUES else ""
    rows = [
        (
            f"{_short(each.parameter)} = {_short(value_text(each.value))}",
            f"{each.wins} of {each.workloads}",
            f"{each.wins / each.workloads:.0%}",
            f"{each.by_chance:.1f}",
        )
        for each in kept[:_MOST_VALUES]
    ]
    table = numbers_html(
        ("value", "best in workloads", "share", "by chance"), rows, is_open=True, label="Winning values"
    )
    return [element("h3", "Values that win"), element("p", reading + cut, class_="note"), table]


def _grade(views: Sequence[WorkloadView], predictor: str) -> dict[str, Any] | None:
    """Return Kendall's tau on workloads that were left out in turn, of a bounded sample; ``None`` without one."""
    from torchx_cubicml.predictors import DEFAULT_PREDICTOR, PREDICTORS
    from torchx_cubicml.predictors.evaluation import evaluate

    name = predictor if predictor in PREDICTORS else DEFAULT_PREDICTOR
    objective = views[0].objective
    sample, graded = [], 0
    for view in views:
        measured = [trial for trial in view.trials if trial.throughput(objective) is not None]
        if view.objective != objective or len(measured) < _FEWEST_TRIALS or graded == _GRADED_WORKLOADS:
            continue
        step = max(1.0, (len(measured) - 1) / (_GRADED_TRIALS - 1))
        sample += [measured[round(place * step)] for place in range(min(len(measured), _GRADED_TRIALS))]
        graded += 1
    if graded < 2:
        return None
    try:
        card = evaluate(sample, split="workload", predictor=name, objective=objective)
    except CubicMLError:
        return None
    if math.isnan(card.tau):
        return None
    return {
        "predictor": name,
        "tau": card.tau,
        "median_error": card.median_error,
        "workloads": graded,
        "trials": len(sample),
    }


def _graded_html(graded: dict[str, Any] | None) -> list[Html]:
    if graded is None:
        return []
    text = (
        f"Kendall's tau between predicted and measured throughput is {graded['tau']:.2f} for launches of a workload "
        f"that the predictor {graded['predictor']} has not seen. Each of {graded['workloads']} workloads was left out "
        f"in turn, and the mean is given. The median error is {graded['median_error']:.0%}. This used "
        f"{graded['trials']:,} measured launches, up to {_GRADED_TRIALS} of each workload."
    )
    return [element("h3", "How well workloads predict one another"), element("p", text)]


def _scale(views: Sequence[WorkloadView]) -> Html:
    """Return the scale curves of all workloads; nothing where no program ran at two scales."""
    lines = _lines(views)
    if not lines:
        return Html("")
    objective = lines[0].objective
    drawn = [line for line in lines if line.objective == objective][:MOST_LINES]
    names = _names(drawn)
    rows = [
        {"series": name, "devices": point.devices, "throughput": point.throughput, "efficiency": point.efficiency}
        | {"config": _short(config_text(point.trial.config), 120)}
        for name, line in zip(names, drawn, strict=True)
        for point in line.points
    ]
    colours = views[0].colours
    figures = [scale_throughput(rows, unit=objective_text(objective)), scale_efficiency(rows)]
    shown = [figure for figure in figures if figure is not None]
    more = f" The {len(drawn)} programs of most scales are drawn, of {len(lines)}." if len(lines) > len(drawn) else ""
    reading = (
        "Workloads that agree in all facts but the number of devices are one line. Each point is the best measured "
        "launch at that scale, so scales with few measured configs may look worse than they are. The efficiency is the "
        f"throughput per device, relative to the smallest scale of the same line.{more}"
    )
    figures_part = figures_html(shown, colours=colours, name="scale") if colours is not None else Html("")
    cells = [
        (
            _short(f"{line.program} {line.facts}", 120),
            f"{point.devices:,}",
            rate_text(point.throughput, line.objective),
            f"{point.efficiency:.0%}",
            f"{point.configs:,}",
        )
        for line in lines
        for point in line.points
    ]
    cut = len(cells) - _MOST_SCALE_ROWS
    table = numbers_html(
        ("program", "devices", "best", "efficiency", "measured configs"),
        cells[:_MOST_SCALE_ROWS],
        is_open=colours is None,
    )
    return element(
        "section",
        element("h2", "Scale"),
        element("p", reading, class_="note"),
        figures_part,
        table,
        *([element("p", f"{cut:,} more rows are left out.", class_="note")] if cut > 0 else []),
    )


def _names(lines: Sequence[ScaleLine]) -> list[str]:
    """Return a short name of each line: the program, and of its facts those in which lines of the program differ."""
    facts = [dict(part.partition("=")[::2] for part in line.facts.split(" ")) for line in lines]
    names = []
    for line, own in zip(lines, facts, strict=True):
        alike = [other for other, each in zip(facts, lines, strict=True) if each.program == line.program]
        differ = [name for name in own if len({each.get(name) for each in alike}) > 1]
        names.append(_short(" ".join([line.program, *(f"{name}={own[name]}" for name in differ)])))
    return [name if names.count(name) == 1 else f"{place}: {name}" for place, name in enumerate(names, start=1)]


def _short(text: str, most: int = _MOST_LETTERS) -> str:
    text = printable(mask(text[: 4 * most]))
    return text if len(text) <= most else f"{text[: most - 1]}…"
