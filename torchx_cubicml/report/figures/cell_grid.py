"""Grid of cells over the values of two parameters: its axes, its size, and frames around single cells."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torchx_cubicml.report.style import STRONG

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

BEST, OWN = "the best config", "your own values"
"""Marks of cells that get a frame."""
CROSS = {"shape": "M-1,-1L1,1M1,-1L-1,1", "strokeWidth": 2, "filled": False}
"""Properties of a mark that make it a cross."""
_WIDEST, _LEAST_WIDTH, _MOST_WIDTH = 560, 36, 104  # pixels of all columns, and of one
_TALLEST, _LEAST_HEIGHT, _MOST_HEIGHT = 420, 28, 44  # pixels of all lines, and of one
_WITH_TEXT = 40  # pixels of a column from which it has room for a number
_FRAMES = {BEST: ("frame", {}), OWN: ("dashed frame", {"strokeDash": [4, 3]})}


@dataclass(frozen=True, slots=True, kw_only=True)
class CellGrid:
    """Grid of cells.

    Args:
        x: values along the first parameter, as texts in order.
        y: values along the second, from bottom to top; one empty text where there is no second.
        names: of the two parameters.
    """

    x: Sequence[str]
    y: Sequence[str]
    names: tuple[str, str]

    @property
    def width(self) -> float:
        """Pixels of a column."""
        return min(max(_WIDEST / len(self.x), _LEAST_WIDTH), _MOST_WIDTH)

    @property
    def height(self) -> float:
        """Pixels of a line."""
        return min(max(_TALLEST / len(self.y), _LEAST_HEIGHT), _MOST_HEIGHT)

    @property
    def has_text(self) -> bool:
        """True where a cell has room for a number."""
        return self.width >= _WITH_TEXT

    @property
    def axes(self) -> dict[str, Any]:
        """Encoding of both places."""
        return {
            "x": {"field": "x", "type": "nominal", "sort": list(self.x), "title": None}
            | {"axis": {"labelAngle": 0, "labelLimit": 110, "grid": False, "labelOverlap": True}},
            "y": {"field": "y", "type": "nominal", "sort": list(reversed(self.y)), "title": None}
            | {"axis": {"labelLimit": 150, "grid": False}},
        }

    def frames(self, cells: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return a frame around each cell whose ``mark`` is ``BEST`` or ``OWN``."""
        frame = {"type": "rect", "filled": False, "strokeWidth": 2, "aria": False, "stroke": STRONG}
        layers = []
        for mark, (_, style) in _FRAMES.items():
            places = [{"x": cell["x"], "y": cell["y"]} for cell in cells if cell["mark"] == mark]
            if places:
                layers.append({"data": {"values": places}, "mark": {**frame, **style}, "encoding": self.axes})
        return layers

    def titles(self) -> list[dict[str, Any]]:
        """Return the names of the parameters at their axes: as data, for Vega reads titles of axes as expressions.

        A name that is longer than the grid is cut.
        """
        words: dict[str, Any] = {"type": "text", "fontSize": 12, "fontWeight": 600, "aria": False, "align": "left"}
        words["limit"] = max(len(self.x) * self.width, 2 * _MOST_WIDTH)
        heights = (len(self.y) * self.height + 34, -10)
        return [
            {
                "data": {"values": [{"name": name}]},
                "mark": words,
                "encoding": {"x": {"value": 0}, "y": {"value": y}, "text": {"field": "name", "type": "nominal"}},
            }
            for name, y in zip(self.names, heights, strict=True)
            if name
        ]


def frames_text(cells: Sequence[Mapping[str, Any]]) -> str:
    """Return the meaning of the frames of the cells, in words; empty without any."""
    marks = {cell["mark"] for cell in cells}
    return "; ".join(f"{words}: {mark}" for mark, (words, _) in _FRAMES.items() if mark in marks)
