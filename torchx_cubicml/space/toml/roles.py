"""Standard names of a file's own names, for what makes up the global batch: by flag, by ``observe``, by derivation.

``[parameters.accum]`` with the flag ``--gradient_accumulation_steps`` is ``gradient_accumulation_steps``, and so is the
parameter that is derived as the rest of the global batch. Everything that keeps the batch then knows it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchx_cubicml.errors import SpaceError
from torchx_cubicml.records.standard_names import ACCUMULATION, GLOBAL_BATCH, MICRO_BATCH, standard_flag_name
from torchx_cubicml.space.constraints import IN_BATCH, NOT_DATA_PARALLEL
from torchx_cubicml.space.expression import parse_expression

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from torchx_cubicml.space.expression import Expression
    from torchx_cubicml.space.toml.schema import TomlTable

_SAMPLES = ((5040, 3, 4), (27720, 5, 2))  # global batch, one factor, data-parallel degree


def standard_names_of(parameters: TomlTable, facts: Collection[str]) -> dict[str, str]:
    """Return the standard name of each parameter that is part of the batch under another name.

    Args:
        parameters: the table ``[parameters]``.
        facts: names of the workload facts.

    Raises:
        SpaceError: a parameter is derived from the global batch, and it is not clear what it is.
    """
    tables = {name: parameters.table(name, legal=None) for name in parameters if isinstance(parameters.raw(name), dict)}
    names = {name: name for name in (*parameters, *facts) if name in IN_BATCH}
    for name, table in tables.items():
        found = _told(name, table)
        if name not in names and found and found not in names.values():
            names[name] = found
    for name, table in tables.items():
        derive = table.raw("derive")
        if not isinstance(derive, str):
            continue
        expression = parse_expression(derive, where=f"{table.place}.derive")
        of_global_batch = {GLOBAL_BATCH, *(each for each, standard in names.items() if standard == GLOBAL_BATCH)}
        if not of_global_batch.isdisjoint(expression.names):
            names |= _told_by_derivation(name, expression, names, tables)
    return {name: standard for name, standard in names.items() if name != standard}


def _told(name: str, table: TomlTable) -> str:
    """Return the standard name told by ``observe``, the flag, the variable or the name itself; empty without one."""
    observe = table.raw("observe")
    words = [observe, *(str(table.raw(key) or "") for key in ("flag", "env", "key")), name]
    for word in words:
        found = standard_flag_name(str(word or ""))
        if found in IN_BATCH:
            return found
    return ""


def _told_by_derivation(
    name: str, expression: Expression, names: Mapping[str, str], tables: Collection[str]
) -> dict[str, str]:
    """Return the standard names of a parameter derived from the global batch, and of the one it depends on."""
    read = [each for each in sorted(expression.names) if each in tables]
    unknown = [each for each in (name, *read) if each not in names and each != "dp_degree"]
    if not unknown or not read:
        return {}
    known = {names[each] for each in (name, *read) if each in names}
    left = [each for each in (ACCUMULATION, MICRO_BATCH) if each not in known and each not in names.values()]
    factors = [each for each in read if each != "dp_degree" and names.get(each) not in NOT_DATA_PARALLEL]
    if len(unknown) <= len(left) and _is_rest_of_batch(expression, factors):
        return dict(zip(unknown, left, strict=False))
    raise SpaceError(
        f"{expression.where}: it reads {GLOBAL_BATCH}, but it is not clear what {' and '.join(unknown)} "
        f"{'is' if len(unknown) == 1 else 'are'} to the batch: "
        f'set observe = "{MICRO_BATCH}" or "{ACCUMULATION}", or use these names'
    )


def _is_rest_of_batch(expression: Expression, factors: Collection[str]) -> bool:
    """Return whether an expression is the global batch over one other factor and the data-parallel degree."""
    if len(factors) != 1:
        return False
    for batch, factor, degree in _SAMPLES:
        known = {"world_size": degree, "nnodes": 1, "nproc_per_node": degree, "dp_degree": degree, GLOBAL_BATCH: batch}
        values = {each: known.get(each, 1) for each in expression.names} | dict.fromkeys(factors, factor)
        try:
            result = expression.evaluate(values)
        except SpaceError:
            return False
        if isinstance(result, str) or result * factor * degree != batch:
            return False
    return True
