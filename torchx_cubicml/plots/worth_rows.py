"""Rows of the figure of what each parameter is worth, made of sensitivities."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchx_cubicml.records.redaction import mask, printable
from torchx_cubicml.records.value_text import entries_text
from torchx_cubicml.report.figures.parameter_worth import OVER_OWN, OVER_SLOWEST

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchx_cubicml.advisor import Alternative, ParameterSensitivity


def worth_rows(sensitivities: Sequence[ParameterSensitivity]) -> list[dict[str, Any]]:
    """Return the rows of ``parameter_worth``, what is worth most first; parameters without another value are left out.

    The best value is compared with the user's own; where that is the best one, with the slowest other value.
    """
    compared = [(each, _other(each)) for each in sensitivities]
    rows = [_row(each, other) for each, other in compared if other is not None]
    return sorted(rows, key=lambda row: (row["kind"] != OVER_OWN, -row["gain"]))


def _other(each: ParameterSensitivity) -> Alternative | None:
    if each.own is not None:
        return each.own
    return min(each.alternatives, key=lambda other: other.predicted, default=None)


def _row(each: ParameterSensitivity, other: Alternative) -> dict[str, Any]:
    texts = [shown_text(entries_text(value, each.entries)) for value in (other.value, each.value)]
    return {
        "parameter": shown_text(each.name),
        "kind": OVER_OWN if other is each.own else OVER_SLOWEST,
        "change": " → ".join(texts),
        "gain": 1.0 / other.predicted,
        "low": 1.0 / other.high,
        "high": 1.0 / other.low,
        "measured": 1.0 / other.measured if other.measured else None,
        "launches": other.n_measured,
    }


def shown_text(text: str) -> str:
    """Return a text without secrets and control characters."""
    return printable(mask(text))
