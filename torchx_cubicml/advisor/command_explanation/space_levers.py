"""Changes of a command that a space file allows: each legal value of one parameter, the others as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchx_cubicml.advisor.command_explanation.levers import Lever
from torchx_cubicml.launch.command_facts.fact_names import fact_value

if TYPE_CHECKING:
    from torchx_cubicml.records.values import Config, Value, Workload
    from torchx_cubicml.space import SearchSpace


def space_levers(space: SearchSpace, *, workload: Workload, current: Config) -> list[Lever]:
    """Return the levers of a space file: configs that differ from ``current`` in one parameter and what follows.

    Args:
        space: as its file declares it.
        workload: facts of the launch.
        current: config of the command.

    Raises:
        SpaceError: the command does not fit the space file, or has a value that is no choice.
    """
    bound = space.bind(workload=workload, current=current)
    present = bound.encode(current)
    levers = []
    for dimensions in _by_parameter(bound).values():
        for index in range(len(bound.dimensions[dimensions[0]].choices)):
            choice = [index if place in dimensions else each for place, each in enumerate(present)]
            config = bound.decode(choice)
            if config is not None and (
                changed := {key: each for key, each in config.items() if each != current.get(key)}
            ):
                levers.append(Lever(values={key: _in_formulas(key, value) for key, value in changed.items()}))
    return levers


def _by_parameter(space: SearchSpace) -> dict[str, list[int]]:
    """Return the places of each parameter among the dimensions: one, or one per layer."""
    found: dict[str, list[int]] = {}
    for place, dimension in enumerate(space.dimensions):
        found.setdefault(dimension.parameter, []).append(place)
    return found


def _in_formulas(name: str, value: Value) -> Value:
    standard = fact_value(name, value)
    return value if standard is None else standard
