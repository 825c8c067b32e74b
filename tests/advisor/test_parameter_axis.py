"""Axes of parameters through a config."""

from __future__ import annotations

import pytest

from torchx_cubicml.advisor.parameter_axis import MOST_STEPS, counted_axis, plain_axis
from torchx_cubicml.space import Parameter, SearchSpace

STRATEGIES = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD")
BEST = {
    "micro_batch_size": 7,
    "sharding_strategy": ("NO_SHARD", "FULL_SHARD", "FULL_SHARD", "SHARD_GRAD_OP"),
    "backend": "a",
}


@pytest.fixture(scope="module")
def space() -> SearchSpace:
    parameters = (
        Parameter(name="micro_batch_size", choices=tuple(range(1, 41))),
        Parameter(name="sharding_strategy", choices=STRATEGIES, per_layer=4),
        Parameter(name="backend", choices=("a", "b")),
        Parameter(name="fixed", choices=(1,)),
    )
    return SearchSpace(parameters=parameters).bind(workload={"world_size": 2}, current={**BEST, "fixed": 1})


def test_a_long_list_of_values_is_sampled_with_its_ends_and_the_config(space: SearchSpace) -> None:
    axis = plain_axis(space, {**BEST, "fixed": 1}, "micro_batch_size")
    assert axis is not None
    assert len(axis.labels) in {MOST_STEPS, MOST_STEPS + 1}
    assert (axis.labels[0], axis.labels[-1], axis.labels[axis.home]) == (1, 40, 7)
    assert axis.is_sampled
    assert axis.place({"micro_batch_size": 7}) == axis.home
    nearest = axis.place({"micro_batch_size": 39})
    assert nearest is not None
    assert abs(int(axis.labels[nearest]) - 39) == min(abs(int(label) - 39) for label in axis.labels)


def test_a_category_has_a_step_or_none(space: SearchSpace) -> None:
    axis = plain_axis(space, {**BEST, "fixed": 1}, "backend")
    assert axis is not None
    assert not axis.is_number
    assert [axis.place({"backend": value}) for value in ("a", "b", "c")] == [0, 1, None]
    turned = axis.reordered([1, 0])
    assert (turned.labels, turned.labels[turned.home], turned.steps) == (("b", "a"), "a", ((1,), (0,)))


def test_a_parameter_of_one_choice_or_of_many_entries_has_no_plain_axis(space: SearchSpace) -> None:
    best = {**BEST, "fixed": 1}
    assert plain_axis(space, best, "fixed") is None
    assert plain_axis(space, best, "sharding_strategy") is None
    assert counted_axis(space, best, "backend", "a") is None


def test_layers_are_counted_and_the_first_ones_change(space: SearchSpace) -> None:
    best = {**BEST, "fixed": 1}
    axis = counted_axis(space, best, "sharding_strategy", "NO_SHARD")
    assert axis is not None
    assert axis.labels == (0, 1, 2, 3, 4)
    row = space.encode(best)
    values = [space.decode(axis.at(row, step))["sharding_strategy"] for step in range(5)]  # type: ignore[index]  # each step is legal
    assert values == [
        ("FULL_SHARD", "FULL_SHARD", "FULL_SHARD", "SHARD_GRAD_OP"),
        ("NO_SHARD", "FULL_SHARD", "FULL_SHARD", "SHARD_GRAD_OP"),
        ("NO_SHARD", "NO_SHARD", "FULL_SHARD", "SHARD_GRAD_OP"),
        ("NO_SHARD", "NO_SHARD", "NO_SHARD", "SHARD_GRAD_OP"),
        ("NO_SHARD",) * 4,
    ]
    assert values[axis.home] == best["sharding_strategy"]
    assert axis.place({"sharding_strategy": ("NO_SHARD", "NO_SHARD", "SHARD_GRAD_OP", "NO_SHARD")}) == 3
    assert axis.place({"sharding_strategy": ("NO_SHARD",)}) is None
    assert axis.place({}) is None


def test_groups_of_layers_count_their_layers() -> None:
    parameter = Parameter(name="sharding_strategy", choices=STRATEGIES, per_layer=6, groups=2)
    current = {"sharding_strategy": ("FULL_SHARD",) * 6}
    space = SearchSpace(parameters=(parameter,)).bind(workload={"world_size": 2}, current=current)
    axis = counted_axis(space, current, "sharding_strategy", "NO_SHARD")
    assert axis is not None
    assert axis.labels == (0, 3, 6)
    assert axis.place({"sharding_strategy": ("NO_SHARD",) * 3 + ("FULL_SHARD",) * 3}) == 1
