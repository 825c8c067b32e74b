"""Bindings in a space file (flag, variable, key of a file, hook), and the changes of ``[tune]``."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from torchx_cubicml.errors import SpaceError
from torchx_cubicml.facts.hook_registry import hook_names, hook_spec
from torchx_cubicml.records.redaction import names_secret
from torchx_cubicml.space import Binding, BindingKind, Parameter, TuneChanges
from torchx_cubicml.space.arithmetic import kind
from torchx_cubicml.space.expression import parse_expression
from torchx_cubicml.space.parameter import OF_MACHINE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchx_cubicml.facts.hook_registry import HookSpec
    from torchx_cubicml.records.values import Scalar
    from torchx_cubicml.space import SearchSpace
    from torchx_cubicml.space.toml.schema import TomlTable

BINDING_KEYS = (*BindingKind, "key")
SIZES = ("nnodes", "nproc_per_node")
PLACEHOLDERS = ("{scratch}", "{launch_id}")

_MUST_NAME_FILE = (
    "must name the file as the command does: a flag such as '--deepspeed_config', a variable such as '$CONFIG', or the "
    "path as typed, in which * matches anything"
)
_NOT_RECORDED = "secrets are never recorded; bind something whose name does not suggest one"
_FLAG = re.compile(r"--?[A-Za-z][A-Za-z0-9_.-]*=?|[A-Za-z_][A-Za-z0-9_./@-]*=")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_COMPONENT_OPTION = re.compile(r"-[A-Za-z]|--[A-Za-z][A-Za-z0-9_]*")
_FILE = re.compile(rf"{_FLAG.pattern}|\$[A-Za-z_][A-Za-z0-9_]*|[^\s$-][^\x00-\x1f$=]*")
_MAX_MODULES = 64
_MODULE = re.compile(r"[\w*?\[\]!-]+(\.[\w*?\[\]!-]+)*")
_PLACEHOLDER = re.compile(r"\{[a-z_]*\}")


def read_binding(table: TomlTable) -> Binding:
    """Return the binding that a table states.

    Raises:
        SpaceError: the table states no place or several, the flag or variable is not legal, or its name is a secret's.
    """
    stated = [str(kind) for kind in BindingKind if kind in table]
    if len(stated) != 1:
        got = " and ".join(stated) or "none"
        raise SpaceError(f"{table.place}: needs exactly one of {', '.join(BindingKind)}, got {got}")
    name = table.text(stated[0]) or ""
    if stated[0] == "file":
        return _read_file(table, name)
    if "key" in table:
        raise table.error("key", "only allowed together with file")
    if stated[0] == "hook":
        return Binding(kind=BindingKind.HOOK, name=_hook_place(table, name))
    if "modules" in table:
        raise _only_with_modules(table)
    if stated[0] == "torchrun":
        return _read_size(table, name)
    if stated[0] in OF_MACHINE:
        return _read_job_option(table, stated[0], name)
    return _read_named(table, stated[0], place=stated[0])


def read_flag(table: TomlTable, key: str) -> Binding:
    """Return the binding to the flag that ``key`` states.

    Raises:
        SpaceError: the flag is not legal, or its name is a secret's.
    """
    return _read_named(table, key, place=BindingKind.FLAG)


def _read_named(table: TomlTable, key: str, *, place: str) -> Binding:
    """Return the binding to a flag or a variable."""
    name = table.text(key) or ""
    _check_name(table, key, name, kind=place)
    if names_secret(name):
        raise table.error(key, _NOT_RECORDED)
    return Binding(kind=place, name=name, aliases=_aliases(name))


def read_tune(table: TomlTable) -> TuneChanges:
    """Return the changes of a profiling launch in ``[tune]``.

    Raises:
        SpaceError: a key is no legal flag or variable, or a value is no text or has an unknown placeholder.
    """
    return TuneChanges(
        args=_read_changes(table.table("args", legal=None), BindingKind.FLAG),
        env=_read_changes(table.table("env", legal=None), BindingKind.ENV),
        files={file: _read_keys(table.table("files", legal=None), file) for file in table.table("files", legal=None)},
    )


def places_of(binding: Binding) -> tuple[str, ...]:
    """Return the places of a binding that no other one may have: one per module of a group, else its names."""
    hook, dot, modules = binding.name.partition(".")
    if binding.kind == BindingKind.HOOK and dot:
        return tuple(f"{hook}.{module}" for module in modules.split(","))
    return (binding.name, *binding.aliases)


def hook_default(table: TomlTable, choices: Sequence[Scalar]) -> Scalar:
    """Return the default of a hook: torch's or TorchRec's own, for a script that does not set it.

    Raises:
        SpaceError: there is no such hook, a choice is no value of it, the choices mix two families, or the hook sets
            values for layers and not for tables, or the other way round.
    """
    name = table.text("hook") or ""
    if name not in hook_names():
        raise table.unknown("hook", "hook", name, hook_names())
    spec = hook_spec(name)
    if spec.parts == "mesh":
        raise table.error("hook", 'only allowed together with mesh = ["dp_shard", "tp"] and the like')
    _check_entries(table, spec)
    if spec.default_share is not None:
        if not choices or not all(isinstance(choice, float | int) and _is_share(choice) for choice in choices):
            raise table.error("choices" if choices else "hook", f"hook = '{name}' needs choices from 0 to below 1")
        return spec.default_share
    for family in spec.values:
        if choices and {(kind(each), each) for each in choices} <= {(kind(each), each) for each in family}:
            return family[0]
    legal = ", or from ".join(", ".join(map(_as_toml, family)) for family in spec.values)
    raise table.error("choices" if choices else "hook", f"hook = '{name}' needs choices from {legal}")


def _hook_place(table: TomlTable, hook: str) -> str:
    """Return the place that a hook sets: the hook's name, with the modules that it places.

    Raises:
        SpaceError: the hook places modules and the table names none, or it does not and the table names some.
    """
    if hook_spec(hook).parts != "modules":
        if "modules" in table:
            raise _only_with_modules(table)
        return hook
    if "modules" not in table:
        raise SpaceError(
            f"{table.place}: hook = '{hook}' needs modules, a list of keys of the script's own plan, such as "
            "['layers.*.up', 'layers.*.down']"
        )
    keys = table.values("modules", most=_MAX_MODULES)
    if not all(isinstance(key, str) and _MODULE.fullmatch(key) for key in keys) or len(set(keys)) < len(keys):
        raise table.error("modules", "must be different keys of a plan, such as 'layers.*.up'")
    return f"{hook}.{','.join(map(str, keys))}"


def _only_with_modules(table: TomlTable) -> SpaceError:
    """Return the error on modules without a hook that places them."""
    return table.error("modules", f"only allowed together with hook = {hooks_of('modules')}")


def hooks_of(parts: str) -> str:
    """Return the hooks that set the places which a key of a space file names, in words.

    >>> hooks_of("mesh")
    "'mesh'"
    """
    return " or ".join(repr(name) for name in hook_names() if hook_spec(name).parts == parts)


def _check_entries(table: TomlTable, spec: type[HookSpec]) -> None:
    """Check that a parameter has one value per layer, per table or for the job, as its hook takes it."""
    for each in ("layer", "table"):
        if f"per_{each}" in table and each != spec.per:
            rule = f"takes per_{spec.per}" if spec.per else "takes one value"
            raise table.error(f"per_{each}", f"hook = '{spec.name}' {rule}")


def _is_share(number: float) -> bool:
    return not isinstance(number, bool) and 0 <= number < 1


def _as_toml(value: Scalar) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _read_size(table: TomlTable, name: str) -> Binding:
    """Return the binding to one of torchrun's sizes, whose name the parameter must have."""
    size = name.removeprefix("--").replace("-", "_")
    if size not in SIZES or size != table.name:
        legal = " or ".join(f"'--{legal}' for the parameter {legal}" for legal in SIZES)
        raise table.error("torchrun", f"must be {legal}")
    return Binding(kind=BindingKind.TORCHRUN, name=size)


def _read_job_option(table: TomlTable, key: str, name: str) -> Binding:
    """Return the binding to an option of the component or of the scheduler."""
    for counted in ("per_layer", "per_table"):
        if counted in table:
            raise table.error(counted, f"not allowed together with {key}, which takes one value")
    if names_secret(name):
        raise table.error(key, _NOT_RECORDED)
    if key == BindingKind.COMPONENT:
        return _read_component_option(table, name)
    if not _VARIABLE.fullmatch(name):
        raise table.error(key, "must be an option of the scheduler without dashes, as in -cfg: 'partition'")
    return Binding(kind=BindingKind.SCHEDULER, name=name)


def _read_component_option(table: TomlTable, name: str) -> Binding:
    """Return the binding to an option of the component; ``-j`` holds both of torchrun's sizes."""
    if not _COMPONENT_OPTION.fullmatch(name):
        raise table.error("component", "must be an option of the component with its dashes, such as '-h' or '--gpu'")
    flag = name[1:] if len(name) == len("--h") else name  # TorchX knows an option of one letter by both
    if flag != "-j":
        return Binding(kind=BindingKind.COMPONENT, name=flag)
    if table.name not in SIZES:
        raise table.error("component", f"holds two numbers: bind the parameters {' and '.join(SIZES)} to it")
    return Binding(kind=BindingKind.TORCHRUN, name=table.name)


def with_derived_world_size(space: SearchSpace) -> SearchSpace:
    """Return the space, with a derived world size if torchrun's sizes are tuned."""
    names = {item.name for item in space.parameters} | {item.name for item in space.workload}
    sized = any(item.binding is not None and item.binding.kind == BindingKind.TORCHRUN for item in space.parameters)
    if not sized or "world_size" in names:
        return space
    derive = parse_expression(" * ".join(SIZES), where="world_size")
    return replace(space, parameters=(*space.parameters, Parameter(name="world_size", derive=derive)))


def _read_file(table: TomlTable, name: str) -> Binding:
    """Return the binding to a key of a config file that the command names."""
    if not _FILE.fullmatch(name):
        raise table.error("file", _MUST_NAME_FILE)
    key = table.text("key") or ""
    names = tuple(key.split("."))
    if not all(names):
        raise table.error("key", "must be a key in the file, such as 'zero_optimization.stage'")
    if any(map(names_secret, (name, *names))):
        raise table.error("key", _NOT_RECORDED)
    return Binding(kind=BindingKind.FILE, name=f"{key} in {name}", file=name, key=names)


def _read_changes(table: TomlTable, kind: str) -> dict[str, str]:
    for key in table:
        _check_name(table, key, key, kind=kind)
    return {key: _filled_text(table, key) for key in table}


def _read_keys(files: TomlTable, file: str) -> dict[tuple[str, ...], str]:
    if not _FILE.fullmatch(file):
        raise files.error(file, _MUST_NAME_FILE)
    keys = files.table(file, legal=None)
    for key in keys:
        if not all(key.split(".")):
            raise keys.error(key, "must be a key in the file, such as 'train.output_dir'")
    return {tuple(key.split(".")): _filled_text(keys, key) for key in keys}


def _filled_text(table: TomlTable, key: str) -> str:
    text = table.text(key) or ""
    unknown = sorted(set(_PLACEHOLDER.findall(text)).difference(PLACEHOLDERS))
    if unknown:
        raise table.error(key, f"unknown placeholder {unknown[0]} (choose from {', '.join(PLACEHOLDERS)})")
    return text


def _aliases(name: str) -> tuple[str, ...]:
    """Return the spellings with which Hydra adds a key: ``+section.key=4`` and ``++section.key=4``."""
    return (f"+{name}", f"++{name}") if name.endswith("=") and not name.startswith("-") else ()


def _check_name(table: TomlTable, key: str, name: str, *, kind: str) -> None:
    pattern = _FLAG if kind == BindingKind.FLAG else _VARIABLE
    if not pattern.fullmatch(name):
        flag = "a flag with its dashes, such as '--batch_size', or the text before a value, such as 'model.layers='"
        raise table.error(key, f"must be {flag if kind == BindingKind.FLAG else 'the name of a variable'}")
