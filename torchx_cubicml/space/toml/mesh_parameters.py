"""Device mesh in a space file: one entry whose axes become parameters, whose product is the world size.

``mesh = ["dp_shard", "tp"]`` declares ``dp_shard_degree`` and ``tp_degree``. A data-parallel axis is derived as the
remaining ranks (as in torchtitan and GSPMD-style meshes); each other axis has the divisors of the world size to choose
from. Constraints, rules and predictors read the degrees.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import permutations
from typing import TYPE_CHECKING

from torchx_cubicml.errors import SpaceError
from torchx_cubicml.facts.hook_registry import hook_names, hook_spec
from torchx_cubicml.records.axis_names import MESH_AXES
from torchx_cubicml.space.constraints import NOT_DATA_PARALLEL, dp_degree_expression
from torchx_cubicml.space.expression import parse_expression
from torchx_cubicml.space.parameter import Binding, BindingKind, Parameter
from torchx_cubicml.space.toml.bindings import hooks_of, read_flag
from torchx_cubicml.space.toml.key_meanings import MESH
from torchx_cubicml.space.toml.trainer import trainer_parameter

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from torchx_cubicml.space.expression import Expression
    from torchx_cubicml.space.toml.schema import TomlTable
    from torchx_cubicml.space.trainers import Trainer

MESH_KEYS = tuple(MESH)
MAX_DEGREE = 1024  # of an axis whose size is chosen
MESH_ORDER = "mesh_order"
_ORDER = "order"  # place of the hook
_MAX_ORDERED = 4  # axes whose order may change
_DATA = ("dp_shard", "dp", "dp_replicate")  # the first of these in a mesh takes the remaining ranks
_REMAINING = (-1, 0)  # values by which trainers ask for the remaining ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredMesh:
    """The parameters of one mesh, with the constraints that tie them together.

    Args:
        parameters: one per axis, in the order of the mesh; none for ``dp`` where the command does not state it; and
            one for their order, if that may change.
        constraints: the product, if no axis is derived; limits of a derived axis.
    """

    parameters: tuple[Parameter, ...]
    constraints: tuple[Expression, ...]


def is_mesh(tables: TomlTable, name: str) -> bool:
    """Return whether an entry of ``[parameters]`` declares a mesh."""
    table = tables.raw(name)
    return isinstance(table, dict) and "mesh" in table


def read_mesh(tables: TomlTable, name: str, *, declared: Collection[str], trainer: Trainer | None) -> DeclaredMesh:
    """Return the parameters of the mesh ``[parameters.name]``.

    Args:
        tables: the table ``[parameters]``.
        name: name of the entry.
        declared: names of the file's other parameters and facts.
        trainer: trainer whose table knows the flags of the axes.

    Raises:
        SpaceError: a rule is broken.
    """
    table = tables.table(name, legal=MESH_KEYS)
    axes = _read_axes(table)
    remaining = next((axis for axis in _DATA if axis in axes), "")
    known = {*declared, *map(degree_of, axes), *(trainer.flags if trainer is not None else ())}
    parameters, constraints = [], []
    for axis, most in zip(axes, _read_limits(table, axes), strict=True):
        place = f"{table.place}.{axis}"
        binding = _read_binding(table, axis, trainer)
        if axis != remaining:
            parameters.append(_chosen(table, axis, binding, most=most, trainer=trainer))
            continue
        if axis != "dp" or binding is not None:
            parameters.append(_derived(axis, binding, known, place))
        if most is not None:
            constraints.append(parse_expression(f"{degree_of(axis)} <= {most}", where=place))
    if table.switch("order"):
        parameters.append(_order(table, axes))
    if not remaining:
        product = " * ".join(map(degree_of, axes))
        constraints.append(parse_expression(f"{product} == world_size", where=table.place))
    return DeclaredMesh(parameters=tuple(parameters), constraints=tuple(constraints))


def degree_of(axis: str) -> str:
    """Return the name of the parameter that is the size of an axis."""
    return f"{axis}_degree"


def _read_axes(table: TomlTable) -> tuple[str, ...]:
    axes = table.values("mesh", most=len(MESH_AXES))
    for axis in axes:
        if axis not in MESH_AXES:
            raise table.unknown("mesh", "axis", str(axis), MESH_AXES)
    names = tuple(map(str, axes))
    if len(set(names)) < len(names):
        raise table.error("mesh", "must name each axis once")
    if "dp" in names and len(set(names) & set(_DATA)) > 1:
        raise table.error("mesh", "must name either dp, or dp_replicate and dp_shard, whose product it is")
    if len(names) < 2:
        raise table.error("mesh", "must name at least two axes")
    return names


def _read_limits(table: TomlTable, axes: Sequence[str]) -> list[int | None]:
    limits = table.table("most", legal=axes)
    return [limits.count(axis) for axis in axes]


def _read_binding(table: TomlTable, axis: str, trainer: Trainer | None) -> Binding | None:
    """Return the place of an axis: its flag in the file, the hook, or the trainer's flag."""
    flags = table.table("flags", legal=_axes_in(table))
    hook = table.text("hook")
    if hook is not None and (hook not in hook_names() or hook_spec(hook).parts != "mesh"):
        raise table.error("hook", f"must be {hooks_of('mesh')}")
    if hook is not None and len(flags):
        raise table.error("flags", "not allowed together with hook")
    if hook is not None:
        return Binding(kind=BindingKind.HOOK, name=f"{hook}.{axis}")
    if axis in flags:
        return read_flag(flags, axis)
    known = trainer_parameter(trainer, degree_of(axis))
    return known.binding if known is not None else None


def _axes_in(table: TomlTable) -> tuple[str, ...]:
    axes = table.raw("mesh")
    return tuple(map(str, axes)) if isinstance(axes, list) else ()


def _chosen(
    table: TomlTable, axis: str, binding: Binding | None, *, most: int | None, trainer: Trainer | None
) -> Parameter:
    """Return the parameter of an axis whose size is chosen."""
    if binding is None:
        raise SpaceError(
            f'{table.place}: axis {axis} needs a place in the command: flags = {{ {axis} = "--flag" }}, '
            'hook = "mesh", or a trainer whose table has its flag'
        )
    default = table.table("default", legal=_axes_in(table)).count(axis)
    if default is None and binding.kind == BindingKind.HOOK:
        raise SpaceError(
            f"{table.place}: hook = 'mesh' needs the script's own size of each axis that is chosen: "
            f"default = {{ {axis} = 1 }}"
        )
    flags = table.table("flags", legal=_axes_in(table))
    known = trainer_parameter(trainer, degree_of(axis)) if axis not in flags else None
    is_known = known is not None and binding == known.binding
    if is_known and default is not None:
        binding = replace(binding, unless=(), file_default=default)
    return Parameter(
        name=degree_of(axis),
        choices=tuple(range(1, (most or MAX_DEGREE) + 1)),
        divides="world_size",
        binding=binding,
        default=known.default if known is not None and is_known and default is None else default,
    )


def _derived(axis: str, binding: Binding | None, known: set[str], place: str) -> Parameter:
    """Return the parameter of the axis that takes the remaining ranks."""
    if axis == "dp":
        derive = dp_degree_expression(known & set(NOT_DATA_PARALLEL))
    elif axis == "dp_shard" and "dp_replicate_degree" in known:
        derive = parse_expression("dp_degree / dp_replicate_degree", where=place)
    else:
        derive = parse_expression("dp_degree", where=place)
    implied = replace(binding, implied=True, implied_by=_REMAINING) if binding is not None else None
    return Parameter(name=degree_of(axis), derive=derive, binding=implied, observe=degree_of(axis))


def _order(table: TomlTable, axes: Sequence[str]) -> Parameter:
    """Return the parameter of the order of the axes, which counts if two of them have several ranks."""
    hook = table.text("hook")
    if hook is None:
        raise table.error("order", "only allowed together with hook = 'mesh'")
    if len(axes) > _MAX_ORDERED:
        raise table.error("order", f"only allowed with at most {_MAX_ORDERED} axes")
    degrees = [*map(degree_of, axes)]
    when = f"{' * '.join(degrees)} > max({', '.join(degrees)})"
    return Parameter(
        name=MESH_ORDER,
        choices=tuple(",".join(each) for each in permutations(axes)),
        when=parse_expression(when, where=f"{table.place}.order"),
        binding=Binding(kind=BindingKind.HOOK, name=f"{hook}.{_ORDER}"),
        default=",".join(axes),
    )
