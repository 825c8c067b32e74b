from __future__ import annotations

import pytest

from torchx_cubicml.errors import SpaceError
from torchx_cubicml.space.constraints import (
    Conditional,
    Rule,
    data_parallel_degree,
    derived_value,
    dp_degree_expression,
    in_dependency_order,
    is_count,
    make_idle_rules,
    make_rules,
    violation_text,
)
from torchx_cubicml.space.decision_diagram import Symbolic
from torchx_cubicml.space.expression import Expression, parse_expression

A, B = Symbolic("a", whole=True), Symbolic("b", whole=True)


def expression(source: str) -> Expression:
    return parse_expression(source, where="here")


def rule(source: str, **derivations: str) -> Rule:
    """The rule of a constraint, behind those of its derivations."""
    made = {name: expression(text) for name, text in derivations.items()}
    return make_rules(["a", "b"], made, [expression(source)])[-1]


def idle_rule(first: object = 0, *, when: str = "a > 1") -> Rule:
    conditional = Conditional("c", expression(when), None, 9)
    return make_idle_rules({"a": 1, conditional.chosen: first}, {"c": conditional})[0]


class TestConstraints:
    def test_residuals_are_decided_as_soon_as_they_can(self) -> None:
        both = rule("a > 1 and b > 1")
        assert both.residual({"a": 1, "b": B}) is None
        assert both.residual({"a": 2, "b": 2}) == ("met",)
        assert both.residual({"a": 2, "b": B}) == both.residual({"a": 3, "b": B}) not in {None, ("met",)}
        assert rule("a > 1 or b > 1").residual({"a": 2, "b": B}) == ("met",)

    def test_a_number_is_no_condition(self) -> None:
        assert rule("a + b").residual({"a": 1, "b": 1}) is None
        assert "must be true or false" in str(rule("a + b").broken({"a": 1, "b": 1}))

    def test_derivations_that_fail_break_a_rule(self) -> None:
        half = rule("h + b > 0", h="a / 2")
        assert half.reads == {"a", "b"}
        assert half.residual({"a": 3, "b": B}) is None
        assert half.residual({"a": 0, "b": B}) is None  # a derived number is above 0
        assert half.residual({"a": 4, "b": B}) is not None
        assert half.residual({"a": 2, "b": B}) != half.residual({"a": 4, "b": B})
        assert "3/2 is not a whole number" in str(half.broken({"a": 3, "b": 1}))
        assert half.broken({"a": 4, "b": 1}) is None

    def test_an_open_derivation_stays_open(self) -> None:
        # The constraint is met, but whether the derivation has a value is open.
        late = rule("a > 1 or h > 1", h="b / 2")
        assert late.residual({"a": 2, "b": B}) not in {None, ("met",)}
        assert late.residual({"a": 2, "b": 4}) == ("met",)

    def test_a_rule_holds_where_it_gives_no_reason(self) -> None:
        ruled = [rule("a > b"), rule("a + b"), rule("a / b == 2"), rule("h + b > 0", h="a / 2"), rule("a % b == 0")]
        pairs = [(a, b) for a in (-1, 0, 3, 4, 2.5, "x", True) for b in (0, 1, 2, "x")]
        known = [{"a": a, "b": b} for a, b in pairs]
        assert [[each.holds(values) for values in known] for each in ruled] == [
            [each.broken(values) is None for values in known] for each in ruled
        ]
        assert {each.holds(values) for each in ruled for values in known} == {True, False}

    def test_a_broken_rule_is_named_with_its_values(self) -> None:
        assert rule("a > b").broken({"a": 1, "b": 2}) == "here: 'a > b' does not hold with a=1, b=2"
        assert rule("a > b").broken({"a": 3, "b": 2}) is None
        assert violation_text(expression("1 > 2"), {}) == "here: '1 > 2' does not hold"
        assert violation_text(expression("a > b"), {"b": 2}) == "here: 'a > b' does not hold with b=2"

    def test_long_values_are_cut(self) -> None:
        sixty, more = "x" * 58, "x" * 59
        assert violation_text(expression("a"), {"a": sixty}).endswith(f"with a='{sixty}'")
        assert violation_text(expression("a"), {"a": more}).endswith(f"with a='{'x' * 56}...")
        assert violation_text(expression("a"), {"a": (1, 2)}).endswith("with a=[1, 2]")


class TestDerivedValues:
    @pytest.mark.parametrize("value", [1, 2**63 - 1, 0.5, True, False, "", "x"])
    def test_a_value_that_a_script_can_read(self, value: object) -> None:
        assert derived_value("d", expression("a"), {"a": value}) == value

    @pytest.mark.parametrize("value", [0, -1, 2**63, 0.0])
    def test_a_value_that_no_script_can_read(self, value: object) -> None:
        with pytest.raises(SpaceError, match=rf"here: d = a must be above 0 and at most {2**63 - 1}, got {value}"):
            derived_value("d", expression("a"), {"a": value})
        assert make_rules(["a"], {"d": expression("a")}, [])[0].residual({"a": value}) is None

    def test_an_unknown_value(self) -> None:
        with pytest.raises(SpaceError, match="here: d = a: the result is unknown"):
            derived_value("d", expression("a"), {"a": A})

    def test_an_idle_value_may_be_zero(self) -> None:
        chosen = Conditional("c", expression("a > 1"), None, 0)
        made = Conditional("c", expression("a > 1"), expression("b"), 0)
        for conditional in (chosen, made):
            assert derived_value("c", conditional, {"a": 1, "b": 5, "c, if used": 7}) == 0
        assert derived_value("c", chosen, {"a": 2, "c, if used": -7}) == -7  # the file lists it
        assert derived_value("c", made, {"a": 2, "b": 5}) == 5
        assert derived_value("c", made, {"a": 2, "b": 0}) == 0  # as idle
        with pytest.raises(SpaceError, match="c = b while a > 1 must be above 0"):
            derived_value("c", made, {"a": 2, "b": -5})


class TestConditionals:
    def test_names_and_texts(self) -> None:
        chosen = Conditional("c", expression("a > 1"), None, 0)
        made = Conditional("c", expression("a > 1"), expression("b"), 0)
        assert (chosen.names, made.names) == ({"a", "c, if used"}, {"a", "b"})
        assert (chosen.source, made.source) == ("c while a > 1", "b while a > 1")
        assert chosen.where == "here"

    def test_values_with_an_unknown_condition(self) -> None:
        chosen = Conditional("c", expression("a > 1"), None, 0)
        made = Conditional("c", expression("a > 1"), expression("b"), 0)
        one, other = (chosen.evaluate_partly({"a": A, "c, if used": value}) for value in (7, 8))
        assert isinstance(one, Symbolic)
        assert one != other
        assert one != chosen.evaluate_partly({"a": B, "c, if used": 7})
        assert isinstance(made.evaluate_partly({"a": A, "b": 1}), Symbolic)
        assert chosen.counts({"a": 2}) is True
        assert chosen.counts({"a": 1}) is False


class TestIdleChoices:
    def test_only_the_first_choice_is_legal(self) -> None:
        idle = idle_rule()
        broken = [idle.broken({"a": a, "c, if used": c}) for a, c in ((1, 0), (1, 5), (2, 0), (2, 5))]
        assert broken == [None, "c is idle and has another than its first choice", None, None]

    def test_residuals(self) -> None:
        idle = idle_rule()
        assert idle.residual({"a": 2, "c, if used": 5}) == idle.residual({"a": 2, "c, if used": 0}) is not None
        assert idle.residual({"a": 2, "c, if used": Symbolic("c")}) is not None
        assert idle.residual({"a": 1, "c, if used": 5}) is None
        assert idle.residual({"a": 1, "c, if used": 0}) is not None
        same, differs = (idle.residual({"a": A, "c, if used": value}) for value in (0, 5))
        assert same != differs
        assert None not in {same, differs}
        assert idle.residual({"a": A, "c, if used": 6}) == differs

    def test_residuals_of_layers(self) -> None:
        idle = idle_rule(("x", "x"))

        def so_far(a: object, *entries: str) -> object:
            return idle.residual({"a": a, "c, if used": Symbolic(entries, list_name="c", entries=entries)})

        assert so_far(1, "y") is None
        assert so_far(1, "x") is not None
        assert so_far(1) is not None
        assert so_far(A, "y") != so_far(A, "x") == so_far(A)


class TestOrder:
    def test_derivations_come_after_what_they_read(self) -> None:
        order = in_dependency_order({"x": expression("y + z"), "y": expression("z"), "z": expression("a")})
        assert list(order) == ["z", "y", "x"]

    def test_a_circle_is_named(self) -> None:
        circle = {"w": expression("x"), "x": expression("y"), "y": expression("x + 1"), "z": expression("a")}
        with pytest.raises(SpaceError, match=r"^circular derivation: x <- y <- x$"):
            in_dependency_order(circle)

    def test_a_rule_holds_what_it_needs_alone(self) -> None:
        derivations = {"y": expression("z * 2"), "z": expression("a"), "other": expression("b")}
        found = make_rules(["a", "b"], derivations, [expression("y > 1")])
        assert [(item.derives, [name for name, _ in item.before], item.reads) for item in found] == [
            ("z", [], {"a"}),
            ("other", [], {"b"}),
            ("y", ["z"], {"a"}),
            ("", ["z", "y"], {"a"}),
        ]


@pytest.mark.parametrize(
    ("known", "degree"),
    [
        ({"world_size": 16}, 16),
        ({"world_size": 16, "tp_degree": 2, "pp_degree": 2, "cp_degree": 2}, 2),
        ({"world_size": 16, "tp_degree": 3}, None),
        ({"tp_degree": 2}, None),
        ({"world_size": 0}, None),
        ({"world_size": True}, None),
    ],
)
def test_data_parallel_degrees(known: dict[str, object], degree: int | None) -> None:
    assert data_parallel_degree(known) == degree
    assert data_parallel_degree({**known, "ep_degree": 2}) == degree


def test_degree_expressions_name_their_place() -> None:
    assert dp_degree_expression(["world_size"]).source == "world_size"
    assert dp_degree_expression(["pp_degree", "tp_degree"]).source == "world_size / (tp_degree * pp_degree)"
    assert dp_degree_expression([]).where == "dp_degree"


@pytest.mark.parametrize(
    ("value", "wanted"), [(1, True), (2, True), (0, False), (-1, False), (True, False), (1.0, False)]
)
def test_counts_are_whole_and_above_zero(value: object, wanted: bool) -> None:
    assert is_count(value) is wanted
