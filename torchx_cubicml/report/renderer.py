"""Renderer of figures: the package that draws Vega-Lite without a browser, where it is installed."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from torchx_cubicml.errors import LaunchError

if TYPE_CHECKING:
    from collections.abc import Mapping

    Specification = Mapping[str, Any]


def renderer() -> Any:
    """Return the package that draws figures.

    Raises:
        LaunchError: it is not installed.
    """
    try:
        return import_module("vl_convert")
    except ImportError as error:
        raise LaunchError(f"figures need vl-convert-python: pip install 'torchx-cubicml[report]' ({error})") from error
