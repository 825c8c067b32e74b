"""One parameter or one workload fact of a space file.

- A parameter has legal values, or is derived; a derived one has no values of its own and is never per layer.
- ``per_layer`` is a workload fact or a count; ``groups`` tunes that many blocks of neighbouring layers alike.
- ``default`` is what the script does where the command does not say; it has the type of the legal values.
- ``observe`` names the standard parameter whose observed value counts in place of the requested one.
- ``changes_training = true`` lets an ordinary launch change it although that changes what is trained.
- A workload fact is read from the command, or is a constant.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchx_cubicml.errors import SpaceError
from torchx_cubicml.space import Parameter, WorkloadFact
from torchx_cubicml.space.arithmetic import kind
from torchx_cubicml.space.expression import parse_expression
from torchx_cubicml.space_file.choices import RANGE_KEYS, read_choices
from torchx_cubicml.space_file.places import LANDING_KEYS, read_landing
from torchx_cubicml.space_file.table import closest
from torchx_cubicml.trainers import STANDARD_PARAMETERS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchx_cubicml.space_file.table import Table
    from torchx_cubicml.trial import Scalar, Value

PARAMETER_KEYS = (
    "choices",
    *RANGE_KEYS,
    *LANDING_KEYS,
    "per_layer",
    "groups",
    "derive",
    "default",
    "observe",
    "changes_training",
)
FACT_KEYS = (*LANDING_KEYS, "default")
NOT_BESIDE_DERIVE = ("choices", *RANGE_KEYS, "per_layer", "groups")


def read_parameter(tables: Table, name: str, *, facts: Sequence[str], where: str) -> Parameter:
    """Return the parameter ``[parameters.name]``.

    Args:
        tables: ``[parameters]``.
        name: of the parameter.
        facts: names of the workload facts, one of which may count its entries.
        where: the file.

    Raises:
        SpaceError: a rule is broken.
    """
    table = tables.table(name, legal=PARAMETER_KEYS)
    derive = table.text("derive")
    if derive is not None:
        beside = [key for key in NOT_BESIDE_DERIVE if key in table]
        if beside:
            raise table.error(beside[0], "a derived parameter takes no such key")
    choices = read_choices(table) if derive is None else ()
    per_layer = _read_per_layer(table, facts)
    groups, landing, observe = table.count("groups"), read_landing(table), _read_observe(table)
    default = _read_default(table, choices, per_layer)
    expression = parse_expression(derive, where=f"{table.place}.derive") if derive is not None else None
    try:
        return Parameter(
            name=name,
            choices=choices,
            per_layer=per_layer,
            groups=groups,
            derive=expression,
            landing=landing,
            default=default,
            observe=observe,
            changes_training=table.switch("changes_training"),
        )
    except SpaceError as error:
        raise SpaceError(f"{where}: {error}") from None


def read_fact(tables: Table, name: str) -> WorkloadFact:
    """Return the fact ``name`` of ``[workload]``.

    Raises:
        SpaceError: a rule is broken.
    """
    if not isinstance(tables.raw(name), dict):
        return WorkloadFact(name=name, value=tables.value(name))
    table = tables.table(name, legal=FACT_KEYS)
    return WorkloadFact(name=name, landing=read_landing(table), value=table.value("default"))


def _read_per_layer(table: Table, facts: Sequence[str]) -> str | int | None:
    value = table.raw("per_layer")
    if not isinstance(value, str):
        return table.count("per_layer")
    if value not in facts:
        legal = ", ".join(facts) or "none yet"
        raise table.error(
            "per_layer", f"a count or a workload fact is wanted{closest(value, facts)}; declared are {legal}"
        )
    return value


def _read_default(table: Table, choices: Sequence[Scalar], per_layer: str | int | None) -> Value | None:
    default = table.value("default")
    if default is None:
        return None
    if isinstance(default, tuple) and per_layer is None:
        raise table.error("default", "one value is wanted where per_layer is absent")
    entries = default if isinstance(default, tuple) else (default,)
    if choices and any(kind(entry) != kind(choices[0]) for entry in entries):
        raise table.error("default", f"{kind(choices[0])} is wanted, as the legal values are")
    return default


def _read_observe(table: Table) -> str:
    name = table.text("observe") or ""
    if name and name not in STANDARD_PARAMETERS:
        raise table.error(
            "observe",
            f"a standard parameter is wanted{closest(name, STANDARD_PARAMETERS)}; legal are "
            f"{', '.join(STANDARD_PARAMETERS)}",
        )
    return name
