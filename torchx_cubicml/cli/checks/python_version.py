"""Check of this Python: its version, and those of this package and torch."""

from __future__ import annotations

import platform
import re
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from torchx_cubicml.cli.checks.finding import Finding, ok, wrong

if TYPE_CHECKING:
    from torchx_cubicml.cli.checks.context import CheckContext

NAME, PLACE = "Python here", 10
LEAST_PYTHON, LEAST_TORCH = (3, 11), (2, 4)
"""Oldest versions that are supported, as ``pyproject.toml`` states them."""


def check(context: CheckContext) -> Finding:
    """Check the versions that are installed where launches start."""
    del context
    found = f"Python {platform.python_version()} ({sys.executable})"
    if sys.version_info < LEAST_PYTHON:
        return wrong(found, "use Python 3.11 or newer, and install the package there")
    for name in ("torchx-cubicml", "torch"):
        try:
            text = version(name)
        except PackageNotFoundError:
            return wrong(f"{found}; {name} is not installed", f"{sys.executable} -m pip install {name}")
        found += f", {name} {text}"
        if name == "torch" and is_older(text, LEAST_TORCH):
            return wrong(found, f"{sys.executable} -m pip install 'torch>=2.4'")
    return ok(found)


def is_older(text: str, least: tuple[int, int]) -> bool:
    """Return whether a version is older than ``least``; not one that is no number.

    >>> is_older("2.3.1", (2, 4)), is_older("2.13.0+cpu", (2, 4)), is_older("2026.11.26", (0, 7))
    (True, False, False)
    """
    match = re.match(r"(\d+)\.(\d+)", text)
    return match is not None and (int(match[1]), int(match[2])) < least
