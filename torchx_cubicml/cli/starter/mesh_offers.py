"""Offers in a starter space file for a script that makes a device mesh, or tensor-parallel plans, without flags."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from torchx_cubicml.cli.starter.source_files import dotted, imported_names, parsed_modules
from torchx_cubicml.cli.starter.toml_text import toml
from torchx_cubicml.records.axis_names import mesh_axis

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from torchx_cubicml.launch import Launch

_MAKERS = {"init_device_mesh": 1, "DeviceMesh": 1, "_unflatten": 1}  # function -> position of the shape
_NAMES = {"_unflatten": 2}  # function -> position of the names, where they may be given without their keyword
_STYLES = {"ColwiseParallel": "colwise", "RowwiseParallel": "rowwise"}
_REMAINING = ("dp_shard", "dp", "dp_replicate")  # the first of these in a mesh takes the remaining ranks


def mesh_lines(launch: Launch, *, taken: Collection[str]) -> list[str]:
    """Return commented parameters with hooks for the mesh and the plans of a script; nothing without them.

    Args:
        launch: the command.
        taken: standard names that flags of the command set.

    >>> from torchx_cubicml.launch import Launch
    >>> mesh_lines(Launch(program="not/here.py"), taken=())
    []
    """
    calls = [(node, name) for _, tree in parsed_modules(launch) for node, name in _calls(tree)]
    lines = [*_mesh(calls, taken), *_sequence(calls, taken), *_placements(calls)]
    heading = (
        "# The script makes its mesh and plans without flags. Hooks can change them, and a first launch tells whether:"
    )
    return [heading, *lines] if lines else []


def _calls(tree: ast.Module) -> Iterator[tuple[ast.Call, str]]:
    """Yield the calls of a module, each with the last part of the function's name; names of literals are filled in."""
    imported, literals = imported_names(tree), _literals(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = dotted(node.func) or (node.func.attr if isinstance(node.func, ast.Attribute) else "")
            node.args = [_filled(each, literals) for each in node.args]
            for keyword in node.keywords:
                keyword.value = _filled(keyword.value, literals)
            yield node, imported.get(name, name).rpartition(".")[2]


def _literals(tree: ast.Module) -> dict[str, ast.expr]:
    """Return the names that are assigned once, with their values."""
    values: dict[str, list[ast.expr]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    values.setdefault(target.id, []).append(node.value)
    return {name: found[0] for name, found in values.items() if len(found) == 1}


def _filled(node: ast.expr, literals: Mapping[str, ast.expr]) -> ast.expr:
    return literals.get(node.id, node) if isinstance(node, ast.Name) else node


def _mesh(calls: Sequence[tuple[ast.Call, str]], taken: Collection[str]) -> list[str]:
    """Return the entry of the only mesh of several axes whose names tell what they are."""
    found = {mesh for node, name in calls if name in _MAKERS for mesh in _named_sizes(node, name)}
    if len(found) != 1:
        return []
    (mesh,) = found
    axes = [mesh_axis(name) for name, _ in mesh]
    if not all(axes) or len(set(axes)) < len(axes) or any(f"{axis}_degree" in taken for axis in axes):
        return []
    if "dp" in axes and len(set(axes) & set(_REMAINING)) > 1:
        return []
    rest = next((axis for axis in _REMAINING if axis in axes), "")
    sizes = {axis: size for axis, (_, size) in zip(axes, mesh, strict=True) if axis != rest}
    defaults = ", ".join(f"{axis} = {size or 1}" for axis, size in sizes.items())
    unknown = [axis for axis, size in sizes.items() if not size]
    remark = f"write the script's own size of {' and '.join(unknown)} here" if unknown else "as in the script"
    return [
        "# [parameters.mesh]",
        f"# mesh = [{', '.join(map(toml, axes))}]",
        '# hook = "mesh"',
        f"# default = {{ {defaults} }} # {remark}",
    ]


def _named_sizes(node: ast.Call, function: str) -> list[tuple[tuple[str, int], ...]]:
    """Return the axes of a mesh with their sizes, 0 where the source states none; nothing without several names."""
    keywords = {each.arg: each.value for each in node.keywords}
    at = _NAMES.get(function)
    named = keywords.get("mesh_dim_names", node.args[at] if at is not None and len(node.args) > at else None)
    place = _MAKERS[function]
    shape = keywords.get("mesh_shape", keywords.get("mesh_sizes", node.args[place] if len(node.args) > place else None))
    names = [each.value for each in _entries(named) if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    sizes = [
        each.value if isinstance(each, ast.Constant) and type(each.value) is int and each.value > 0 else 0
        for each in _entries(shape)
    ]
    if len(names) < 2 or len(names) != len(_entries(named)):
        return []
    sizes = sizes if len(sizes) == len(names) and function != "DeviceMesh" else [0] * len(names)
    return [tuple(zip(names, sizes, strict=True))]


def _entries(node: ast.expr | None) -> list[ast.expr]:
    return node.elts if isinstance(node, ast.Tuple | ast.List) else []


def _sequence(calls: Sequence[tuple[ast.Call, str]], taken: Collection[str]) -> list[str]:
    if "sequence_parallel" in taken or all(name != "SequenceParallel" for _, name in calls):
        return []
    return ["# [parameters.sequence_parallel]", "# choices = [true, false]", '# hook = "sequence_parallel"']


def _placements(calls: Sequence[tuple[ast.Call, str]]) -> list[str]:
    """Return one entry for each pair of column- and row-wise layers within one parent module of a plan."""
    style_of = {id(node): _STYLES[name] for node, name in calls if name in _STYLES}
    groups: dict[str, dict[str, str]] = {}
    for node, name in calls:
        for plan in [*node.args, *(each.value for each in node.keywords)] if name == "parallelize_module" else ():
            for key, style in zip(plan.keys, plan.values, strict=True) if isinstance(plan, ast.Dict) else ():
                if isinstance(key, ast.Constant) and isinstance(key.value, str) and id(style) in style_of:
                    groups.setdefault(key.value.rpartition(".")[0], {})[key.value] = style_of[id(style)]
    lines: list[str] = []
    for parent, keys in groups.items():
        if len(set(keys.values())) == 2:
            name = "_".join([*re.findall(r"[A-Za-z]\w*", parent), "placement"])
            lines += [
                f"# [parameters.{name}]",
                '# choices = ["plan", "replicated"] # plan: as the script places them',
                f"# modules = [{', '.join(map(toml, keys))}]",
                '# hook = "parallelize_module"',
            ]
    return lines
