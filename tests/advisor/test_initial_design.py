from __future__ import annotations

import pytest

from torchx_cubicml.advisor.initial_design import first_batch, uses_random_design
from torchx_cubicml.space import Parameter, SearchSpace
from torchx_cubicml.space.expression import parse_expression

STRATEGIES = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD")
LAYERS = Parameter(name="sharding_strategy", choices=STRATEGIES, per_layer="n_layers")
BATCH = Parameter(name="micro_batch_size", choices=(1, 2, 4, 8, 16))
WORKLOAD = {"world_size": 2, "n_layers": 4}
CURRENT = {"sharding_strategy": ("FULL_SHARD",) * 4, "micro_batch_size": 2}


def bound(*parameters: Parameter, constraint: str = "") -> SearchSpace:
    rules = (parse_expression(constraint, where="constraints"),) if constraint else ()
    return SearchSpace(parameters=parameters, constraints=rules).bind(workload=WORKLOAD, current=CURRENT)


def test_the_users_config_comes_first_then_equal_layers() -> None:
    points = first_batch(bound(LAYERS, BATCH), current=CURRENT)
    assert points[0].config == CURRENT
    assert points[0].why == "your config"
    values = [(point.config["sharding_strategy"], point.config["micro_batch_size"]) for point in points[1:]]
    alike = [((name,) * 4, batch) for batch in (4, 16) for name in STRATEGIES]
    assert values == alike[1:]  # the first is the user's own at another batch
    assert points[3].why == "every layer FULL_SHARD at the largest micro_batch_size (16)"


def test_the_largest_is_the_largest_that_is_legal() -> None:
    points = first_batch(bound(LAYERS, BATCH, constraint="micro_batch_size <= 8"), current=CURRENT)
    assert max(point.config["micro_batch_size"] for point in points) == 8


def test_a_user_config_outside_the_space_moves_to_its_neighbour() -> None:
    space = bound(BATCH, Parameter(name="compile", choices=(False, True)))
    points = first_batch(space, current={"micro_batch_size": 3, "compile": True})
    assert all(point.config in space for point in points)
    assert points[0].why != "your config"


def test_around_the_best_one_thing_changes_at_a_time() -> None:
    space = bound(LAYERS, BATCH, Parameter(name="precision", choices=("bf16", "fp32")))
    current = {**CURRENT, "precision": "bf16"}
    best = {"sharding_strategy": ("NO_SHARD",) * 4, "micro_batch_size": 4, "precision": "bf16"}
    before = len(first_batch(space, current=current))
    around = [point.config for point in first_batch(space, current=current, best=best)[before:]]
    assert {**best, "precision": "fp32"} in around
    assert {**best, "micro_batch_size": 16} in [*around, *(p.config for p in first_batch(space, current=current))]
    assert {**best, "sharding_strategy": ("SHARD_GRAD_OP", "SHARD_GRAD_OP", "NO_SHARD", "NO_SHARD")} in around
    assert {**best, "sharding_strategy": ("NO_SHARD", "NO_SHARD", "NO_SHARD", "SHARD_GRAD_OP")} in around


def test_every_point_is_legal_and_distinct() -> None:
    space = bound(LAYERS, BATCH, Parameter(name="tp_degree", choices=(1, 2)), constraint="tp_degree <= 1")
    points = first_batch(space, current={**CURRENT, "tp_degree": 1}, best={**CURRENT, "tp_degree": 1})
    configs = [tuple(point.config.items()) for point in points]
    assert len(set(configs)) == len(configs)
    assert all(point.config in space for point in points)


def test_a_space_of_numbers_alone_tries_their_middle_and_largest() -> None:
    points = first_batch(bound(BATCH), current={"micro_batch_size": 1})
    assert [point.config["micro_batch_size"] for point in points] == [1, 4, 16]


def test_a_space_of_words_alone_tries_each() -> None:
    space = bound(Parameter(name="backend", choices=("a", "b", "c")))
    assert [point.config["backend"] for point in first_batch(space, current={"backend": "b"})] == ["b", "a", "c"]


def test_a_space_of_one_config_has_one_point() -> None:
    space = bound(Parameter(name="backend", choices=("a",)))
    assert len(first_batch(space, current={"backend": "a"})) == 1
    assert first_batch(space, current={"backend": "other"})[0].config == {"backend": "a"}


MIXED = [
    Parameter(name="workers", choices=(0, 1, 2, 4, 8, 16)),
    Parameter(name="backend", choices=("a", "b", "c")),
    Parameter(name="compile", choices=(False, True)),
    BATCH,
]
OWN = {"workers": 2, "backend": "a", "compile": False, "micro_batch_size": 2}


def test_many_parameters_are_varied_at_once() -> None:
    space = bound(*MIXED, constraint="workers <= 8 or not compile")
    first, *others = first_batch(space, current=OWN)
    assert first.config == OWN
    assert all(point.config in space for point in others)
    eight = [point.config for point in others[:7]]
    assert sum(config["workers"] != 2 and config["micro_batch_size"] != 2 for config in eight) >= 5
    assert first_batch(space, current=OWN) == [first, *others]  # the next call goes on where this one was


def test_a_constrained_number_per_layer_is_varied() -> None:
    space = bound(Parameter(name="k", choices=(1, 2, 4), per_layer=3), constraint="4 in k")
    points = first_batch(space, current={"k": (4, 4, 4)}, best={"k": (1, 4, 4)})
    assert [point.config["k"] for point in points] == [(4, 4, 4), (2, 4, 4), (1, 4, 2)]
    assert points[1].why == "the best so far with the first half of the layers 2"


def test_equal_layers_are_named_by_their_one_number() -> None:
    space = bound(Parameter(name="k", choices=(1, 2, 4), per_layer=3), Parameter(name="width", choices=(1, 2, 4)))
    points = first_batch(space, current={"k": (1, 1, 1), "width": 1})
    assert [(*point.config.values(), point.why) for point in points[1:]] == [
        ((2, 2, 2), 2, "every layer 2 at the middle width (2)"),
        ((4, 4, 4), 2, "every layer 4 at the middle width (2)"),
        *(((k,) * 3, 4, f"every layer {k} at the largest width (4)") for k in (1, 2, 4)),
    ]


def test_a_single_number_is_named_without_its_level() -> None:
    space = bound(Parameter(name="k", choices=(1, 2, 4), per_layer=3))
    points = first_batch(space, current={"k": (1, 1, 1)})
    assert [point.why for point in points] == ["your config", "every layer 2", "every layer 4"]


def test_the_driver_is_tried_halfway_to_the_largest() -> None:
    current = {**CURRENT, "micro_batch_size": 1}
    design = first_batch(bound(LAYERS, BATCH), current=current)
    for batch, halfway in ((1, 8), (2, 8), (4, 16), (8, 16)):  # of 2, 4, 8, 16 the third, of 4, 8, 16 the second, ...
        best = {"sharding_strategy": ("SHARD_GRAD_OP", "NO_SHARD") * 2, "micro_batch_size": batch}
        first = first_batch(bound(LAYERS, BATCH), current=current, best=best)[len(design)]
        assert first.config == {**best, "micro_batch_size": halfway}
        assert first.why == f"the best so far with micro_batch_size = {halfway}"
    best = {**best, "micro_batch_size": 16}
    first = first_batch(bound(LAYERS, BATCH), current=current, best=best)[len(design)]
    assert first.config["micro_batch_size"] == 16
    assert first.why == "the best so far with the first half of the layers NO_SHARD"


def test_runs_of_layers_move_by_one_choice() -> None:
    full, grad, no = STRATEGIES
    space = bound(Parameter(name="sharding_strategy", choices=STRATEGIES, per_layer=8))
    for best, first_half, last_quarter in (
        ((no, *(full,) * 7), (*(grad,) * 4, *(full,) * 4), (no, *(full,) * 5, grad, grad)),
        ((full, *(no,) * 7), (*(grad,) * 4, *(no,) * 4), (full, *(no,) * 5, grad, grad)),
    ):
        points = first_batch(space, current={"sharding_strategy": (full,) * 8}, best={"sharding_strategy": best})
        assert [point.config["sharding_strategy"] for point in points[-2:]] == [first_half, last_quarter]


def test_missing_layers_have_the_first_choice() -> None:
    space = bound(LAYERS)
    points = first_batch(space, current={"sharding_strategy": ("NO_SHARD",) * 3})
    assert points[0].config["sharding_strategy"] == ("FULL_SHARD",) * 4  # not legal: each kind of layer comes in turn
    best = {"sharding_strategy": ("NO_SHARD",) * 3}
    around = first_batch(space, current=CURRENT, best=best)[3:]
    assert around[0].config["sharding_strategy"] == ("SHARD_GRAD_OP", "SHARD_GRAD_OP", "NO_SHARD", "FULL_SHARD")


def test_a_number_that_is_no_choice_is_taken_for_the_nearest() -> None:
    space = bound(BATCH, Parameter(name="compile", choices=(False, True)))
    start = {"micro_batch_size": 7, "compile": False}
    around = first_batch(space, current={"micro_batch_size": 1, "compile": False}, best=start)
    assert {"micro_batch_size": 16, "compile": False} in [point.config for point in around]
    assert [point.config["micro_batch_size"] for point in first_batch(space, current=start)][:1] == [4]


@pytest.mark.parametrize(
    ("sizes", "layers", "expected"),
    [
        ((2, 2, 2), 1, False),
        ((2, 2, 2, 2), 1, True),
        ((2, 2, 2, 2), 3, False),
        ((2, 2, 2, 2, 1), 1, True),
        ((2, 2, 2, 1), 1, False),
    ],
    ids=["three", "four", "layers", "four and a fixed one", "three and a fixed one"],
)
def test_more_than_three_plain_parameters_are_drawn_at_random(
    sizes: tuple[int, ...], layers: int, expected: bool
) -> None:
    parameters = [
        Parameter(name=f"p{place}", choices=tuple(range(size)), per_layer=layers if place == 0 and layers > 1 else None)
        for place, size in enumerate(sizes)
    ]
    assert uses_random_design(bound(*parameters)) is expected
