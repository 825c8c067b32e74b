"""Search-space files: TOML in, a ``SearchSpace`` out; every error names its place in the file."""

from __future__ import annotations

from torchx_cubicml.space.toml.reader import load_space, parse_space

__all__ = ["load_space", "parse_space"]
