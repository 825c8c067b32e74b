"""Console lines of the recorder, written to stderr."""

from __future__ import annotations

import sys

from torchx_cubicml.records.redaction import mask


def notice(text: str) -> None:
    """Write one line to stderr with secrets redacted; do nothing if stderr is closed."""
    try:
        sys.stderr.write(f"torchx-cubicml: {mask(' '.join(text.split()))}\n")
        sys.stderr.flush()
    except (AttributeError, OSError, ValueError):
        return


def warn(text: str) -> None:
    """Write one warning to stderr."""
    notice(f"warning: {text}")
