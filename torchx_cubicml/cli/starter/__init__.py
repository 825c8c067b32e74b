"""The starter space file that ``torchx cubicml init`` writes, from a command and its script's own help."""

from __future__ import annotations

from torchx_cubicml.cli.starter.starter import script_help, starter_space, unredirected_outputs

__all__ = ["script_help", "starter_space", "unredirected_outputs"]
