from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from itertools import product
from math import prod
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from torchx_cubicml.errors import SpaceError
from torchx_cubicml.space import Binding, BindingKind, Parameter, SearchSpace, WorkloadFact, computed_global_batch_size
from torchx_cubicml.space.expression import parse_expression

if TYPE_CHECKING:
    from torchx_cubicml.records.values import Config, Scalar
    from torchx_cubicml.space.expression import Expression

STRATEGIES = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD")


def expression(source: str) -> Expression:
    return parse_expression(source, where=f"rule {source}")


def free(name: str, *choices: Scalar, **more: object) -> Parameter:
    return Parameter(name=name, choices=choices, **more)


def derived(name: str, source: str) -> Parameter:
    return Parameter(name=name, derive=expression(source))


def space(*parameters: Parameter, require: tuple[str, ...] = ()) -> SearchSpace:
    return SearchSpace(parameters=parameters, constraints=tuple(map(expression, require)))


GPT = space(
    free("micro_batch_size", 1, 2, 3, 4, 8),
    derived("gradient_accumulation_steps", "global_batch_size / (micro_batch_size * dp_degree)"),
    free("sharding_strategy", *STRATEGIES, per_layer="n_layers"),
    free("tp_degree", 1, 2, 4),
    free("compile", False, True),
    require=("tp_degree <= 2 or not compile", "'FULL_SHARD' in sharding_strategy or micro_batch_size < 8"),
)
GPT_WORKLOAD = {"world_size": 8, "n_layers": 3}
GPT_CURRENT: Config = {
    "micro_batch_size": 4,
    "gradient_accumulation_steps": 2,
    "sharding_strategy": ("FULL_SHARD",) * 3,
    "tp_degree": 2,
    "compile": False,
}


@pytest.fixture
def gpt() -> SearchSpace:
    return GPT.bind(workload=GPT_WORKLOAD, current=GPT_CURRENT)


def decoded(bound: SearchSpace) -> list[Config]:
    """Every legal config, by trying all choices."""
    tries = product(*(range(len(dimension.choices)) for dimension in bound.dimensions))
    return [config for choice in tries if (config := bound.decode(choice)) is not None]


def frozen(config: Config) -> tuple[object, ...]:
    return tuple((name, type(value).__name__, value) for name, value in config.items())


class TestBoundSpace:
    def test_facts(self, gpt: SearchSpace) -> None:
        assert gpt.facts == {"world_size": 8, "n_layers": 3, "global_batch_size": 32}

    def test_dimensions(self, gpt: SearchSpace) -> None:
        assert [(item.parameter, item.positions) for item in gpt.dimensions] == [
            ("micro_batch_size", ()),
            *(("sharding_strategy", (layer,)) for layer in range(3)),
            ("tp_degree", ()),
            ("compile", ()),
        ]
        assert gpt.dimensions[1].choices == STRATEGIES

    def test_lists_exactly_what_is_legal(self, gpt: SearchSpace) -> None:
        expected = decoded(gpt)
        found = list(gpt.configs())
        assert len(set(map(frozen, found))) == len(found)
        assert set(map(frozen, found)) == set(map(frozen, expected))
        assert gpt.size() == len(expected)
        assert gpt.size(limit=7) == 7
        assert list(found[0]) == [parameter.name for parameter in gpt.parameters]

    def test_the_users_config_is_legal(self, gpt: SearchSpace) -> None:
        assert GPT_CURRENT in gpt

    def test_decode_of_encode(self, gpt: SearchSpace) -> None:
        for config in gpt.configs():
            assert gpt.decode(gpt.encode(config)) == config

    def test_samples_are_legal_and_repeatable(self, gpt: SearchSpace) -> None:
        drawn = gpt.sample(50, rng=np.random.default_rng(1))
        assert all(config in gpt for config in drawn)
        assert drawn == gpt.sample(50, rng=np.random.default_rng(1))

    def test_samples_are_uniform(self, gpt: SearchSpace) -> None:
        legal = [frozen(config) for config in gpt.configs()]
        drawn = [frozen(config) for config in gpt.sample(20 * len(legal), rng=np.random.default_rng(2))]
        counts = dict.fromkeys(legal, 0)
        for config in drawn:
            counts[config] += 1
        chi_square = sum((count - 20) ** 2 / 20 for count in counts.values())
        degrees = len(legal) - 1
        # the statistic has mean `degrees` and standard deviation sqrt(2 degrees): false alarm about 1 in 30,000
        assert chi_square < degrees + 4 * (2 * degrees) ** 0.5

    @pytest.mark.parametrize(
        ("change", "reason"),
        [
            ({"micro_batch_size": 5}, "micro_batch_size = 5 is not legal; choose from 1, 2, 3, 4, 8"),
            ({"micro_batch_size": "4"}, "micro_batch_size = '4' is not legal"),
            ({"compile": 0}, "compile = 0 is not legal; choose from False, True"),
            ({"tp_degree": True}, "tp_degree = True is not legal"),
            ({"tp_degree": ("2",)}, "tp_degree = ('2',) is not legal"),
            ({"sharding_strategy": ("FULL_SHARD",)}, "must have 3 entries"),
            ({"sharding_strategy": "FULL_SHARD"}, "must have 3 entries"),
            ({"sharding_strategy": ("FULL_SHARD", "DDP", "NO_SHARD")}, "sharding_strategy[1] = 'DDP' is not legal"),
            ({"micro_batch_size": 3}, "result 8/3 is not a whole number"),
            ({"gradient_accumulation_steps": 4}, "= 4 is not legal; with the other values it must be 2"),
            ({"tp_degree": 4, "gradient_accumulation_steps": 4, "compile": True}, "does not hold with compile=True"),
            ({"precision": "bf16"}, "unknown parameter precision; choose from"),
        ],
        ids=str,
    )
    def test_why_illegal(self, gpt: SearchSpace, change: Config, reason: str) -> None:
        config = {**GPT_CURRENT, **change}
        assert config not in gpt
        assert reason in str(gpt.why_illegal(config))

    @pytest.mark.parametrize("name", list(GPT_CURRENT))
    def test_a_missing_parameter_is_reported(self, gpt: SearchSpace, name: str) -> None:
        config = {key: value for key, value in GPT_CURRENT.items() if key != name}
        assert f"{name} is missing" in str(gpt.why_illegal(config))

    def test_encode_refuses(self, gpt: SearchSpace) -> None:
        with pytest.raises(SpaceError, match="micro_batch_size is missing"):
            gpt.encode({})
        with pytest.raises(SpaceError, match="is not legal"):
            gpt.encode({**GPT_CURRENT, "tp_degree": 3})

    @pytest.mark.parametrize("choice", [(), (0,) * 5, (0,) * 7, (-1, 0, 0, 0, 0, 0), (0, 0, 0, 0, 0, 2)], ids=str)
    def test_decode_refuses_illegal_indices(self, gpt: SearchSpace, choice: tuple[int, ...]) -> None:
        with pytest.raises(SpaceError, match="needs 6 indices"):
            gpt.decode(choice)

    def test_decode_of_an_illegal_choice(self, gpt: SearchSpace) -> None:
        assert gpt.decode((2, 0, 0, 0, 0, 0)) is None  # micro batches of 3 do not divide 32

    def test_another_space_made_from_it_is_its_own(self, gpt: SearchSpace) -> None:
        before = gpt.size()
        narrower = replace(gpt, constraints=(*gpt.constraints, expression("tp_degree == 1")))
        assert 0 < narrower.size() < before


@st.composite
def spaces(draw: st.DrawFn) -> SearchSpace:
    """Small spaces with derivations, per-layer parameters, groups and constraints that tie all of them."""
    names = ["a", "b", "c", "d"]
    numbers = st.lists(st.sampled_from([1, 2, 3, 4, 0.5, 8]), min_size=1, max_size=4, unique=True)
    parameters = [free(name, *draw(numbers)) for name in names]
    if draw(st.booleans()):
        parameters.append(
            free("s", "x", "y", per_layer=draw(st.integers(1, 3)), groups=draw(st.none() | st.integers(1, 2)))
        )
    else:
        parameters.append(free("s", "x", "y"))
    sources = st.sampled_from(
        ["8 / (a * b)", "a * b - c", "max(a, d) + b", "24 / (b * c * d)", "a if b > 2 else c", "p + 1", "12 / p * d"]
    )
    if draw(st.booleans()):
        parameters.insert(draw(st.integers(0, 4)), derived("p", draw(sources.filter(lambda source: "p" not in source))))
        if draw(st.booleans()):
            parameters.append(derived("q", draw(sources)))
    known = {item.name for item in parameters}
    rules = st.sampled_from(
        [
            "a * b * c * d == 16",
            "a + b + c < 9",
            "a <= b <= c",
            "not (a == 1 and 4 / (b - 2) > c)",
            "a == 1 or log2(b) >= d",
            "4 / (a - 1) <= c",
            "p % 2 == 0",
            "q > p or a == b",
            "d in [1, 4] or c % a == 0",
            "(a if b > 1 else c) < 4",
            "'x' in s",
            "not ('y' in s and a > 1)",
            "s == ('x', 'y') or a < b",
            "a / b * c == d",
            "abs(a - b) == floor(c / 2)",
        ]
    ).map(expression)
    constraints = draw(st.lists(rules.filter(lambda rule: rule.names <= known), max_size=3))
    return SearchSpace(parameters=tuple(parameters), constraints=tuple(constraints))


@settings(max_examples=100)
@given(spaces())
def test_laws_of_every_space(bound: SearchSpace) -> None:
    if not decoded(bound):
        with pytest.raises(SpaceError, match="no config is legal"):
            bound.bind(workload={}, current={})
        assert bound.size() == 0
        return
    bound = bound.bind(workload={}, current={})
    expected = sorted(map(frozen, decoded(bound)), key=repr)
    assert sorted(map(frozen, bound.configs()), key=repr) == expected
    assert bound.size() == len(expected) > 0
    for config in bound.sample(5, rng=np.random.default_rng(0)):
        assert bound.why_illegal(config) is None
        assert frozen(bound.decode(bound.encode(config)) or {}) == frozen(config)


class TestLargeSpaces:
    """A hundred layers and a few numbers: nothing is listed that need not be."""

    def test_layers_beside_numbers(self) -> None:
        start = time.process_time()
        bound = GPT.bind(workload={"world_size": 8, "n_layers": 100}, current=GPT_CURRENT)
        drawn = bound.sample(20, rng=np.random.default_rng(0))
        size = bound.size()
        elapsed_s = time.process_time() - start
        numbers = prod(len(item.choices) for item in bound.dimensions[0:1] + bound.dimensions[-2:])
        assert 2 * 3**100 < size < numbers * 3**100
        assert bound.size(limit=1000) == 1000
        assert all(config in bound for config in drawn)
        assert len({config["sharding_strategy"] for config in drawn}) == 20
        assert elapsed_s < 20  # 0.05 s on an idle core

    def test_a_mesh_whose_degrees_multiply(self) -> None:
        axes = ["dp_replicate_degree", "dp_shard_degree", "tp_degree", "pp_degree", "cp_degree", "ep_degree"]
        mesh = space(
            *(free(axis, 1, 2, 4, 8, 16, 32, 64, 128) for axis in axes), require=(f"{' * '.join(axes)} == world_size",)
        )
        bound = mesh.bind(workload={"world_size": 128}, current={})
        assert bound.size() == 792  # ways to put 7 factors of 2 on 6 axes
        assert all(prod(config.values()) == 128 for config in bound.sample(99, rng=np.random.default_rng(0)))


class TestGroups:
    @pytest.mark.parametrize(
        ("layers", "groups", "blocks"),
        [
            (6, 2, [(0, 1, 2), (3, 4, 5)]),
            (5, 2, [(0, 1), (2, 3, 4)]),
            (2, 4, [(0,), (1,)]),
            (3, 1, [(0, 1, 2)]),
        ],
    )
    @pytest.mark.parametrize("key", ["per_layer", "per_table"])
    def test_neighbouring_layers_are_tuned_together(
        self, layers: int, groups: int, blocks: list[tuple[int, ...]], key: str
    ) -> None:
        grouped = space(free("s", "x", "y", groups=groups, **{key: layers}))
        assert [item.positions for item in grouped.dimensions] == blocks
        assert {item.entries for item in grouped.dimensions} == {"tables" if key == "per_table" else "layers"}
        assert grouped.size() == 2 ** len(blocks)
        assert all(len(config["s"]) == layers for config in grouped.configs())

    def test_a_group_has_one_value(self) -> None:
        grouped = space(free("s", "x", "y", per_layer=4, groups=2))
        assert {"s": ("x", "x", "y", "y")} in grouped
        assert "entries 0 to 1 are one group" in str(grouped.why_illegal({"s": ("x", "y", "y", "y")}))


class TestTypes:
    def test_values_keep_the_type_of_the_file(self) -> None:
        mixed = space(free("a", 1, 2.5), free("b", True, False), free("c", "1", "2"))
        first = next(mixed.configs())
        assert [type(value) for value in first.values()] == [int, bool, str]
        again = mixed.decode(mixed.encode({"a": 1.0, "b": True, "c": "1"}))
        assert again is not None
        assert type(again["a"]) is int

    @pytest.mark.parametrize(
        ("arguments", "rule"),
        [
            ({}, "needs either choices or derive"),
            ({"choices": (1,), "derive": expression("1")}, "needs either choices or derive"),
            ({"choices": (1, True)}, "must be of one kind"),
            ({"choices": (1, "1")}, "must be of one kind"),
            ({"choices": (1, 2, 1.0)}, "must be distinct, got 1 more than once"),
            ({"choices": (1,), "groups": 2}, "needs per_layer or per_table, got 2"),
            ({"choices": (1,), "groups": 0, "per_layer": 2}, "above 0 and needs per_layer"),
            ({"choices": (1,), "per_layer": 2, "per_table": 2}, "needs one of per_layer, per_table"),
        ],
        ids=str,
    )
    def test_a_parameter_refuses(self, arguments: dict[str, object], rule: str) -> None:
        with pytest.raises(SpaceError, match=rule):
            Parameter(name="p", **arguments)

    def test_a_parameter_is_declared_once(self) -> None:
        with pytest.raises(SpaceError, match="declared more than once: a"):
            space(free("a", 1), free("a", 2))


class TestBind:
    @pytest.mark.parametrize(
        ("workload", "current", "known"),
        [
            ({"world_size": 8}, {}, {"dp_degree": 8}),
            ({"world_size": 8, "nnodes": 2}, {}, {"nproc_per_node": 4, "dp_degree": 8}),
            ({"world_size": 8, "nproc_per_node": 8}, {}, {"nnodes": 1, "dp_degree": 8}),
            ({"world_size": 8, "tp_degree": 2, "cp_degree": 2}, {}, {"dp_degree": 2}),
            ({"world_size": 8, "tp_degree": 3}, {}, {}),
            ({"world_size": 8}, {"micro_batch_size": 2}, {"dp_degree": 8, "global_batch_size": 16}),
            ({"world_size": 8, "global_batch_size": 5}, {"micro_batch_size": 2}, {"dp_degree": 8}),
            ({"micro_batch_size": 2, "world_size": 4}, {}, {"dp_degree": 4, "global_batch_size": 8}),
        ],
        ids=str,
    )
    def test_names_that_are_always_there(self, workload: Config, current: Config, known: Config) -> None:
        bound = space(free("x", 1)).bind(workload=workload, current=current)
        assert bound.facts == {**workload, **known}

    def test_stated_facts(self) -> None:
        stated = replace(space(free("x", 1, per_layer="n")), workload=(WorkloadFact(name="n", value=3),))
        assert next(stated.bind(workload={}, current={}).configs()) == {"x": (1, 1, 1)}
        assert next(stated.bind(workload={"n": 2}, current={}).configs()) == {"x": (1, 1)}

    def test_a_tuned_degree_decides_dp_degree(self) -> None:
        meshes = space(free("tp_degree", 1, 2, 3, 4), derived("accumulation", "dp_degree * 1"))
        bound = meshes.bind(workload={"world_size": 8, "tp_degree": 1, "dp_degree": 8}, current={})
        assert [(c["tp_degree"], c["accumulation"]) for c in bound.configs()] == [(1, 8), (2, 4), (4, 2)]

    def test_an_unread_degree_must_divide(self) -> None:
        bound = space(free("tp_degree", 1, 3)).bind(workload={"world_size": 4}, current={})
        assert bound.size() == 1
        assert "world_size / (tp_degree)" in str(bound.why_illegal({"tp_degree": 3}))

    def test_a_derived_value_in_a_constraint(self) -> None:
        bound = space(free("a", 1, 2, 3, 4), derived("b", "12 / a"), require=("b >= 4",)).bind(workload={}, current={})
        assert [config["b"] for config in bound.configs()] == [12, 6, 4]

    def test_a_chain_of_derived_values_in_a_constraint(self) -> None:
        parameters = [free("a", 1, 2, 3), derived("b", "a * 2"), derived("c", "b * 2"), derived("d", "c * 2")]
        bound = space(*parameters, require=("d > 8",)).bind(workload={}, current={})
        assert [config["d"] for config in bound.configs()] == [16, 24]

    def test_a_whole_per_layer_value_in_a_constraint(self) -> None:
        bound = space(free("s", "x", "y", per_layer=2), free("a", 1, 2), require=("s == ('x', 'y') or a == 1",))
        assert bound.bind(workload={}, current={}).size() == 5

    @pytest.mark.parametrize("source", ["a - 1", "2 ** 62 * a * a", "1 / (a - 1)"])
    def test_derived_values_are_positive_and_bounded(self, source: str) -> None:
        narrow = space(free("a", 1, 2), derived("b", source)).bind(workload={}, current={})
        assert narrow.size() == 1

    def test_derivations_in_any_order(self) -> None:
        chain = space(derived("c", "b * 2"), derived("b", "a * 2"), free("a", 1, 2)).bind(workload={}, current={})
        assert list(chain.configs()) == [{"c": 4, "b": 2, "a": 1}, {"c": 8, "b": 4, "a": 2}]

    @pytest.mark.parametrize(
        ("unbound", "workload", "message"),
        [
            (
                space(derived("a", "b"), derived("b", "c + 1"), derived("c", "a")),
                {},
                "circular derivation: a <- b <- c <- a",
            ),
            (space(derived("a", "a + 1")), {}, "circular derivation: a <- a"),
            (space(free("a", 1), require=("a < n_layers",)), {}, "needs n_layers, unknown for this workload"),
            (space(free("a", 1), require=("a < global_batch_size",)), {}, "if the command sets micro_batch_size"),
            (space(free("s", "x", per_layer="n_layers")), {}, "it is unknown for this workload"),
            (space(free("s", "x", per_layer="n_layers")), {"n_layers": 0}, "must be from 1 to 4096; got 0"),
            (space(free("s", "x", per_layer="n_layers")), {"n_layers": "4"}, "got '4'"),
            (space(free("s", "x", per_layer="n_layers")), {"n_layers": 10**9}, "got 1000000000"),
            (space(free("a", 1, 2), require=("a > 0", "a > 5")), {}, "all break rule a > 5"),
            (space(free("a", 1, 2), require=("a + 'x' > 5",)), {}, "needs numbers"),
            (space(free("a", 1, 2), require=("world_size > 8",)), {"world_size": 2}, "with world_size=2"),
            (space(free("a", 3, 5), derived("b", "8 / a")), {}, "all break b = 8 / a"),
            (
                space(free("a", 1, 2), free("c", 1, 2), require=("c > 0", "a > 1", "c < 9", "a < 2")),
                {},
                "none satisfies all of: rule a > 1: 'a > 1'; rule a < 2: 'a < 2'",
            ),
        ],
        ids=lambda value: None,
    )
    def test_refuses(self, unbound: SearchSpace, workload: Config, message: str) -> None:
        with pytest.raises(SpaceError) as caught:
            unbound.bind(workload=workload, current={})
        assert message in str(caught.value)

    def test_an_unbound_space_says_what_it_needs(self) -> None:
        with pytest.raises(SpaceError, match="unknown for this workload"):
            GPT.size()


@pytest.mark.parametrize(
    ("workload", "current", "batch"),
    [
        ({"world_size": 8}, {"micro_batch_size": 4, "gradient_accumulation_steps": 2}, 64),
        ({"world_size": 8}, {"micro_batch_size": 4, "tp_degree": 2, "pp_degree": 2, "cp_degree": 2}, 4),
        ({"world_size": 8, "global_batch_size": 7}, {"micro_batch_size": 4}, 32),
        ({"world_size": 8}, {"micro_batch_size": 4, "tp_degree": 3}, None),
        ({"world_size": 8}, {"micro_batch_size": "auto"}, None),
        ({"world_size": 8}, {}, None),
        ({}, {"micro_batch_size": 4}, None),
    ],
    ids=str,
)
def test_computed_global_batch_size(workload: Config, current: Config, batch: int | None) -> None:
    assert computed_global_batch_size(workload=workload, current=current) == batch


@given(st.integers(1, 40), st.integers(1, 12))
def test_groups_share_all_layers(layers: int, groups: int) -> None:
    assume(groups <= layers)
    positions = [item.positions for item in space(free("s", "x", per_layer=layers, groups=groups)).dimensions]
    assert [entry for block in positions for entry in block] == list(range(layers))
    assert max(map(len, positions)) - min(map(len, positions)) <= 1


REST = "global_batch_size / (micro_batch_size * dp_degree)"
X = free("x", 1, 2)


def flagged(name: str, flag: str) -> Parameter:
    return free(name, 8, 16, binding=Binding(kind=BindingKind.FLAG, name=flag))


@pytest.mark.parametrize(
    ("parameters", "changers"),
    [
        ([X], ""),
        ([flagged("precision", "--dtype")], ""),
        ([free("micro_batch_size", 8, 16), derived("warmup", "102400 / global_batch_size")], "micro_batch_size"),
        ([free("global_batch_size", 8, 16), derived("gradient_accumulation_steps", REST)], "global_batch_size"),
        ([free("micro_batch_size", 1, 2), derived("gradient_accumulation_steps", REST)], ""),
        ([X, derived("micro_batch_size", "4 * x"), derived("gradient_accumulation_steps", REST)], ""),
        ([X, derived("micro_batch_size", "4 * x")], "x"),
        ([X, derived("y", "4 * x"), derived("micro_batch_size", "2 * y")], "x"),
        ([X, derived("seq_len", "1024 * x")], "x"),
        ([X, free("micro_batch_size", 8, default=4, when=expression("x == 1"))], "x micro_batch_size"),
        (
            [
                free("micro_batch_size", 1, 2),
                free("tp_degree", 1, 2),
                derived("gradient_accumulation_steps", "global_batch_size / (micro_batch_size * world_size)"),
            ],
            "micro_batch_size tp_degree",
        ),
        ([free("micro_batch_size", 1, 2), derived("gradient_accumulation_steps", "x"), X], "micro_batch_size x"),
        ([derived("micro_batch_size", "y"), derived("y", "micro_batch_size"), X], ""),  # refused elsewhere
        ([free("seq_len", 8, 16)], "seq_len"),
        ([free("n_layers", 8, 16)], "n_layers"),
        ([flagged("n", "--nproc_per_node")], "n"),
        *(
            ([flagged("knob", flag)], "knob")
            for flag in ("--block_size", "--bs", "--train_batch_size", "--local-batch-size", "--model.hidden-size=")
        ),
    ],
)
def test_parameters_that_may_change_the_work_of_a_step(parameters: list[Parameter], changers: str) -> None:
    assert " ".join(space(*parameters).changers_of_work()) == changers


@settings(deadline=None)
@given(
    micro=st.sampled_from(
        [free("micro_batch_size", 1, 2), derived("micro_batch_size", "2 * x"), free("micro_batch_size", 2)]
    ),
    accumulation=st.sampled_from(
        [
            *map(partial(derived, "gradient_accumulation_steps"), (REST, f"{REST} * 2 / 2", "x", "24 / world_size")),
            *(free("gradient_accumulation_steps", 4, *more) for more in ((), (2,))),
        ]
    ),
    mesh=st.sampled_from([free("tp_degree", 1), free("tp_degree", 1, 2)]),
    batch=st.sampled_from([free("global_batch_size", 96), free("global_batch_size", 48, 96), None]),
)
def test_the_batch_stays_where_nothing_may_change_it(
    micro: Parameter, accumulation: Parameter, mesh: Parameter, batch: Parameter | None
) -> None:
    drawn = space(X, micro, accumulation, mesh, *([batch] if batch is not None else []))
    assume(not drawn.changers_of_work())
    bound = drawn.bind(workload={"world_size": 4, "global_batch_size": 96}, current={})
    batches = {computed_global_batch_size(workload={"world_size": 4}, current=config) for config in bound.configs()}
    assert len(batches) == 1
