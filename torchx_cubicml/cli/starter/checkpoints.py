"""Detector of trainings that write checkpoints: by the text of the script, and by what earlier launches recorded."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from torchx_cubicml.launch.source_files import dotted, imported_names, parsed_modules
from torchx_cubicml.recorder.steps.checkpoint_calls import saving_names
from torchx_cubicml.records.workload import is_same_program

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torchx_cubicml.launch import Launch
    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.records.values import Workload
    from torchx_cubicml.space import SearchSpace

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
    for path, tree in parsed_modules(launch):
        call = next(_saving_calls(tree), "")
        if call:
            return f"{call} in {path}"
    return ""


def _saving_calls(tree: ast.Module) -> Iterator[str]:
    functions, methods = saving_names()
    imported = imported_names(tree)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = dotted(node.func)
        first, dot, rest = name.partition(".")
        full = f"{imported.get(first, first)}{dot}{rest}"
        is_method = isinstance(node.func, ast.Attribute) and node.func.attr in methods | _METHODS
        if full in functions or is_method:
            yield name or ast.unparse(node.func)
