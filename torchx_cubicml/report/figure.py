"""Figure that a notebook shows and a person saves: a Vega-Lite specification with its data."""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchx_cubicml.errors import LaunchError
from torchx_cubicml.report.rendering import FORMATS, drawn, rendered
from torchx_cubicml.report.sections.figures import PART_LISTS, sampled
from torchx_cubicml.report.sections.figures_page import Section
from torchx_cubicml.report.style import LABEL, notebook_theme, theme

if TYPE_CHECKING:
    from torchx_cubicml.report.renderer import Specification

VEGA_LITE = "application/vnd.vegalite.v5+json"
"""MIME type that JupyterLab (from 4.1) and VS Code draw. They have none for version 6; figures here fit both."""
_SCHEMA = "https://vega.github.io/schema/vega-lite/v5.json"


@dataclass(frozen=True, slots=True, repr=False)
class Figure:
    """Figure of launches or predictions.

    A notebook shows it as the last value of a cell: interactively where it draws Vega-Lite, else as an SVG picture.

    Args:
        specification: in Vega-Lite 6, with its data; colours and fonts of a page are left out.
    """

    specification: Specification

    def to_dict(self) -> dict[str, Any]:
        """Return a copy of the Vega-Lite specification, as JSON values."""
        return deepcopy(dict(self.specification))

    def save(self, path: str | Path) -> None:
        """Write the figure to a file; a page follows the reader's light or dark mode, a picture is light.

        Args:
            path: its ending chooses the format: ``.html``, ``.svg``, ``.png``, or ``.json`` for the specification.

        Raises:
            LaunchError: the ending is none of these, vl-convert is not installed, or the file cannot be written.
        """
        path = Path(path)
        content = self._content(path)
        try:
            path.write_bytes(content)
        except OSError as error:
            raise LaunchError(f"cannot write {path}: {error.strerror or error}") from error

    def _content(self, path: Path) -> bytes:
        kind = path.suffix.lower()
        if kind == ".json":
            return json.dumps(self.to_dict(), indent=2, allow_nan=False).encode()
        if kind == ".html":
            name = str(self.specification["title"]["text"])
            return rendered([Section(heading=name, figures=(self.specification,))], kind=kind, title=name)
        if kind in FORMATS:
            return drawn(self.specification, kind=kind, config=theme())
        raise LaunchError(f"a figure is saved as {', '.join(FORMATS)} or .json, got {str(path)!r:.200}")

    def __repr__(self) -> str:
        return f"<Figure: {self.specification['description']}>"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        """Return the forms that a notebook chooses from; those that it does not want are its own to drop."""
        sample = sampled(self.specification)
        shown = {**_with_tooltips(sample), "$schema": _SCHEMA, "config": notebook_theme()}
        bundle: dict[str, Any] = {VEGA_LITE: shown, "text/plain": repr(self)}
        try:
            bundle["image/svg+xml"] = drawn(sample, kind=".svg", config=notebook_theme()).decode()
        except LaunchError as error:  # without the renderer: the first form needs none
            bundle["text/plain"] += f"\nNo picture is stored beside it: {error}"
        return bundle


def _with_tooltips(part: Specification) -> dict[str, Any]:
    """Return a part of a specification in which each mark with a label, and without a tooltip, shows that label."""
    found = dict(part)
    for parts in PART_LISTS & found.keys():
        found[parts] = [_with_tooltips(each) for each in found[parts]]
    if "spec" in found:
        found["spec"] = _with_tooltips(found["spec"])
    encoding = found.get("encoding", {})
    if encoding.get("description") == LABEL:
        found["encoding"] = {"tooltip": LABEL, **encoding}
    return found
