"""Starter space file of ``torchx cubicml init``, generated from a command and its script's help text."""

from __future__ import annotations

from torchx_cubicml.cli.starter.from_launches import RecordedLaunches
from torchx_cubicml.cli.starter.outputs import is_redirected, recorded_saving, saving_call, unredirected_outputs
from torchx_cubicml.cli.starter.script import script_help
from torchx_cubicml.cli.starter.starter import starter_space
from torchx_cubicml.cli.starter.toml_text import NO_FLAG

__all__ = [
    "NO_FLAG",
    "RecordedLaunches",
    "is_redirected",
    "recorded_saving",
    "saving_call",
    "script_help",
    "starter_space",
    "unredirected_outputs",
]
