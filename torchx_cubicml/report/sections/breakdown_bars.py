"""Section of breakdowns: a bar of parts for each config on one scale, and a table of the parts that is their legend.

Bars are plain SVG, so that they need no renderer and fit any width. One of several further configs is shown beside the
first ones; a box chooses which.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torchx_cubicml.report.markup import Html, element, joined
from torchx_cubicml.report.style import CATEGORIES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_NEGLIGIBLE = 0.005  # share of each total below which a part has no row of its own
_HEIGHT, _THIN, _WHOLE = 26, 7, 38  # pixels of a bar, of the bar of what is hidden, and of both
_COLOUR_OF = {
    "compute": 0,
    "recomputation": 1,
    "memory traffic": 2,
    "tensor parallel": 4,
    "context parallel": 6,
    "expert parallel": 5,
    "pipeline parallel": 5,
    "data parallel": 3,
    "bubble": 8,
    "optimizer": 7,
    "weights": 0,
    "gradients": 1,
    "activations": 2,
    "gathered": 3,
    "logits": 5,
    "embedding lookup": 4,
    "embedding imbalance": 5,
    "embedding exchange": 6,
    "embeddings": 4,
    "embedding states": 6,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PartsBar:
    """Parts of one total of one config, in one unit.

    Args:
        name: of the config, plain text.
        config: in few words; may be empty.
        parts: name in words -> amount >= 0; they add up to the estimated total.
        hidden: name of a part -> amount that runs beside the others and adds nothing.
        measured: total as measured; ``None`` where it was not.
        interval: lower and upper end around the estimated total; ``None`` where it is not known.
        is_choice: whether it is one of the further configs, of which one is shown.
    """

    name: str
    config: str = ""
    parts: Mapping[str, float] = field(default_factory=dict)
    hidden: Mapping[str, float] = field(default_factory=dict)
    measured: float | None = None
    interval: tuple[float, float] | None = None
    is_choice: bool = False

    @property
    def total(self) -> float:
        """Estimated total."""
        return sum(self.parts.values())

    @property
    def most(self) -> float:
        """Largest amount that is drawn."""
        return max(self.total, sum(self.hidden.values()), self.measured or 0.0, *(self.interval or (0.0,)))


def breakdown_html(bars: Sequence[PartsBar], *, unit: str, label: str, facts: Sequence[Sequence[str]] = ()) -> Html:
    """Return the bars with their table.

    Args:
        bars: at least one; each has a part above 0.
        unit: of all amounts, in few letters.
        label: name of the table, for people who cannot see it.
        facts: further rows of the table: a heading, and a text for each bar.
    """
    scale = _Scale.of(bars, unit)
    places = _choices(bars)
    rows = [_bar(bar, scale, choice=places.get(at)) for at, bar in enumerate(bars)]
    return joined(element("div", *rows, class_="bars"), _table(bars, places, scale, label=label, facts=facts))


def chooser_html(names: Sequence[str]) -> Html:
    """Return the box that chooses one of the further configs; it stays hidden without JavaScript.

    Args:
        names: of these, in the order of their bars; the first is shown at first. At least one.
    """
    options = [element("option", name, value=str(place)) for place, name in enumerate(names)]
    box = element("select", *options)
    return element("p", element("label", "Compare with ", box), class_="chooser", hidden="")


def _choices(bars: Sequence[PartsBar]) -> dict[int, int]:
    """Return the position of a bar -> its number among the further configs."""
    return {at: number for number, at in enumerate(at for at, bar in enumerate(bars) if bar.is_choice)}


def _shown_if(choice: int | None) -> dict[str, str | None]:
    """Return the attributes of what belongs to a further config: all but the first are hidden."""
    return {"data_choice": None if choice is None else str(choice), "hidden": "" if choice else None}


def _bar(bar: PartsBar, scale: _Scale, *, choice: int | None) -> Html:
    marks = _blocks(bar.parts, scale, top=0, height=_HEIGHT)
    if sum(bar.hidden.values()) > _NEGLIGIBLE * bar.total:
        marks += _blocks(bar.hidden, scale, top=_HEIGHT + 4, height=_THIN, kind="under")
    marks += _measured(bar, scale)
    spoken = _spoken(bar, scale)
    drawn = element("svg", Html("".join(marks)), class_="parts", role="img", height=str(_WHOLE), aria_label=spoken)
    measured = f"measured {scale.text(bar.measured)}" if bar.measured is not None else "not measured"
    name = element("div", bar.name, *([element("small", bar.config)] if bar.config else []), class_="of")
    value = element("div", f"{scale.text(bar.total)} {scale.unit}", element("small", measured), class_="total")
    return element("div", name, drawn, value, class_="bar", **_shown_if(choice))


def _blocks(parts: Mapping[str, float], scale: _Scale, *, top: int, height: int, kind: str = "part") -> list[str]:
    blocks, left = [], 0.0
    total = sum(parts.values())
    for name, amount in parts.items():
        if amount > 0.0:
            note = f" ({amount / total:.0%})" if kind == "part" else ", hidden under computation"
            text = element("title", f"{name}: {scale.text(amount)} {scale.unit}{note}")
            blocks.append(
                f'<rect class="{kind}" x="{scale.place(left)}" width="{scale.place(amount)}" y="{top}" '
                f'height="{height}" style="fill:var({_variable(name)})">{text}</rect>'
            )
        left += amount
    return blocks


def _measured(bar: PartsBar, scale: _Scale) -> list[str]:
    """Return the mark of what was measured, and the interval around the estimate."""
    marks = []
    if bar.interval is not None:
        low, high = map(scale.place, bar.interval)
        middle = _HEIGHT // 2
        marks.append(f'<line class="whisker" x1="{low}" x2="{high}" y1="{middle}" y2="{middle}"/>')
    if bar.measured is not None:
        place = scale.place(bar.measured)
        marks.append(f'<line class="measured" x1="{place}" x2="{place}" y1="-3" y2="{_HEIGHT + 3}"/>')
    return marks


def _spoken(bar: PartsBar, scale: _Scale) -> str:
    """Return a bar in words."""
    largest = sorted(bar.parts.items(), key=lambda item: -item[1])[:3]
    parts = ", ".join(f"{name} {amount / bar.total:.0%}" for name, amount in largest)
    measured = f", measured {scale.text(bar.measured)} {scale.unit}" if bar.measured is not None else ""
    return f"{bar.name}: estimated {scale.text(bar.total)} {scale.unit}{measured}; most of it {parts}"


def _table(
    bars: Sequence[PartsBar], places: Mapping[int, int], scale: _Scale, *, label: str, facts: Sequence[Sequence[str]]
) -> Html:
    def row(heading: str, texts: Sequence[str], *marks: Html) -> Html:
        cells = [element("td", text, class_="number", **_shown_if(places.get(at))) for at, text in enumerate(texts)]
        return element("tr", element("th", *marks, heading, scope="row"), *cells)

    names = [
        element("th", bar.name, scope="col", class_="number", **_shown_if(places.get(at)))
        for at, bar in enumerate(bars)
    ]
    head = element("tr", element("th", f"part, {scale.unit}", scope="col"), *names)
    measured = [scale.text(bar.measured) if bar.measured is not None else "-" for bar in bars]
    rows = [
        *(row(part, _amounts(bars, part, scale), _swatch(part, "part")) for part in _told(bars)),
        row("estimated in all", [element("strong", scale.text(bar.total)) for bar in bars]),
        row("measured", measured),
        *(row(f"{part}, hidden", texts, _swatch(part, "under")) for part, texts in _hidden(bars, scale)),
        *(row(heading, texts) for heading, *texts in facts),
    ]
    table = element("table", element("thead", head), element("tbody", *rows), class_="changes breakdown")
    return element("div", table, class_="scroll", tabindex="0", role="group", aria_label=label)


def _hidden(bars: Sequence[PartsBar], scale: _Scale) -> list[tuple[str, list[str]]]:
    """Return each hidden part that is not next to nothing, with a text for each bar."""
    names = dict.fromkeys(part for bar in bars for part in bar.hidden)
    return [
        (name, [scale.text(bar.hidden.get(name, 0.0)) for bar in bars])
        for name in names
        if any(bar.hidden.get(name, 0.0) > _NEGLIGIBLE * bar.total for bar in bars)
    ]


def _told(bars: Sequence[PartsBar]) -> list[str]:
    """Return the parts that take more than next to nothing of any total."""
    names = dict.fromkeys(part for bar in bars for part in bar.parts)
    return [name for name in names if any(bar.parts.get(name, 0.0) > _NEGLIGIBLE * bar.total for bar in bars)]


def _amounts(bars: Sequence[PartsBar], part: str, scale: _Scale) -> list[str]:
    amounts = [(bar.parts.get(part, 0.0), bar.total) for bar in bars]
    return [
        joined(scale.text(amount) if amount else "-", element("small", f"{amount / total:.0%}" if amount else ""))
        for amount, total in amounts
    ]


def _swatch(part: str, kind: str) -> Html:
    return Html(f'<i class="swatch {kind}" style="background:var({_variable(part)})"></i>')


def _variable(part: str) -> str:
    """Return the CSS variable of a part's colour."""
    return f"--category-{_COLOUR_OF.get(part, len(CATEGORIES) - 1)}"


@dataclass(frozen=True, slots=True)
class _Scale:
    """Largest amount that is drawn, the unit, and the decimals that give the smallest total three digits."""

    most: float
    unit: str
    decimals: int

    @classmethod
    def of(cls, bars: Sequence[PartsBar], unit: str) -> _Scale:
        """Return the scale of all bars, so that their amounts compare."""
        least = min(bar.total for bar in bars)
        decimals = max(0, 2 - math.floor(math.log10(least)))
        return cls(max(bar.most for bar in bars), unit, decimals)

    def text(self, value: float) -> str:
        """Return an amount without its unit."""
        return f"{value:,.{self.decimals}f}"

    def place(self, value: float) -> str:
        """Return the place of an amount on the scale."""
        return f"{100.0 * value / self.most:.2f}%"
