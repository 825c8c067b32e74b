"""TOML blocks of the pages, read as space files."""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING, Any

import tomlkit

from torchx_cubicml.space.toml import parse_space

if TYPE_CHECKING:
    from tests.documentation.blocks import Block
    from torchx_cubicml import SearchSpace

# What a fragment is a part of.
SMALLEST = """
[parameters.micro_batch_size]
choices = [1, 2, 4]
flag = "--batch_size"
"""


def read_space(block: Block) -> SearchSpace:
    """Read a block as a space file; a fragment as a part of the smallest one."""
    if "fragment" not in block.rules:
        return parse_space(block.tested, where=block.place)
    return parse_space(tomlkit.dumps(merged(tomllib.loads(SMALLEST), tomllib.loads(block.tested))), where=block.place)


def merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Merge two tables; the values of the second one count."""
    both = {
        name: merged(below[name], value) if isinstance(value, dict) and isinstance(below.get(name), dict) else value
        for name, value in above.items()
    }
    return {**below, **both}
