"""Search-space files: TOML in, a ``SearchSpace`` out; everything that a file gets wrong is told with its place."""

from __future__ import annotations

from torchx_cubicml.space_file.reader import parse_space, read_space

__all__ = ["parse_space", "read_space"]
