"""Divisors of a size of the job: the choices of a parameter that is one factor of it, such as a mesh axis."""

from __future__ import annotations

from itertools import product
from math import prod
from typing import TYPE_CHECKING

from torchx_cubicml.errors import SpaceError
from torchx_cubicml.space.constraints import is_count

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torchx_cubicml.records.values import Scalar, Value
    from torchx_cubicml.space.parameter import Parameter

_MAX_COMBINATIONS = 10_000  # of the values from which a size is derived


def dividing_choices(
    parameter: Parameter, parameters: Sequence[Parameter], facts: Mapping[str, Value]
) -> tuple[Scalar, ...]:
    """Return the choices of a parameter that divide some possible value of the size that it divides.

    All choices are returned where it divides none, where the size is unknown, and where no choice would be left.

    Args:
        parameter: a free parameter.
        parameters: all parameters of the space, from which the size may be derived.
        facts: facts of the workload.

    >>> from torchx_cubicml.space.parameter import Parameter
    >>> tp = Parameter(name="tp_degree", choices=tuple(range(1, 9)), divides="world_size")
    >>> dividing_choices(tp, [tp], {"world_size": 12})
    (1, 2, 3, 4, 6)
    """
    sizes = _possible_values(parameter.divides, parameters, facts) if parameter.divides else ()
    divides = [each for each in parameter.choices if is_count(each) and any(size % each == 0 for size in sizes)]
    return tuple(divides) or parameter.choices


def _possible_values(name: str, parameters: Sequence[Parameter], facts: Mapping[str, Value]) -> tuple[int, ...]:
    """Return the values that a size may have; none if they are unknown or too many."""
    if name in facts:
        value = facts[name]
        return (value,) if is_count(value) else ()
    found = next((item for item in parameters if item.name == name), None)
    if found is None:
        return ()
    if found.derive is None:
        return tuple(choice for choice in found.choices if is_count(choice))
    read = sorted(found.derive.names)
    values = [_possible_values(each, [item for item in parameters if item is not found], facts) for each in read]
    if not all(values) or prod(map(len, values)) > _MAX_COMBINATIONS:
        return ()
    results = set()
    for combination in product(*values):
        try:
            results.add(found.derive.evaluate(dict(zip(read, combination, strict=True))))
        except SpaceError:
            continue
    return tuple(result for result in results if is_count(result))
