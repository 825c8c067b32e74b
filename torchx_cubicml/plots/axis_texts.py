"""Texts along the axis of a parameter."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchx_cubicml.records.redaction import mask, printable
from torchx_cubicml.records.value_text import value_text

if TYPE_CHECKING:
    from torchx_cubicml.advisor.parameter_axis import ParameterAxis


def axis_texts(axis: ParameterAxis | None) -> list[str]:
    """Return the values along an axis as distinct texts; one empty text without one."""
    if axis is None:
        return [""]
    texts = [printable(mask(value_text(label))) for label in axis.labels]
    return [f"{text} ({place})" if texts.count(text) > 1 else text for place, text in enumerate(texts, start=1)]


def axis_name(axis: ParameterAxis | None) -> str:
    """Return the name of an axis; of counted entries, what is counted."""
    if axis is None:
        return ""
    return ": ".join(filter(None, (printable(mask(axis.name)), counted_text(axis))))


def counted_text(axis: ParameterAxis) -> str:
    """Return the text of the unit that an axis counts; empty for a single value."""
    counted = f"{axis.entries} with {value_text(axis.counted)}" if axis.counted is not None else ""
    return printable(mask(counted))
