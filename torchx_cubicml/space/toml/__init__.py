"""Search-space files: TOML in, a ``SearchSpace`` out; everything that a file gets wrong is told with its place."""

from __future__ import annotations

from torchx_cubicml.space.toml.reader import load_space, parse_space

__all__ = ["load_space", "parse_space"]
