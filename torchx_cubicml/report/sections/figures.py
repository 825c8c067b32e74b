"""Section of figures: Vega-Lite specifications drawn as one SVG each, in colours that follow light and dark pages.

The pictures are part of the page, so they need no script. Without the renderer, one sentence says how to get it. A
reader who cannot see a picture gets its description as a whole: thousands of points read one by one tell nothing. The
label of a point is kept for the page's script, which shows it beside the pointer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

from torchx_cubicml.report.drawn_points import MOST_DRAWN, evenly_spaced, sample_text
from torchx_cubicml.report.markup import Html, element
from torchx_cubicml.report.object_names import without_object_names
from torchx_cubicml.report.renderer import renderer
from torchx_cubicml.report.style import ON_DARK, theme

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torchx_cubicml.report.renderer import Specification

PART_LISTS = frozenset({"layer", "concat", "hconcat", "vconcat"})
"""Properties of a specification that list its parts."""
_MOST_LETTERS = 200  # of a cause
_COLOUR = re.compile(r"#[0-9a-f]{6}\b|rgb\(\d+, ?\d+, ?\d+\)")
_PAINT = re.compile(rf'\b(fill|stroke)="({_COLOUR.pattern})"')
_PLACE = re.compile(r' (?:d|transform|x|y|x1|x2|y1|y2|width|height|r|opacity|stroke-width)="[^"]*"')
_LONG_NUMBER = re.compile(r"(\d\.\d{3})\d+")
_NAME = re.compile(r'\bid="([a-z]+\d+)"|url\(#([a-z]+\d+)\)')
_LABELLED = re.compile(r' aria-label="([^"]*)" role="graphics-symbol" aria-roledescription="([^"]*)"')
_LABELS = frozenset({"point", "bar", "circle", "square", "tick", "cell", "rect mark", "arc mark"})  # kept for marks
_SPOKEN = re.compile(r' (?:role|aria-[a-z]+|class)="[^"]*"')
_TAG = re.compile(r"<[a-zA-Z][^>]*>")
_SIZE = re.compile(r'<svg [^>]*\bwidth="([\d.]+)"')
_ON_PAGE = {"background": None, "padding": 4}  # the page itself is the background
_DRAWN = frozenset({"svg", "g", "path", "text", "tspan", "rect", "line", "circle", "defs", "clipPath", "title", "desc"})


@dataclass(slots=True)
class Colours:
    """Colours of a page's figures, each with a variable whose value differs between light and dark pages."""

    names: dict[tuple[str, str], str] = field(default_factory=dict)

    def variable(self, light: str, dark: str) -> str:
        """Return the CSS variable of a pair of colours."""
        return self.names.setdefault((light, ON_DARK.get(dark, dark)), f"--figure-{len(self.names)}")

    def css(self) -> Html:
        """Return the rules that give the variables their values; paper is light."""
        light, dark = ("".join(f"{name}:{pair[side]};" for pair, name in self.names.items()) for side in (0, 1))
        return Html(f":root{{{light}}}@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}")


def figures_html(figures: Sequence[Specification], *, colours: Colours, name: str) -> Html:
    """Return the figures, side by side where they fit.

    Args:
        figures: Vega-Lite specifications.
        colours: of the page; those of the figures are added.
        name: unique on the page; letters, digits and hyphens.
    """
    drawn = (_drawn(figure, colours, f"{name}-{number}-") for number, figure in enumerate(figures))
    return element("div", *drawn, class_="figures")


def _drawn(figure: Specification, colours: Colours, prefix: str) -> Html:
    """Return one figure; one that cannot be drawn is left out, and a sentence says why."""
    try:
        return element("figure", _svg(figure, colours, prefix=prefix), class_="figure", aria_label=_title(figure))
    except (ValueError, ET.ParseError) as error:
        why = " ".join(str(error).split())[:_MOST_LETTERS]
        return element("p", f"A figure is left out, as it could not be drawn: {why}", class_="note")


def missing_renderer() -> str:
    """Return a sentence on the missing renderer; empty where it is installed."""
    from torchx_cubicml.errors import LaunchError

    try:
        renderer()
    except LaunchError as error:
        return f"Figures are left out: {str(error).partition(' (')[0]}"
    return ""


def sampled(figure: Specification) -> dict[str, Any]:
    """Return the figure with evenly spaced points where it has more than ``MOST_DRAWN``; its subtitle says so."""
    counts: list[int] = []

    def drawn(part: Mapping[str, Any]) -> dict[str, Any]:
        found = dict(part)
        if "spec" in found:
            found["spec"] = drawn(found["spec"])
        for parts in PART_LISTS & found.keys():
            found[parts] = [drawn(each) for each in found[parts]]
        values = found.get("data", {}).get("values", ())
        if len(values) > MOST_DRAWN and not _is_line(part):
            counts.append(len(values))
            found["data"] = {"values": evenly_spaced(values, most=MOST_DRAWN)}
        return found

    sample = drawn(figure)
    if text := sample_text(counts, most=MOST_DRAWN):
        sample["title"] = {**sample["title"], "subtitle": _with_text(sample["title"].get("subtitle", ""), text)}
    return sample


def _with_text(subtitle: str | Sequence[str], text: str) -> str | list[str]:
    """Return a subtitle of one line, or of several, with a text at its end."""
    if isinstance(subtitle, str):
        return f"{subtitle}; {text}" if subtitle else text
    return [*subtitle[:-1], "; ".join([*subtitle[-1:], text])]


def _is_line(part: Mapping[str, Any]) -> bool:
    mark = part.get("mark")
    return isinstance(mark, dict) and mark.get("type") == "line"


def _svg(figure: Specification, colours: Colours, *, prefix: str) -> Html:
    """Return one SVG: light and dark drawings differ in colours alone, so each colour becomes a variable.

    Raises:
        ValueError: the drawing holds what no figure of this package needs, such as a script.
    """
    sample = without_object_names(sampled(figure))
    light, dark = (
        renderer().vegalite_to_svg(sample, config=theme(dark=each) | _ON_PAGE, allowed_base_urls=[])
        for each in (False, True)
    )
    for node in ET.fromstring(light).iter():  # noqa: S314 - drawn by the renderer; entities cannot be declared in it
        tag = node.tag.rpartition("}")[2]
        if tag not in _DRAWN or any(name.lower().startswith("on") or "href" in name for name in node.attrib):
            raise ValueError(f"a figure holds <{tag}>")
    dark_paints = iter([match[2] for match in _PAINT.finditer(dark)])
    painted = _PAINT.sub(lambda match: f'{match[1]}="var({colours.variable(match[2], next(dark_paints))})"', light)
    named = _NAME.sub(lambda match: match[0].replace(match[1] or match[2], f"{prefix}{match[1] or match[2]}"), painted)
    short = _PLACE.sub(lambda match: _LONG_NUMBER.sub(r"\1", match[0]), named)  # a thousandth of a pixel is enough
    return _as_one_picture(short, description=str(figure.get("description") or _title(figure)))


def _title(figure: Specification) -> str:
    title = figure.get("title", "")
    return str(title.get("text", "") if isinstance(title, dict) else title)


def _as_one_picture(svg: str, *, description: str) -> Html:
    """Return an SVG that assistive technology meets as one picture; its width is a variable of the style."""
    width = _SIZE.match(svg)
    if width is None:
        raise ValueError("a figure has no width")

    def quiet(tag: re.Match[str]) -> str:
        labelled = _LABELLED.search(tag[0])
        label = f' data-label="{labelled[1]}"' if labelled and labelled[2] in _LABELS else ""
        name, end = (tag[0][:-2], "/>") if tag[0].endswith("/>") else (tag[0][:-1], ">")
        return f"{_SPOKEN.sub('', name)}{label}{end}"

    root = f'<svg role="img" aria-label="{escape(description)}" style="--width:{width[1]}px" '
    return Html(_TAG.sub(quiet, svg).replace("<svg ", root, 1))
