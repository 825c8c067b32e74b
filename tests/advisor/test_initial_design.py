from __future__ import annotations

import pytest

from torchx_cubicml.advisor.initial_design import DesignPoint, first_batch, uses_random_design
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


def test_entries_of_tables_are_named_so() -> None:
    space = bound(Parameter(name="k", choices=(1, 2, 4), per_table=4))
    points = first_batch(space, current={"k": (1,) * 4})
    assert [point.why for point in points] == ["your config", "every table 2", "every table 4"]
    assert first_batch(space, current={"k": (4,) * 4}, best={"k": (1,) * 4})[-2].why == (
        "the best so far with the first half of the tables 2"
    )


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


WORKERS = Parameter(name="workers", choices=(0, 2, 4))
PAIR = Parameter(name="k", choices=(1, 2, 4), per_layer=2)


def values(points: list[DesignPoint], *names: str) -> list[tuple[object, ...]]:
    return [tuple(point.config[name] for name in names) for point in points]


def test_a_plain_design_is_the_one_written_out() -> None:
    """The word at the middle and the largest batch; then a larger batch, and both ends of the number left."""
    space = bound(WORKERS, BATCH, Parameter(name="backend", choices=("a", "b", "c")))
    current = {"workers": 0, "micro_batch_size": 1, "backend": "a"}
    best = {"workers": 2, "micro_batch_size": 2, "backend": "b"}
    assert values(first_batch(space, current=current, best=best), "workers", "micro_batch_size", "backend") == [
        (0, 1, "a"),
        *((0, 4, word) for word in "bc"),
        *((0, 16, word) for word in "abc"),
        (2, 8, "b"),
        (4, 2, "b"),
        (0, 2, "b"),
    ]


def test_the_reason_names_the_value_that_is_tried() -> None:
    space = bound(BATCH, Parameter(name="backend", choices=("a", "b")))
    points = first_batch(space, current={"micro_batch_size": 1, "backend": "a"})
    assert points[1].why == "backend b at the middle micro_batch_size (4)"
    alone = first_batch(bound(BATCH), current={"micro_batch_size": 1})
    assert [point.why for point in alone[1:]] == [
        "the middle micro_batch_size (4)",
        "the largest micro_batch_size (16)",
    ]
    fixed = first_batch(bound(Parameter(name="backend", choices=("a",))), current={"backend": "other"})
    assert [point.why for point in fixed] == ["the only legal config"]


def test_words_begin_at_the_first_for_an_unknown_one() -> None:
    space = bound(Parameter(name="backend", choices=("a", "b", "c")))
    assert values(first_batch(space, current={"backend": "other"}), "backend") == [("a",), ("b",), ("c",)]


def test_of_a_long_list_six_choices_are_tried() -> None:
    words = tuple("abcdefgh")
    space = bound(Parameter(name="sharding_strategy", choices=words), Parameter(name="backend", choices=words))
    own = {"sharding_strategy": "h", "backend": "h"}
    points = first_batch(space, current=own, best={"sharding_strategy": "g", "backend": "h"})
    assert values(points, "sharding_strategy", "backend") == [
        ("h", "h"),
        *((word, "h") for word in "abcdef"),
        *(("g", word) for word in "abcdef"),
    ]


@pytest.mark.parametrize("first", ["sharding_strategy", "activation_checkpointing"])
def test_memory_strategies_are_compared_before_words(first: str) -> None:
    space = bound(*(Parameter(name=name, choices=("a", "b", "c")) for name in ("backend", first)))
    points = first_batch(space, current={"backend": "a", first: "a"})
    assert values(points, "backend", first) == [("a", "a"), ("a", "b"), ("a", "c")]


def test_sharding_is_compared_before_checkpointing() -> None:
    names = ("activation_checkpointing", "sharding_strategy")
    space = bound(*(Parameter(name=name, choices=("a", "b")) for name in names))
    assert values(first_batch(space, current=dict.fromkeys(names, "a")), *names) == [("a", "a"), ("a", "b")]


def test_layers_are_compared_before_named_strategies() -> None:
    space = bound(Parameter(name="sharding_strategy", choices=("a", "b")), PAIR)
    points = first_batch(space, current={"sharding_strategy": "a", "k": (1, 1)})
    assert [point.why for point in points] == ["your config", "every layer 2", "every layer 4"]


def test_the_micro_batch_drives_though_others_have_more_choices() -> None:
    space = bound(Parameter(name="workers", choices=tuple(range(9))), BATCH)
    points = first_batch(space, current={"workers": 0, "micro_batch_size": 1})
    assert values(points, "workers", "micro_batch_size") == [(0, 1), (0, 4), (0, 16)]


def test_else_the_number_of_most_choices_drives() -> None:
    space = bound(Parameter(name="depth", choices=(1, 2)), WORKERS, Parameter(name="width", choices=(1, 2)))
    points = first_batch(space, current={"depth": 1, "workers": 0, "width": 1})
    assert values(points, "depth", "workers", "width") == [(1, 0, 1), (1, 2, 1), (1, 4, 1)]


def test_a_micro_batch_per_layer_is_no_driver() -> None:
    space = bound(Parameter(name="micro_batch_size", choices=(1, 2, 4), per_layer=2), WORKERS)
    points = first_batch(space, current={"micro_batch_size": (1, 1), "workers": 0})
    assert points[1].why == "every layer 2 at the middle workers (2)"


def test_two_layers_are_varied_one_at_a_time() -> None:
    points = first_batch(bound(PAIR), current={"k": (1, 1)}, best={"k": (2, 2)})
    assert values(points, "k") == [((1, 1),), ((2, 2),), ((4, 4),), ((4, 2),), ((2, 4),)]
    others = [Parameter(name=name, choices=(1, 2)) for name in ("a", "b", "c")]
    assert not uses_random_design(bound(PAIR, *others))


def test_twelve_configs_are_drawn_at_random() -> None:
    space = bound(*(Parameter(name=f"p{place}", choices=tuple(range(10))) for place in range(8)))
    points = first_batch(space, current={})
    assert [point.why for point in points] == ["drawn at random"] * 12


@pytest.mark.parametrize(
    ("given", "taken"),
    [(7, 8), (11, 8), (100, 16), (-3, 1), ("auto", 1), (None, 1), ((8, 2), 8), (2.0, 2)],
    ids=["between", "nearer below", "above", "below", "a word", "none", "one per layer", "another type"],
)
def test_a_start_is_the_nearest_choice(given: object, taken: int) -> None:
    space = bound(BATCH, WORKERS)
    current = {"micro_batch_size": 1, "workers": 2}
    points = first_batch(space, current=current, best={"micro_batch_size": given, "workers": 2})
    around = values(points, "micro_batch_size", "workers")[3:]
    assert around[-2:] == [(taken, 4), (taken, 0)]
