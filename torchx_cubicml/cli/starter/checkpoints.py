"""Detector of trainings that write checkpoints: by the text of the script, and by what earlier launches recorded."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

from torchx_cubicml.launch.command_texts import program_path
from torchx_cubicml.recorder.steps.saving import saving_names
from torchx_cubicml.records.workload import is_same_program

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torchx_cubicml.launch import Launch
    from torchx_cubicml.records.trial import Trial, Workload
    from torchx_cubicml.space import SearchSpace

_MOST_FILES, _MOST_BYTES = 50, 1 << 20  # of the script and of the modules beside it
_METHODS = frozenset({"save_pretrained"})  # besides those that the recorder watches


def is_redirected(space: SearchSpace) -> bool:
    """Return whether ``[tune]`` redirects an output: by a flag, a key of a config file, or a variable."""
    changes = space.tune
    return bool(changes.args or changes.files or any("{scratch}" in value for value in changes.env.values()))


def recorded_saving(trials: Iterable[Trial], workload: Workload) -> bool:
    """Return whether a recorded launch of the same program saved checkpoints."""
    return any(trial.observed.get("saves_checkpoints") is True and is_same_program(trial, workload) for trial in trials)


def saving_call(launch: Launch) -> str:
    """Return the first call of a saving function in the script and the modules beside it; empty if none is found.

    >>> from torchx_cubicml.launch import Launch
    >>> saving_call(Launch(program="not/here.py"))
    ''
    """
    program = program_path(launch.program, is_module=launch.is_module, folder=".")
    if program is None:
        return ""
    root = Path() if launch.is_module else program.parent
    pending, seen = [program], set[Path]()
    while pending and len(seen) < _MOST_FILES:
        path = pending.pop(0)
        if path in seen:
            continue
        seen.add(path)
        tree = _parsed(path)
        if tree is None:
            continue
        call = next(_saving_calls(tree), "")
        if call:
            return f"{call} in {path}"
        pending += _local_modules(tree, path, root)
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


def _saving_calls(tree: ast.Module) -> Iterator[str]:
    functions, methods = saving_names()
    imported = _imported_names(tree)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = _dotted(node.func)
        first, dot, rest = name.partition(".")
        full = f"{imported.get(first, first)}{dot}{rest}"
        is_method = isinstance(node.func, ast.Attribute) and node.func.attr in methods | _METHODS
        if full in functions or is_method:
            yield name or ast.unparse(node.func)


def _imported_names(tree: ast.Module) -> dict[str, str]:
    """Return the names that imports bind, with what they stand for."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.asname: alias.name for alias in node.names if alias.asname}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return names


def _dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        inner = _dotted(node.value)
        return f"{inner}.{node.attr}" if inner else ""
    return ""
