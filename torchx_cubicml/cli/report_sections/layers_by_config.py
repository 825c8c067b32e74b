"""Section of the values per layer or per embedding table: a strip of coloured layers for each of the best configs."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from torchx_cubicml.cli.report_sections.view import drawn_figures
from torchx_cubicml.launch.messages import best_word, rate_text
from torchx_cubicml.records.redaction import mask, printable
from torchx_cubicml.records.value_text import entries_text, value_text
from torchx_cubicml.report.figures.layer_strips import layer_strips
from torchx_cubicml.report.markup import Html, element, joined
from torchx_cubicml.report.sections.numbers_table import numbers_html

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchx_cubicml.cli.report_sections.view import MeasuredConfig, WorkloadView
    from torchx_cubicml.records.values import Value

_MOST_ROWS = 8  # configs, the user's own among them
_MOST_STRIPS = 4  # parameters


def section(view: WorkloadView) -> Html:
    """Return a figure for each parameter with a value per layer or table; nothing without one that differs."""
    names = _names(view.ranked)
    if not names:
        return Html("")
    rows = _rows(view)
    strips = {name: strip_rows(rows, name, objective=view.objective) for name in names[:_MOST_STRIPS]}
    figures = drawn_figures(
        [
            layer_strips(each, name=_text(name), levels=_levels(each), entry=view.entries_of(name).removesuffix("s"))
            for name, each in strips.items()
        ],
        view=view,
        name="layers",
    )
    cells = [
        (
            label,
            _text(name),
            _text(entries_text(each.config[name], view.entries_of(name))),
            _text(value_text(each.config[name])),
        )
        for name in strips
        for label, each in rows
        if name in each.config
    ]
    left_out = len(names) - len(strips)
    many = f" {left_out} more such parameters are left out." if left_out > 0 else ""
    return joined(
        element("h3", "Table by table" if view.entries_of(names[0]) == "tables" else "Layer by layer"),
        element(
            "p",
            f"What was measured: the {best_word(view.objective)} configs by the median of their launches, and your own "
            f"where it is known. Each strip is the value of a parameter from the first to the last entry.{many}",
            class_="note",
        ),
        figures,
        numbers_html(("config", "parameter", "in short", "in order"), cells, is_open=not figures),
    )


def strip_rows(rows: Sequence[tuple[str, MeasuredConfig]], name: str, *, objective: str) -> list[dict[str, Any]]:
    """Return the rows of ``layer_strips``; configs without a value per entry are left out.

    Args:
        rows: what each config is, in words, and the config.
        name: of the parameter.
        objective: name of the throughput.
    """
    return [
        {
            "config": label,
            "values": [_text(value_text(entry)) for entry in value],
            "rate": rate_text(each.median, objective),
        }
        for label, each in rows
        if isinstance(value := each.config.get(name), tuple)
    ]


def _rows(view: WorkloadView) -> list[tuple[str, MeasuredConfig]]:
    """Return the user's own config and the best ones, each with what it is."""
    ranked = view.ranked
    own = [("your own", each) for each in ranked if each.config == view.own and each.config != view.best]
    others = [each for each in ranked if each.config != view.own or each.config == view.best]
    best = others[0].config == view.own
    labels = [
        "the best, and your own" if best else "the best",
        *(f"number {place}" for place in range(2, _MOST_ROWS + 1)),
    ]
    return [*own, *zip(labels, others[: _MOST_ROWS - len(own)], strict=False)]


def _names(ranked: Sequence[MeasuredConfig]) -> list[str]:
    values: dict[str, set[Value]] = {}
    for each in ranked:
        for name, value in each.config.items():
            if isinstance(value, tuple):
                values.setdefault(name, set()).add(value)
    return [name for name, found in values.items() if len(found) > 1]


def _levels(rows: Sequence[dict[str, Any]]) -> list[str]:
    counted = Counter(value for row in rows for value in row["values"])
    return [level for level, _ in sorted(counted.items(), key=lambda item: (-item[1], item[0]))]


def _text(text: str) -> str:
    return printable(mask(text))
