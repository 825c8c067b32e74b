"""Config files that a program gives to Hydra in its source, by the decorator of its main function."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from torchx_cubicml.launch.command_facts.source_literals import literal
from torchx_cubicml.launch.source_files import dotted, nodes_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from torchx_cubicml.launch.source_files import SourceFile

_SUFFIXES = (".yaml", ".yml")


def hydra_files(files: Sequence[SourceFile]) -> Iterator[Path]:
    """Yield the main config files of ``hydra.main``; those that these name in turn are not followed."""
    for file in files:
        for node in nodes_of(file.tree) if file.tree is not None else ():
            if isinstance(node, ast.Call) and dotted(node.func) in {"hydra.main", "main"}:
                options = {each.arg: literal(each.value) for each in node.keywords if each.arg}
                folder, name = options.get("config_path"), options.get("config_name")
                if isinstance(folder, str) and isinstance(name, str):
                    path = file.path.parent / folder / name
                    candidates = [path] if path.suffix in _SUFFIXES else [path.with_name(path.name + _SUFFIXES[0])]
                    yield from (each for each in candidates if each.is_file())
