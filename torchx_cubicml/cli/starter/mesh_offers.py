"""Offers in a starter space file for a script that makes a device mesh, or tensor-parallel plans, without flags."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchx_cubicml.cli.starter.toml_text import toml
from torchx_cubicml.launch.source_files import dotted, imported_names, parsed_modules
from torchx_cubicml.records.axis_names import mesh_axis

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from torchx_cubicml.launch import Launch

_MAKERS = {"init_device_mesh": "mesh_shape", "DeviceMesh": "mesh", "_unflatten": "mesh_sizes"}
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
    calls = [call for _, tree in parsed_modules(launch) for call in _calls(tree)]
    lines = [*_mesh(calls, taken), *_sequence(calls, taken), *_placements(calls)]
    heading = (
        "# The script makes its mesh and plans without flags. Hooks can change them, and a first launch tells whether:"
    )
    return [heading, *lines] if lines else []


@dataclass(frozen=True, slots=True, kw_only=True)
class _SourceCall:
    """Call in the source of a script.

    Args:
        node: the call.
        name: last part of the function's name.
        values: name of a variable -> the list, tuple or dict that is its only value in this file.
    """

    node: ast.Call
    name: str
    values: Mapping[str, ast.expr]

    def argument(self, keyword: str, position: int | None = None) -> ast.expr | None:
        """Return an argument by its keyword or its position, with the value in place of a variable's name."""
        given = {each.arg: each.value for each in self.node.keywords}.get(keyword)
        if given is None and position is not None and position < len(self.node.args):
            given = self.node.args[position]
        return self.values.get(given.id, given) if isinstance(given, ast.Name) else given


def _calls(tree: ast.Module) -> Iterator[_SourceCall]:
    """Yield the calls of a module."""
    imported, values = imported_names(tree), _values(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = dotted(node.func) or (node.func.attr if isinstance(node.func, ast.Attribute) else "")
            yield _SourceCall(node=node, name=imported.get(name, name).rpartition(".")[2], values=values)


def _values(tree: ast.Module) -> dict[str, ast.expr]:
    """Return the variables that are assigned once, and to a list, a tuple or a dict."""
    found: dict[str, list[ast.expr]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    found.setdefault(target.id, []).append(node.value)
    once = {name: values[0] for name, values in found.items() if len(values) == 1}
    return {name: value for name, value in once.items() if isinstance(value, ast.List | ast.Tuple | ast.Dict)}


def _mesh(calls: Sequence[_SourceCall], taken: Collection[str]) -> list[str]:
    """Return the entry of the only mesh of several axes whose names tell what they are."""
    found = {mesh for call in calls if call.name in _MAKERS for mesh in _named_sizes(call)}
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


def _named_sizes(call: _SourceCall) -> list[tuple[tuple[str, int], ...]]:
    """Return the axes of a mesh with their sizes, 0 where the source states none; nothing without several names."""
    named = call.argument("mesh_dim_names", 2 if call.name == "_unflatten" else None)
    shape = call.argument(_MAKERS[call.name], 1)
    names = [each.value for each in _entries(named) if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    sizes = [
        each.value if isinstance(each, ast.Constant) and type(each.value) is int and each.value > 0 else 0
        for each in _entries(shape)
    ]
    if len(names) < 2 or len(names) != len(_entries(named)):
        return []
    sizes = sizes if len(sizes) == len(names) and call.name != "DeviceMesh" else [0] * len(names)
    return [tuple(zip(names, sizes, strict=True))]


def _entries(node: ast.expr | None) -> list[ast.expr]:
    return node.elts if isinstance(node, ast.Tuple | ast.List) else []


def _sequence(calls: Sequence[_SourceCall], taken: Collection[str]) -> list[str]:
    if "sequence_parallel" in taken or all(call.name != "SequenceParallel" for call in calls):
        return []
    return ["# [parameters.sequence_parallel]", "# choices = [true, false]", '# hook = "sequence_parallel"']


def _placements(calls: Sequence[_SourceCall]) -> list[str]:
    """Return one entry for each pair of column- and row-wise layers within one parent module of a plan."""
    style_of = {id(call.node): _STYLES[call.name] for call in calls if call.name in _STYLES}
    groups: dict[str, dict[str, str]] = {}
    for call in calls:
        plan = call.argument("parallelize_plan", 2) if call.name == "parallelize_module" else None
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
