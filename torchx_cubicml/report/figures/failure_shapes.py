"""Shapes of launches without a result, one for each way to end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchx_cubicml.report.style import FAILED

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ENDS = {
    "out of memory": "M-1,-1L1,1M1,-1L-1,1",
    "user error": "triangle-up",
    "timeout": "square",
    "infrastructure": "diamond",
    "stopped early": "triangle-down",
    "unknown": "circle",
    "not ended": "triangle-right",
    "completed without a measurement": "cross",
}
"""End of a launch, if it did not complete with a measurement -> the shape that stands for it."""

_LEGEND = 240  # pixels of the longest of them


def shape_by_outcome(launches: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the encoding of the shape by ``outcome``, with a legend of ``ENDS`` below; other ends are circles.

    Args:
        launches: each with ``outcome``, its end in words.
    """
    found = {str(each["outcome"]) for each in launches}
    known = [outcome for outcome in ENDS if outcome in found]
    outcomes = known + sorted(found - ENDS.keys())
    scale = {"domain": outcomes, "range": [ENDS.get(outcome, "circle") for outcome in outcomes]}
    return {"field": "outcome", "type": "nominal", "scale": scale, "legend": _legend(known)}


def _legend(known: list[str]) -> dict[str, Any] | None:
    if not known:
        return None  # Vega draws nothing at all beside a legend without values
    legend: dict[str, Any] = {"orient": "bottom", "title": None, "direction": "horizontal", "symbolStrokeColor": FAILED}
    return legend | {"values": known, "labelLimit": _LEGEND}
