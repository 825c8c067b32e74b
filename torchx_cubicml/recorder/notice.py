"""The recorder's lines on stderr."""

from __future__ import annotations

import sys


def notice(text: str) -> None:
    """Write one line to stderr; where that is closed, nobody is told."""
    try:
        sys.stderr.write(f"torchx-cubicml: {text}\n")
        sys.stderr.flush()
    except (AttributeError, OSError, ValueError):
        return


def warn(text: str) -> None:
    """Write one warning to stderr."""
    notice(f"warning: {text}")
