"""Starter space file of ``torchx cubicml init``, generated from a command and its script's help text."""

from __future__ import annotations

from torchx_cubicml.cli.starter.starter import script_help, starter_space, unredirected_outputs

__all__ = ["script_help", "starter_space", "unredirected_outputs"]
