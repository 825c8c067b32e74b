"""Section of the best measured configs: what they have in common, beside the user's own."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from torchx_cubicml.cli.report_sections.view import drawn_figures
from torchx_cubicml.launch.messages import best_word, number_text
from torchx_cubicml.plots.round_figures import objective_text
from torchx_cubicml.records.redaction import mask, printable
from torchx_cubicml.records.value_text import config_text, value_text
from torchx_cubicml.report.figures.parallel_coordinates import BEST, OTHER, OWN, parallel_coordinates
from torchx_cubicml.report.markup import Html, element, joined
from torchx_cubicml.report.sections.numbers_table import numbers_html

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchx_cubicml.cli.report_sections.view import MeasuredConfig, WorkloadView
    from torchx_cubicml.records.values import Config, Value

_LEAST, _MOST, _SHARE = 5, 30, 0.1  # of the measured configs: the best tenth, at least and at most so many
_MOST_AXES = 9
_MOST_LETTERS = 400  # of a config beside a point


def section(view: WorkloadView) -> Html:
    """Return the figure and the configs; nothing where fewer than two configs were measured."""
    ranked = view.ranked
    chosen = ranked[: min(max(round(_SHARE * len(ranked)), _LEAST), _MOST)]
    own = [each for each in ranked if each.config == view.own and each not in chosen]
    names = _names(view, ranked)
    if len(ranked) < 2 or not names:
        return Html("")
    axes = [
        _axis(name, [each.config for each in (*chosen, *own)], entries=view.entries_of(name))
        for name in names[:_MOST_AXES]
    ]
    lines = [_line(each, axes, view) for each in (*chosen, *own)]
    heads = [(_text(name), _text(detail)) for name, detail, _ in axes]
    figures = drawn_figures(
        [parallel_coordinates(lines, axes=heads, unit=objective_text(view.objective))], view=view, name="best"
    )
    titles = ["config", *(" ".join(filter(None, head)) for head in heads), "throughput", "launches"]
    cells = [_cells(each, line) for each, line in zip((*chosen, *own), lines, strict=True)]
    return joined(
        element("h3", f"The {best_word(view.objective)} configs"),
        element("p", _reading(view, shown=len(chosen), total=len(ranked), n_names=len(names)), class_="note"),
        figures,
        numbers_html(titles, cells, is_open=not figures),
    )


def data(view: WorkloadView) -> list[dict[str, Any]]:
    """Return the best measured configs as JSON values, the best first."""
    return [asdict(each) for each in view.ranked[:_MOST]]


def _names(view: WorkloadView, ranked: Sequence[MeasuredConfig]) -> list[str]:
    """Return the parameters that differ among the measured configs, those worth most first."""
    names = dict.fromkeys(name for each in ranked for name in each.config)
    differ = [name for name in names if any(each.config.get(name) != ranked[0].config.get(name) for each in ranked)]
    order = {each.name: place for place, each in enumerate(view.sensitivities)}
    return sorted(differ, key=lambda name: order.get(name, len(order)))


def _axis(name: str, configs: Sequence[Config], *, entries: str) -> tuple[str, str, Value | None]:
    """Return the name of an axis, what is counted along it, and the entry that is counted, as of a value per layer."""
    values = [config[name] for config in configs if name in config]
    lists = [value for value in values if isinstance(value, tuple)]
    if not lists:
        return name, "", None
    distinct = dict.fromkeys(entry for value in lists for entry in value)
    counts = {entry: [value.count(entry) for value in lists] for entry in distinct}
    counted = max(distinct, key=lambda entry: (max(counts[entry]) - min(counts[entry]), max(counts[entry])))
    return name, f"{entries} with {value_text(counted)}", counted


def _line(each: MeasuredConfig, axes: Sequence[tuple[str, str, Value | None]], view: WorkloadView) -> dict[str, Any]:
    values: list[float | str | None] = []
    for name, _, counted in axes:
        value = each.config.get(name)
        if isinstance(value, tuple):
            value = value.count(counted) if counted is not None else value_text(value)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        values.append(value if is_number or value is None else _text(value_text(value)))
    kind = BEST if each.config == view.best else OWN if each.config == view.own else OTHER
    config = _text(config_text(each.config))[:_MOST_LETTERS]
    return {"values": values, "throughput": each.median, "kind": kind, "config": config}


def _text(text: str) -> str:
    return printable(mask(text))


def _reading(view: WorkloadView, *, shown: int, total: int, n_names: int) -> str:
    own = " Your own config is beside them." if view.own is not None else ""
    many = (
        f" Of {n_names} parameters that differ, the {_MOST_AXES} worth most have an axis."
        if n_names > _MOST_AXES
        else ""
    )
    return (
        f"The {shown} {best_word(view.objective)} of {total:,} measured configs, by the median of their launches.{own} "
        f"Where the lines meet, the good configs agree.{many}"
    )


def _cells(each: MeasuredConfig, line: dict[str, Any]) -> tuple[str, ...]:
    values = [value_text(value) if value is not None else "" for value in line["values"]]
    return (line["kind"], *values, number_text(each.median), str(each.launches))
