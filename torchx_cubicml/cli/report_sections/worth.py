"""Section of what each parameter is worth: the best config over the same with another value of that parameter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchx_cubicml.cli.report_sections.view import drawn_figures
from torchx_cubicml.launch.messages import best_word
from torchx_cubicml.plots.worth_rows import shown_text, worth_rows
from torchx_cubicml.records.redaction import mask, printable
from torchx_cubicml.report.figures.parameter_worth import parameter_worth
from torchx_cubicml.report.markup import Html, element, joined
from torchx_cubicml.report.sections.numbers_table import numbers_html

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchx_cubicml.advisor import ParameterSensitivity
    from torchx_cubicml.cli.report_sections.view import WorkloadView

_MOST_ROWS = 30  # parameters; those of least effect are left out


def section(view: WorkloadView) -> Html:
    """Return the figure and its numbers; nothing where no two configs of the workload can be compared.

    If the best config has no place in the space file, one sentence stands for all sections on parameters.
    """
    found = view.sensitivities
    rows = worth_rows(found)
    if not rows:
        return _outside_space(view)
    figures = drawn_figures([parameter_worth(rows[:_MOST_ROWS])], view=view, name="worth")
    return joined(
        element("h3", "What each parameter is worth"),
        element("p", _reading(view.objective, shown=min(len(rows), _MOST_ROWS), total=len(rows)), class_="note"),
        figures,
        *(element("p", text, class_="note") for text in _without_rows(found)),
        numbers_html(
            ("parameter", "values", "predicted", "80 % interval", "measured", "compared"),
            [_cells(row) for row in rows[:_MOST_ROWS]],
            is_open=not figures,
        ),
    )


def _outside_space(view: WorkloadView) -> Html:
    why = printable(mask(view.why_outside_space))
    if not why:
        return Html("")
    text = (
        f"What each parameter is worth, how throughput responds and where memory runs out are left out, as the "
        f"{best_word(view.objective)} config has no place in the space file: {why}"
    )
    return element("p", text, class_="note")


def data(view: WorkloadView) -> list[dict[str, Any]]:
    """Return the rows of the figure as JSON values."""
    return worth_rows(view.sensitivities)


def _reading(objective: str, *, shown: int, total: int) -> str:
    many = f" The {shown} of most effect of {total} are shown." if shown < total else ""
    return (
        f"Each row takes the {best_word(objective)} config and changes one parameter alone, to your own value or, "
        "where that is the best one or unknown, to the slowest other value. Ratios are predicted from all launches of "
        "the workload; they are measured where launches differ in that parameter alone. They hold at "
        f"this config, and do not multiply.{many}"
    )


def _without_rows(sensitivities: Sequence[ParameterSensitivity]) -> list[str]:
    idle = [shown_text(each.name) for each in sensitivities if each.is_ineffective]
    fixed = [shown_text(each.name) for each in sensitivities if not each.alternatives and not each.is_ineffective]
    texts = {"No effect, as observed and measured": idle, "No other legal value with a prediction": fixed}
    return [f"{label}: {', '.join(names)}." for label, names in texts.items() if names]


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    measured = f"{row['measured']:.2f}x" if row["measured"] is not None else ""
    interval = f"{row['low']:.2f}x to {row['high']:.2f}x"
    return (row["parameter"], row["change"], f"{row['gain']:.2f}x", interval, measured, row["kind"])
