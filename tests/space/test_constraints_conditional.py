from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchx_cubicml.errors import SpaceError
from torchx_cubicml.space import Parameter, SearchSpace
from torchx_cubicml.space.expression import parse_expression

if TYPE_CHECKING:
    from torchx_cubicml.records.values import Config, Scalar
    from torchx_cubicml.space.expression import Expression


def expression(source: str) -> Expression:
    return parse_expression(source, where=f"rule {source}")


def free(name: str, *choices: Scalar, when: str = "", **more: object) -> Parameter:
    condition = expression(when) if when else None
    return Parameter(name=name, choices=choices, when=condition, **more)


def bound(*parameters: Parameter, require: tuple[str, ...] = (), **current: object) -> SearchSpace:
    space = SearchSpace(parameters=parameters, constraints=tuple(map(expression, require)))
    return space.bind(workload={"world_size": 8, "n_layers": 3}, current=current)


def frozen(config: Config) -> tuple[object, ...]:
    return tuple((name, type(value).__name__, value) for name, value in config.items())


def by_trying(space: SearchSpace) -> set[tuple[object, ...]]:
    """Every legal config, by trying all choices."""
    tries = product(*(range(len(dimension.choices)) for dimension in space.dimensions))
    return {frozen(config) for choice in tries if (config := space.decode(choice)) is not None}


def is_exact(space: SearchSpace) -> None:
    expected = by_trying(space)
    found = list(space.configs())
    assert space.size() == len(found) == len(set(map(frozen, found)))
    assert set(map(frozen, found)) == expected
    for config in found:
        assert config in space
        assert space.decode(space.encode(config)) == config
    assert {frozen(config) for config in space.sample(5, rng=np.random.default_rng(0))} <= expected


TP = free("tp_degree", 1, 2, 4)
OVERLAP = free("overlap", False, True, when="tp_degree > 1", default=False)


def test_idle_values_are_counted_once() -> None:
    space = bound(TP, OVERLAP)
    assert [(config["tp_degree"], config["overlap"]) for config in space.configs()] == [
        (1, False),
        (2, False),
        (2, True),
        (4, False),
        (4, True),
    ]
    is_exact(space)


def test_every_config_is_equally_likely() -> None:
    space = bound(TP, OVERLAP, free("chunks", 1, 2, 4, when="overlap", default=1))
    drawn = [frozen(config) for config in space.sample(900 * space.size(), rng=np.random.default_rng(0))]
    counts = [drawn.count(config) for config in set(drawn)]
    # each is binomial with mean 900 and standard deviation below 30: false alarm about 1 in 10^5
    assert len(counts) == space.size() == 9
    assert all(abs(count - 900) < 5 * 30 for count in counts)


def test_the_idle_value_is_the_default_or_the_users_own() -> None:
    own = free("overlap", False, True, when="tp_degree > 1")
    assert {config["overlap"] for config in bound(TP, own, overlap=True).configs() if config["tp_degree"] == 1} == {
        True
    }
    assert {config["overlap"] for config in bound(TP, OVERLAP, overlap=True).configs() if config["tp_degree"] == 1} == {
        False
    }
    with pytest.raises(SpaceError, match=r"parameters.overlap: unknown value unless tp_degree > 1; set a default"):
        bound(TP, own)


def test_an_idle_value_need_not_be_a_choice() -> None:
    space = bound(TP, free("stages", 2, 4, when="tp_degree == 1", default=0))
    assert {config["stages"] for config in space.configs() if config["tp_degree"] > 1} == {0}
    is_exact(space)


def test_illegal_conditions_are_reported() -> None:
    space = bound(TP, OVERLAP)
    reason = "overlap = True is not legal; it must be False unless tp_degree > 1"
    assert space.why_illegal({"tp_degree": 1, "overlap": True}) == reason
    assert space.why_illegal({"tp_degree": 1, "overlap": 0}) is not None
    assert "choose from False, True" in str(space.why_illegal({"tp_degree": 2, "overlap": 3}))


def test_a_choice_for_an_idle_parameter_does_not_matter() -> None:
    space = bound(TP, OVERLAP)
    assert space.decode((0, 1)) == space.decode((0, 0)) == {"tp_degree": 1, "overlap": False}


def test_constraints_read_the_idle_value() -> None:
    space = bound(TP, OVERLAP, require=("overlap or tp_degree < 4",))
    assert {(config["tp_degree"], config["overlap"]) for config in space.configs()} == {
        (1, False),
        (2, False),
        (2, True),
        (4, True),
    }
    is_exact(space)


def test_a_derived_parameter_may_be_idle() -> None:
    chunks = Parameter(name="chunks", derive=expression("8 / tp_degree"), when=expression("tp_degree > 1"), default=0)
    space = bound(TP, chunks)
    assert [config["chunks"] for config in space.configs()] == [0, 4, 2]
    is_exact(space)


def test_a_condition_may_read_a_derived_value() -> None:
    space = bound(TP, free("shard", "a", "b", when="dp_degree > 2", default="a"))
    assert space.size() == 2 + 2 + 1
    is_exact(space)


def test_circular_conditions_are_reported() -> None:
    with pytest.raises(SpaceError, match="circular"):
        bound(free("a", 1, 2, when="b > 1", default=1), free("b", 1, 2, when="a > 1", default=1))


def test_an_illegal_condition_is_reported() -> None:
    with pytest.raises(SpaceError, match=r"all break a while tp_degree; .*needs true or false"):
        bound(TP, free("a", 1, 2, when="tp_degree", default=1))


def test_a_hundred_layers_under_a_condition() -> None:
    sharding = free("sharding", "F", "S", "N", when="tp_degree == 1", default="F", per_layer=100)
    space = bound(TP, sharding, require=("'F' in sharding or tp_degree == 1",))
    assert space.size() == 3**100 + 2
    for config in space.sample(20, rng=np.random.default_rng(0)):
        assert config in space


CONDITIONS = ["a > 1", "a == 2 or b", "dp_degree > 2", "not b", "'x' in c", "d > 2", "a > 9", "a < 9"]
RULES = ["a + d < 6", "b or a < 4", "'y' in c or b", "d != a", "len(c) == 3", "dp_degree * d >= 4"]


@settings(max_examples=150)
@given(
    st.lists(st.sampled_from([None, *CONDITIONS]), min_size=4, max_size=4),
    st.lists(st.sampled_from(RULES), max_size=2, unique=True),
    st.permutations(range(4)),
)
def test_counting_listing_and_drawing_agree_with_trying(
    conditions: list[str | None], rules: list[str], order: list[int]
) -> None:
    a, b, c, d = ({"when": condition} if condition else {} for condition in conditions)
    parameters = [
        free("a", 1, 2, 4, default=1, **a),
        free("b", False, True, default=True, **b),
        free("c", "x", "y", per_layer="n_layers", default="y", **c),
        free("d", 2, 3, default=1, **d),
    ]
    mesh = Parameter(name="tp_degree", derive=expression("a"))
    try:
        space = bound(*(parameters[index] for index in order), mesh, require=tuple(rules))
    except SpaceError as error:
        reason = str(error)
    else:
        reason = ""
        is_exact(space)
    assert not reason or "circular" in reason or "no config is legal" in reason
