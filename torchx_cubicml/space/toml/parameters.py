"""Reader of the ``[parameters]`` table of a space file: names, legal values, conditions."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from types import MappingProxyType
from typing import TYPE_CHECKING

from torchx_cubicml.errors import SpaceError
from torchx_cubicml.space import Parameter, WorkloadFact
from torchx_cubicml.space.arithmetic import kind
from torchx_cubicml.space.expression import is_name, parse_expression
from torchx_cubicml.space.toml.bindings import BINDING_KEYS, hook_default, read_binding
from torchx_cubicml.space.toml.key_meanings import FACT, PARAMETER, RANGE
from torchx_cubicml.space.toml.schema import closest
from torchx_cubicml.space.toml.trainer import check_values, no_values_text, read_short_form, trainer_parameter
from torchx_cubicml.space.trainers import STANDARD_PARAMETERS, TRAINERS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torchx_cubicml.records.values import Scalar, Value
    from torchx_cubicml.space import Binding
    from torchx_cubicml.space.expression import Expression
    from torchx_cubicml.space.toml.schema import TomlTable
    from torchx_cubicml.space.toml.trainer import TrainerParameter
    from torchx_cubicml.space.trainers import Trainer


_AS_WRITTEN: Mapping[str, str] = MappingProxyType({})
MAX_CHOICES = 100_000
MAX_FORMER_NAMES = 32
RANGE_KEYS = tuple(RANGE)


def read_choices(table: TomlTable) -> tuple[Scalar, ...]:
    """Return the legal values that a parameter's table states.

    Raises:
        SpaceError: the table states none, or breaks a rule.
    """
    in_range = [key for key in RANGE_KEYS if key in table]
    if "choices" in table:
        if in_range:
            raise table.error(in_range[0], "not allowed together with choices")
        return table.values("choices", most=MAX_CHOICES)
    low, high = table.number("low"), table.number("high")
    if low is None or high is None:
        raise SpaceError(f"{table.place}: needs choices, low and high, or derive")
    if low > high:
        raise table.error("high", f"must be at least low = {low!r}")
    if "scale" in table:
        return _doubling(table, low, high)
    return _even(table, low, high)


def _doubling(table: TomlTable, low: float, high: float) -> tuple[Scalar, ...]:
    if table.text("scale") != "log2":
        raise table.error("scale", "must be 'log2'")
    if "step" in table:
        raise table.error("step", 'not allowed together with scale = "log2"')
    if low <= 0:
        raise table.error("low", 'must be above 0 with scale = "log2"')
    values = [low]
    while values[-1] * 2 <= high:
        values.append(values[-1] * 2)
    return tuple(values)


def _even(table: TomlTable, low: float, high: float) -> tuple[Scalar, ...]:
    step = table.number("step")
    whole = isinstance(low, int) and isinstance(high, int) and isinstance(step, int | None)
    if step is None:
        if not whole:
            raise table.error("step", "required if low or high has a decimal point")
        step = 1
    if step <= 0:
        raise table.error("step", "must be above 0")
    # Exact decimal arithmetic: 0.1, 0.2, 0.3 and not 0.30000000000000004.
    first, last, stride = (Fraction(repr(number)) for number in (low, high, step))
    count = (last - first) // stride + 1
    if count > MAX_CHOICES:
        raise table.error("step", f"the range has {count:.3e} values, more than the limit of {MAX_CHOICES}")
    numbers = (first + index * stride for index in range(count))
    return tuple(int(number) if whole else float(number) for number in numbers)


PARAMETER_KEYS = tuple(PARAMETER)
FACT_KEYS = tuple(FACT)
_TRAINERS = ", ".join(TRAINERS)
NOT_BESIDE_DERIVE = ("choices", *RANGE_KEYS, "per_layer", "per_table", "groups")


def read_parameter(
    tables: TomlTable,
    name: str,
    *,
    facts: Sequence[str],
    where: str,
    trainer: Trainer | None = None,
    names: Mapping[str, str] = _AS_WRITTEN,
) -> Parameter:
    """Return the parameter ``[parameters.name]``.

    Args:
        tables: the table ``[parameters]``.
        name: name of the parameter.
        facts: names of the workload facts, one of which may count its entries.
        where: the file.
        trainer: trainer whose table fills in missing keys.
        names: name in the file -> standard name, where they differ.

    Raises:
        SpaceError: a rule is broken.
    """
    if not isinstance(tables.raw(name), dict):
        if trainer is None:
            raise tables.error(name, f"must be a table; a plain value needs trainer = one of {_TRAINERS}")
        return _with_file_in_errors(where, lambda: read_short_form(tables, name, trainer))
    table = tables.table(name, legal=PARAMETER_KEYS)
    derive = table.text("derive")
    if derive is not None:
        beside = [key for key in NOT_BESIDE_DERIVE if key in table]
        if beside:
            raise table.error(beside[0], "not allowed together with derive")
    known = trainer_parameter(trainer, name) if not any(key in table for key in BINDING_KEYS) else None
    choices = _read_choices(table, known, trainer) if derive is None else ()
    per_layer, per_table = (_read_count(table, key, facts) for key in ("per_layer", "per_table"))
    when = table.text("when")
    default = _read_default(table, choices, has_entries=per_layer is not None or per_table is not None)
    if "hook" in table:
        torch_default = hook_default(table, choices)
        default = torch_default if default is None else default
    return _with_file_in_errors(
        where,
        lambda: Parameter(
            name=names.get(name, name),
            label=name if name in names else "",
            choices=choices,
            per_layer=per_layer,
            per_table=per_table,
            groups=table.count("groups"),
            derive=parse_expression(derive, where=f"{table.place}.derive", names=names) if derive is not None else None,
            when=_read_when(table, when, known, names),
            binding=_known_binding(known, default) if known is not None else read_binding(table),
            default=known.default if default is None and known is not None else default,
            observe=_read_observe(table),
            changes_training=table.switch("changes_training"),
            was=(*((name,) if name in names else ()), *_read_former_names(table)),
        ),
    )


def read_fact(tables: TomlTable, name: str) -> WorkloadFact:
    """Return the fact ``name`` of ``[workload]``.

    Raises:
        SpaceError: a rule is broken.
    """
    if not isinstance(tables.raw(name), dict):
        return WorkloadFact(name=name, value=tables.value(name))
    table = tables.table(name, legal=FACT_KEYS)
    return WorkloadFact(name=name, binding=read_binding(table), value=table.value("default"))


def _with_file_in_errors(where: str, make: Callable[[], Parameter]) -> Parameter:
    """Return the result of ``make``; its errors name the file."""
    try:
        return make()
    except SpaceError as error:
        raise error if str(error).startswith(where) else SpaceError(f"{where}: {error}") from None


def _read_choices(table: TomlTable, known: TrainerParameter | None, trainer: Trainer | None) -> tuple[Scalar, ...]:
    if known is None or trainer is None:
        return read_choices(table)
    if not any(key in table for key in ("choices", *RANGE_KEYS)):
        if not known.choices:
            raise SpaceError(f"{table.place}: {no_values_text(trainer, table.name)}")
        return known.choices
    choices = read_choices(table)
    check_values(table, "choices", choices, trainer, name=table.name)
    return choices


def _read_when(
    table: TomlTable, when: str | None, known: TrainerParameter | None, names: Mapping[str, str]
) -> Expression | None:
    if when is None:
        return known.when if known is not None else None
    return parse_expression(when, where=f"{table.place}.when", names=names)


def _known_binding(known: TrainerParameter, default: Value | None) -> Binding:
    """Return a trainer's binding; a default that the user states holds whatever files the command names."""
    if default is None:
        return known.binding
    stated = None if isinstance(default, tuple) else default
    return replace(known.binding, unless=(), file_default=stated)


def _read_count(table: TomlTable, key: str, facts: Sequence[str]) -> str | int | None:
    value = table.raw(key)
    if not isinstance(value, str):
        return table.count(key)
    if value not in facts:
        legal = ", ".join(facts) or "none"
        raise table.error(key, f"must be a count or a workload fact{closest(value, facts)} (declared: {legal})")
    return value


def _read_default(table: TomlTable, choices: Sequence[Scalar], *, has_entries: bool) -> Value | None:
    default = table.value("default")
    if default is None:
        return None
    if isinstance(default, tuple) and not has_entries:
        raise table.error("default", "must be one value without per_layer or per_table")
    entries = default if isinstance(default, tuple) else (default,)
    if choices and any(kind(entry) != kind(choices[0]) for entry in entries):
        raise table.error("default", f"must be {kind(choices[0])}, like the choices")
    return default


def _read_former_names(table: TomlTable) -> tuple[str, ...]:
    value = table.value("was")
    names = value if isinstance(value, tuple) else () if value is None else (value,)
    if len(names) > MAX_FORMER_NAMES or not all(isinstance(name, str) and is_name(name) for name in names):
        raise table.error("was", f"must be a former name of this parameter, or a list of up to {MAX_FORMER_NAMES}")
    return tuple(map(str, names))


def _read_observe(table: TomlTable) -> str | None:
    name = table.text("observe")
    if name and name not in STANDARD_PARAMETERS:
        raise table.unknown("observe", "standard parameter", name, STANDARD_PARAMETERS)
    return name
