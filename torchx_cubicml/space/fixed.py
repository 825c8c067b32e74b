"""Search space with parameters fixed to the values of one config."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from torchx_cubicml.records.workload import collapsed, value_key
from torchx_cubicml.space.expression import parse_expression
from torchx_cubicml.space.parameter import WorkloadFact

if TYPE_CHECKING:
    from collections.abc import Collection

    from torchx_cubicml.records.values import Config, Scalar
    from torchx_cubicml.space.expression import Expression
    from torchx_cubicml.space.parameter import Parameter
    from torchx_cubicml.space.search_space import SearchSpace


def with_fixed_values(space: SearchSpace, current: Config, names: Collection[str]) -> SearchSpace:
    """Return the space in which the parameters ``names`` are fixed to their values in ``current``.

    A derived or conditional parameter gets a constraint, another one a single choice. Values that differ between layers
    become a fact. A parameter without a value in ``current`` stays as it is.

    >>> from torchx_cubicml.space.parameter import Parameter
    >>> from torchx_cubicml.space.search_space import SearchSpace
    >>> space = SearchSpace(parameters=(Parameter(name="a", choices=(1, 2)), Parameter(name="b", choices=(1, 2))))
    >>> [item.choices for item in with_fixed_values(space, {"a": 2, "b": 1}, ["a"]).parameters]
    [(2,), (1, 2)]
    """
    parameters: list[Parameter] = []
    facts, constraints = list(space.workload), list(space.constraints)
    for parameter in space.parameters:
        value = current.get(parameter.name)
        single = None if value is None else collapsed(value)
        if parameter.name not in names or value is None or single is None:
            parameters.append(parameter)
        elif isinstance(single, tuple):
            facts.append(WorkloadFact(name=parameter.name, value=value))
        elif parameter.derive is not None or parameter.when is not None:
            parameters.append(parameter)
            constraints.append(_equals(parameter.name, single))
        else:
            parameters.append(replace(parameter, choices=(_choice(parameter, single),)))
    return replace(space, parameters=tuple(parameters), workload=tuple(facts), constraints=tuple(constraints))


def _choice(parameter: Parameter, value: Scalar) -> Scalar:
    """Return the choice that equals a value; the value itself where there is none."""
    return next((choice for choice in parameter.choices if value_key(choice) == value_key(value)), value)


def _equals(name: str, value: Scalar) -> Expression:
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return parse_expression(f"{name} == {text}", where=f"{name} keeps its value")
