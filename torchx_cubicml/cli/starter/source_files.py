"""Parsed source files of a program: the script, and the modules beside it that it imports."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

from torchx_cubicml.launch.bindings.argv import positionals
from torchx_cubicml.launch.command_texts import program_path

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torchx_cubicml.launch import Launch

_LAUNCHERS = frozenset({"accelerate.commands.launch", "deepspeed.launcher.runner", "torch.distributed.run"})
_MOST_FILES, _MOST_BYTES = 50, 1 << 20  # of the script and of the modules beside it


def parsed_modules(launch: Launch) -> Iterator[tuple[Path, ast.Module]]:
    """Yield path and syntax tree of the script and of the modules beside it, nearest first; nothing is run.

    >>> from torchx_cubicml.launch import Launch
    >>> list(parsed_modules(Launch(program="not/here.py")))
    []
    """
    program = _script(launch)
    root = Path() if launch.is_module and launch.program not in _LAUNCHERS else program.parent
    pending, seen = [program], set[Path]()
    while pending and len(seen) < _MOST_FILES:
        path = pending.pop(0)
        if path in seen:
            continue
        seen.add(path)
        tree = _parsed(path)
        if tree is not None:
            yield path, tree
            pending += _local_modules(tree, path, root)


def _script(launch: Launch) -> Path:
    """Return the file of the program; of a launcher's module, the script that it starts."""
    if launch.is_module and launch.program in _LAUNCHERS:
        return Path(next((word for word in positionals(launch.script_args) if word.endswith(".py")), ""))
    return program_path(launch.program, is_module=launch.is_module, folder=".") or Path(launch.program)


def imported_names(tree: ast.Module) -> dict[str, str]:
    """Return the names that imports bind, with what they stand for."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.asname: alias.name for alias in node.names if alias.asname}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return names


def dotted(node: ast.expr) -> str:
    """Return the dotted name that an expression is; empty for any other expression."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        inner = dotted(node.value)
        return f"{inner}.{node.attr}" if inner else ""
    return ""


def _parsed(path: Path) -> ast.Module | None:
    try:
        if path.is_file() and path.stat().st_size <= _MOST_BYTES:
            return ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        pass  # a hint only: a script that cannot be read is launched as it is
    return None


def _local_modules(tree: ast.Module, path: Path, root: Path) -> Iterator[Path]:
    for node in ast.walk(tree):
        names: list[str] = []
        base = root
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            names = [module, *(f"{module}.{alias.name}".strip(".") for alias in node.names)]
            if node.level:
                base = path.parents[min(node.level, len(path.parents)) - 1]
        for name in filter(None, names):
            inner = base.joinpath(*name.split("."))
            yield from (place for place in (inner.with_suffix(".py"), inner / "__init__.py") if place.is_file())
