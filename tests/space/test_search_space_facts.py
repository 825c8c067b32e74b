"""Facts that a bound space computes, and derived parameters that a command implies."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from torchx_cubicml.errors import SpaceError
from torchx_cubicml.space import (
    Binding,
    BindingKind,
    Parameter,
    RewriteRules,
    SearchSpace,
    WorkloadFact,
    computed_global_batch_size,
    implied_values,
)
from torchx_cubicml.space.expression import parse_expression

if TYPE_CHECKING:
    from torchx_cubicml.records.values import Config, Value

X = Parameter(name="x", choices=(1, 2))


def derived(name: str, source: str, *, binding: Binding | None = None) -> Parameter:
    return Parameter(name=name, derive=parse_expression(source, where=name), binding=binding)


def facts(workload: Config, *parameters: Parameter, current: Config | None = None) -> dict[str, Value]:
    """The facts that binding adds."""
    bound = SearchSpace(parameters=parameters or (X,)).bind(workload=workload, current=current or {})
    return {name: value for name, value in bound.facts.items() if name not in workload}


@pytest.mark.parametrize(
    ("workload", "added"),
    [
        ({"world_size": 8, "nnodes": 2}, {"nproc_per_node": 4, "dp_degree": 8}),
        ({"world_size": 8, "nnodes": 3}, {"dp_degree": 8}),
        ({"world_size": 8, "nnodes": 7}, {"dp_degree": 8}),
        ({"world_size": 8, "nnodes": 0}, {"dp_degree": 8}),
        ({"world_size": 8, "nnodes": "2"}, {"dp_degree": 8}),
        ({"world_size": 8, "nnodes": 2, "nproc_per_node": 3}, {"dp_degree": 8}),
        ({"world_size": 8, "nproc_per_node": 4}, {"nnodes": 2, "dp_degree": 8}),
        ({"world_size": 8, "nproc_per_node": 3}, {"dp_degree": 8}),
        ({"world_size": 8, "nproc_per_node": 7}, {"dp_degree": 8}),
        ({"world_size": 8, "nproc_per_node": 0}, {"dp_degree": 8}),
        ({"world_size": "8", "nproc_per_node": 2}, {}),
        ({"world_size": "8", "nnodes": 2}, {}),
        ({"nnodes": 2, "nproc_per_node": 4}, {}),
        ({"world_size": 8, "dp_degree": 3}, {}),
        ({"world_size": 8, "micro_batch_size": 3}, {"dp_degree": 8, "global_batch_size": 24}),
    ],
    ids=str,
)
def test_sizes_follow_from_each_other(workload: Config, added: Config) -> None:
    found = facts(workload)
    assert found == added
    assert all(type(value) is int for value in found.values())


def test_a_tuned_name_is_no_fact() -> None:
    micro = Parameter(name="micro_batch_size", choices=(1, 2))
    assert facts({"world_size": 4}, micro, current={"micro_batch_size": 2}) == {"dp_degree": 4, "global_batch_size": 8}
    degree = Parameter(name="tp_degree", choices=(1, 2))
    assert facts({"world_size": 4}, degree, current={"tp_degree": 2}) == {}
    world = Parameter(name="world_size", choices=(1, 2))
    bound = SearchSpace(parameters=(world,)).bind(workload={"world_size": 4, "dp_degree": 4}, current={})
    assert bound.facts == {}


def test_facts_of_the_file_are_defaults() -> None:
    flag = Binding(kind=BindingKind.FLAG, name="--m")
    stated = (
        WorkloadFact(name="n", value=3),
        WorkloadFact(name="m", value=4, binding=flag),  # read from the command, or not at all
        WorkloadFact(name="unknown"),
    )
    space = SearchSpace(parameters=(X,), workload=stated)
    assert space.bind(workload={}, current={}).facts == {"n": 3}
    assert space.bind(workload={"n": 5}, current={}).facts == {"n": 5}


def test_the_same_facts_keep_the_bound_space() -> None:
    own = Parameter(name="o", choices=(1, 2), when=parse_expression("x > 1", where="o"))
    bound = SearchSpace(parameters=(X, own)).bind(workload={"a": 1}, current={"o": 2, "x": 1})
    assert bound.own == {"o": 2}
    assert bound.bind(workload={"a": 1}, current={"o": 2}) is bound
    assert bound.legal is bound.legal
    assert bound.bind(workload={"a": 2}, current={"o": 2}).facts == {"a": 2}
    other = bound.bind(workload={"a": 1}, current={"o": 1})
    assert (other.facts, other.own) == ({"a": 1}, {"o": 1})
    assert [config["o"] for config in other.configs() if config["x"] == 1] == [1]
    assert "cache" not in repr(bound)
    assert bound == SearchSpace(parameters=(X, own), facts={"a": 1}, own={"o": 2})


def test_an_own_or_default_idle_value_fills_all_layers() -> None:
    condition = parse_expression("x > 1", where="o")
    for default, idle in ((7, (7, 7, 7)), ((7, 8, 9), (7, 8, 9))):
        layers = Parameter(name="o", choices=(1, 2), when=condition, per_layer=3, groups=2, default=default)
        bound = SearchSpace(parameters=(X, layers)).bind(workload={}, current={"o": (1, 1, 1)})
        assert {config["o"] for config in bound.configs() if config["x"] == 1} == {idle}


@pytest.mark.parametrize(("count", "legal"), [(1, True), (4096, True), (4097, False), (0, False), (True, False)])
def test_layers_have_a_limit(count: int, legal: bool) -> None:
    space = SearchSpace(parameters=(Parameter(name="s", choices=("a",), per_layer="n"),))
    if legal:
        assert len(space.bind(workload={"n": count}, current={}).dimensions) == count
    else:
        with pytest.raises(SpaceError, match=rf"parameters.s: per_layer = 'n' must be from 1 to 4096; got {count}$"):
            space.bind(workload={"n": count}, current={})


def test_an_unknown_count_of_layers_is_reported() -> None:
    space = SearchSpace(parameters=(Parameter(name="s", choices=("a",), per_layer="n"),))
    with pytest.raises(SpaceError, match=r"must be from 1 to 4096; it is unknown for this workload$"):
        space.bind(workload={}, current={})


def test_accumulation_counts_in_the_global_batch() -> None:
    current = {"micro_batch_size": 3, "gradient_accumulation_steps": 5}
    assert computed_global_batch_size(workload={"world_size": 2}, current=current) == 30
    assert computed_global_batch_size(workload={"world_size": 2, **current}, current={}) == 30
    assert computed_global_batch_size(workload={"world_size": 2}, current={"micro_batch_size": 3}) == 6


class TestImpliedValues:
    FLAG = Binding(kind=BindingKind.FLAG, name="--d")
    IMPLIED = Binding(kind=BindingKind.FLAG, name="--d", implied=True)

    def implied(self, known: Config, *parameters: Parameter) -> dict[str, Value]:
        return implied_values(SearchSpace(parameters=(X, *parameters)), known)

    def test_what_no_flag_states_is_derived(self) -> None:
        assert self.implied({"x": 2}, derived("d", "x * 3"), derived("e", "d + 1")) == {"d": 6, "e": 7}
        assert self.implied({"x": 2}, derived("d", "x * 3", binding=self.FLAG)) == {}
        assert self.implied({"x": 2}, derived("d", "x * 3", binding=self.IMPLIED)) == {"d": 6}

    def test_known_values_stay(self) -> None:
        assert self.implied({"x": 2, "d": 1}, derived("d", "x * 3"), derived("e", "d + 1")) == {"e": 2}
        assert self.implied({}, derived("d", "x * 3")) == {}
        assert self.implied({"x": 2, "y": 3}, derived("d", "x * y")) == {"d": 6}

    def test_the_degree_of_data_parallelism_is_known(self) -> None:
        share = derived("share", "12 / dp_degree")
        assert self.implied({"world_size": 8, "tp_degree": 2}, share) == {"share": 3}
        assert self.implied({"world_size": 8, "dp_degree": 6}, share) == {"share": 2}
        world = derived("world_size", "nnodes * 4")
        assert self.implied({"nnodes": 1, "tp_degree": 2}, share, world) == {"share": 6, "world_size": 4}
        assert self.implied({"tp_degree": 2}, share) == {}
        with pytest.raises(SpaceError, match="is not a whole number"):
            self.implied({"world_size": 8}, share)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"x": 2, "d": 6}, None),
        ({"x": 2}, "d is missing; with the other values it must be 6"),
        ({"x": 2, "d": 7}, "d = 7 is not legal; with the other values it must be 6"),
        ({"x": 2, "d": "6"}, "d = '6' is not legal; with the other values it must be 6"),
        ({"x": 1, "d": True}, "d = True is not legal; with the other values it must be 3"),
        ({"x": 2, "d": 6, "z": 1}, "unknown parameter z; choose from x, d"),
    ],
    ids=str,
)
def test_differences_from_the_legal_config_are_named(config: Config, reason: str | None) -> None:
    space = SearchSpace(parameters=(X, derived("d", "x * 3"))).bind(workload={}, current={})
    assert space.why_illegal(config) == reason
    assert (config in space) is (reason is None)


def test_defaults_of_a_space() -> None:
    space = SearchSpace(parameters=(X,))
    assert (space.objective, space.statistic, space.log) == ("tokens_per_second", "mean", None)
    assert space.rewrite == RewriteRules(min_gain=0.01, min_fit=0.9, explore=0.0, explore_budget_device_hours=0.0)


def test_a_value_of_true_is_not_one() -> None:
    one = SearchSpace(parameters=(X, derived("d", "x + 0"))).bind(workload={}, current={})
    assert one.why_illegal({"x": 1, "d": True}) == "d = True is not legal; with the other values it must be 1"
