"""Style of all figures: colours, fonts and sizes, for light and for dark pages.

The colours are told apart by people with any common colour blindness: those of rounds are a part of viridis, the others
are of Okabe and Ito's palette. Failures differ by their shape, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"  # names the language; it is never fetched
WIDTH, HEIGHT = 720, 300  # of a plot in pixels, axes and titles apart
PANEL = 200  # width and height of one of several panels
MANY_POINTS = 300  # from here on points are smaller and paler
FONT = "Inter, system-ui, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, 'DejaVu Sans', sans-serif"
NEUTRAL = "#8a919c"  # of what is there for comparison; readable on both pages
FAILED = "#d55e00"
STRONG = "#0072b2"
# Of categories. None is a key of ``ON_DARK``, so they differ on dark pages, too. Only the first bears white letters.
KINDS = ("#0173b2", "#e69f00", "#009e73", "#cc79a7", "#5ab4e6", "#d45f00", "#b0a000", NEUTRAL)
ON_DARK = {STRONG: "#56b4e9", FAILED: "#ff9a57"}  # the same hues where the page can give each mode its own
CATEGORIES = (STRONG, "#56b4e9", "#009e73", "#e69f00", FAILED, "#cc79a7", "#7a5195", "#a69b00", NEUTRAL)
"""Colours of kinds that stand side by side in one bar, on both pages."""
COUNT, RATE, SHARE = ",d", ",.6~r", ".2f"  # number formats
LABEL = {"field": "label", "type": "nominal"}  # text of a point
LARGE = {"format": "~s", "labelExpr": "datum.value === 0 ? '0' : datum.label"}  # axis of large numbers
_LIGHT = {"page": "#ffffff", "ink": "#1f2430", "soft": "#5b6472", "line": "#e4e7ec"}
_DARK = {"page": "#14171c", "ink": "#eceff4", "soft": "#a3abb8", "line": "#2c323c"}
_EITHER = {"page": "transparent", "ink": "#737a86", "soft": "#737a86", "line": "#80808040"}  # on light and on dark
_ROUNDS = {False: (0.12, 0.8), True: (0.38, 0.98)}  # part of viridis that stands out from the page


def point(count: int) -> dict[str, object]:
    """Return a mark for each of ``count`` points of one plot."""
    share = min(1.0, MANY_POINTS / max(count, 1))
    return {"type": "point", "size": max(42 * share, 8), "opacity": 0.4 + 0.45 * share}


def page_colours(*, dark: bool = False) -> dict[str, str]:
    """Return the colours of a page: ``page``, ``ink``, ``soft`` for secondary text, and ``line``."""
    return dict(_DARK if dark else _LIGHT)


def theme(*, dark: bool = False) -> dict[str, object]:
    """Return the configuration of Vega-Lite for light or dark pages."""
    return _theme(page_colours(dark=dark), rounds=_ROUNDS[dark])


def notebook_theme() -> dict[str, object]:
    """Return the configuration of Vega-Lite for a notebook: readable on light and on dark, as no one tells which."""
    return _theme(_EITHER, rounds=(_ROUNDS[True][0], _ROUNDS[False][1]))


def _theme(colours: Mapping[str, str], *, rounds: tuple[float, float]) -> dict[str, object]:
    ink, soft, line = colours["ink"], colours["soft"], colours["line"]
    ramp = {"scheme": "viridis", "extent": list(rounds)}
    return {
        "background": colours["page"],
        "font": FONT,
        "padding": 12,
        "view": {"stroke": None},
        "range": {"ordinal": ramp, "ramp": ramp},
        "title": {
            "anchor": "start",
            "frame": "bounds",
            "color": ink,
            "fontSize": 15,
            "fontWeight": 600,
            "subtitleColor": soft,
            "subtitleFontSize": 12,
            "subtitlePadding": 5,
            "offset": 14,
        },
        "axis": {
            "labelColor": soft,
            "titleColor": soft,
            "labelFontSize": 11,
            "titleFontSize": 12,
            "titleFontWeight": "normal",
            "titlePadding": 8,
            "grid": True,
            "gridColor": line,
            "domain": False,
            "ticks": False,
            "labelPadding": 6,
        },
        "axisX": {"grid": False, "domain": True, "domainColor": soft, "labelOverlap": "greedy", "labelSeparation": 8},
        "header": {"labelColor": ink, "labelFontSize": 12, "title": None},
        "legend": {
            "labelColor": soft,
            "titleColor": soft,
            "labelFontSize": 11,
            "titleFontSize": 11,
            "titleFontWeight": "normal",
        },
        "text": {"color": ink, "fontSize": 11},
        "line": {"color": ink},
        "rule": {"color": soft},
        "point": {"filled": True},
        "style": {"ink": {"color": ink}, "halo": {"color": colours["page"], "stroke": colours["page"]}},
    }
