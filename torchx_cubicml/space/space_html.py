"""HTML of a search space for notebooks: its parameters with their values and places, and its constraints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchx_cubicml.records.notebook import section_html, table_html
from torchx_cubicml.records.value_text import value_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torchx_cubicml.records.values import Value
    from torchx_cubicml.space.expression import Expression
    from torchx_cubicml.space.parameter import Binding, Parameter

_MOST_CHOICES = 20  # of one parameter


def space_html(
    parameters: Sequence[Parameter], *, constraints: Sequence[Expression], objective: str, facts: Mapping[str, Value]
) -> str:
    """Return the HTML.

    Args:
        parameters: of the space.
        constraints: its constraints.
        objective: its objective.
        facts: of the workload that it is bound to; empty where it is bound to none.
    """
    rows = [(each.name, _values_text(each), _condition_text(each), _place_text(each.binding)) for each in parameters]
    known = ", ".join(f"{name} = {value_text(value)}" for name, value in facts.items())
    return section_html(
        f"Search space of {len(rows)} parameter{'s' if len(rows) != 1 else ''}",
        f"Objective: {objective.replace('_', ' ')}",
        table_html(("parameter", "values", "when", "place"), rows),
        f"Constraints: {'; '.join(each.source for each in constraints)}" if constraints else "",
        f"Bound to {known}" if facts else "",
    )


def _values_text(parameter: Parameter) -> str:
    if parameter.derive is not None:
        return f"= {parameter.derive.source}"
    shown = ", ".join(value_text(choice) for choice in parameter.choices[:_MOST_CHOICES])
    left_out = len(parameter.choices) - _MOST_CHOICES
    texts = [shown, f"and {left_out} more" if left_out > 0 else ""]
    if parameter.counted_by is not None:
        what = "table" if parameter.per_table is not None else "layer"
        texts.append(f"for each {what}, in {parameter.groups} groups" if parameter.groups else f"for each {what}")
    return " ".join(filter(None, texts))


def _condition_text(parameter: Parameter) -> str:
    return parameter.when.source if parameter.when is not None else ""


def _place_text(binding: Binding | None) -> str:
    return f"{binding.kind} {binding.name or '.'.join(binding.key)}" if binding is not None else ""
