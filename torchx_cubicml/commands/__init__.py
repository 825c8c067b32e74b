"""The sub-commands of ``torchx cubicml``: one file each, listed in ``torchx_cubicml.cli``."""

from __future__ import annotations
