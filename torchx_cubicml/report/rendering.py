"""Rendering of figures to a file: HTML, SVG or PNG, without network or browser."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchx_cubicml.errors import LaunchError
from torchx_cubicml.report.renderer import renderer
from torchx_cubicml.report.sections.figures_page import Section, figures_page
from torchx_cubicml.report.style import SCHEMA, theme

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from torchx_cubicml.report.renderer import Specification

FORMATS = (".html", ".svg", ".png")
_SCALE = 2.0  # pixels of a PNG per pixel of the figure
_MOST_LETTERS = 120  # of a line above a picture
_GAP = 36  # pixels between figures of one picture


def check_format(path: Path) -> None:
    """Check that a file can be rendered, before any work is done.

    Raises:
        LaunchError: the name ends in none of ``FORMATS``, or the package that renders is not installed.
    """
    if path.suffix.lower() not in FORMATS:
        raise LaunchError(f"--out must name a file that ends in {', '.join(FORMATS)}, got {str(path)!r:.200}")
    renderer()


def render(sections: Sequence[Section], path: Path, *, title: str) -> None:
    """Write figures to a file; an HTML page follows the reader's light or dark mode, a picture is light.

    Args:
        sections: at least one, with at least one figure each.
        path: file to write; its ending chooses the format.
        title: of the page, plain text.

    Raises:
        LaunchError: as ``check_format``, or the file cannot be written.
    """
    check_format(path)
    content = rendered(sections, kind=path.suffix.lower(), title=title)
    try:
        path.write_bytes(content)
    except OSError as error:
        raise LaunchError(f"cannot write {path}: {error.strerror or error}") from error


def rendered(sections: Sequence[Section], *, kind: str, title: str) -> bytes:
    """Return figures in one of ``FORMATS``, as bytes; see ``render``."""
    if kind == ".html":
        return figures_page(sections, title=title).encode("utf-8", errors="backslashreplace")
    return drawn(_one_picture(sections), kind=kind, config=theme())


def drawn(figure: Specification, *, kind: str, config: Mapping[str, object]) -> bytes:
    """Return one figure as a picture.

    Args:
        figure: Vega-Lite specification.
        kind: ``.svg`` or ``.png``.
        config: colours and fonts, such as ``theme()``.

    Raises:
        LaunchError: the package that draws is not installed, or cannot draw the figure.
    """
    options: dict[str, Any] = {"config": config, "allowed_base_urls": []}
    try:
        if kind == ".svg":
            svg: str = renderer().vegalite_to_svg(figure, **options)
            return svg.encode()
        png: bytes = renderer().vegalite_to_png(figure, scale=_SCALE, **options)
    except ValueError as error:
        raise LaunchError(f"the figures could not be drawn: {' '.join(str(error).split()):.200}") from error
    return png


def _one_picture(sections: Sequence[Section]) -> dict[str, Any]:
    figures = [
        {name: value for name, value in figure.items() if name != "$schema"}
        for section in sections
        for figure in section.figures
    ]
    subtitle = [line[:_MOST_LETTERS] for section in sections for line in section.note.splitlines()]
    return {
        "$schema": SCHEMA,
        "title": {"text": ", ".join(section.heading for section in sections)[:_MOST_LETTERS], "subtitle": subtitle}
        | {"fontSize": 18, "offset": 20},
        "vconcat": figures,
        "spacing": _GAP,
        "resolve": {"scale": {"color": "independent"}},
    }
