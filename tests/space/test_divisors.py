from __future__ import annotations

import pytest

from torchx_cubicml.space import Parameter, SearchSpace
from torchx_cubicml.space.divisors import dividing_choices
from torchx_cubicml.space.expression import parse_expression

TP = Parameter(name="tp_degree", choices=tuple(range(1, 9)), divides="world_size")
WORLD = Parameter(name="world_size", derive=parse_expression("nnodes * nproc_per_node", where="x"))


def sizes(*choices: int) -> Parameter:
    return Parameter(name="nproc_per_node", choices=choices)


@pytest.mark.parametrize(
    ("parameters", "facts", "left"),
    [
        ((TP,), {"world_size": 6}, (1, 2, 3, 6)),
        ((TP,), {"world_size": 7}, (1, 7)),
        ((TP,), {}, TP.choices),
        ((TP,), {"world_size": "many"}, TP.choices),
        ((TP, WORLD, sizes(2, 5)), {"nnodes": 2}, (1, 2, 4, 5)),
        ((TP, WORLD, sizes(2, 5)), {}, TP.choices),
    ],
    ids=["six", "prime", "unknown", "no-count", "tuned", "tuned-and-unknown"],
)
def test_choices_divide_a_possible_size(
    parameters: tuple[Parameter, ...], facts: dict[str, int], left: tuple[int, ...]
) -> None:
    assert dividing_choices(TP, parameters, facts) == left


def test_choices_of_which_none_divides_stay() -> None:
    odd = Parameter(name="tp_degree", choices=(3, 5), divides="world_size")
    assert dividing_choices(odd, [odd], {"world_size": 8}) == (3, 5)


def test_too_many_sizes_are_unknown() -> None:
    many = Parameter(name="nnodes", choices=tuple(range(1, 6000)))
    assert dividing_choices(TP, (TP, WORLD, sizes(2, 3), many), {}) == TP.choices


def test_a_bound_space_has_the_divisors_alone() -> None:
    space = SearchSpace(parameters=(TP,))
    bound = space.bind(workload={"world_size": 4}, current={})
    assert [config["tp_degree"] for config in bound.configs()] == [1, 2, 4]
    assert bound.dimensions[0].choices == (1, 2, 4)
    assert bound.bind(workload={"world_size": 6}, current={}).dimensions[0].choices == (1, 2, 3, 6)
