from __future__ import annotations

import ast
import math
import operator
from fractions import Fraction

import pytest

from torchx_cubicml.errors import SpaceError
from torchx_cubicml.space.arithmetic import FUNCTIONS, RELATIONS, UNARY, bounded, calculate, kind, number, truth


def calculated(operation: type[ast.operator], left: object, right: object) -> object:
    return calculate(operation, left, right, text="left ? right")


@pytest.mark.parametrize(
    ("value", "wanted"),
    [(True, "true or false"), ("1", "a string"), ((1,), "a list"), (Fraction(1, 2), "a number"), (0.5, "a number")],
)
def test_kinds(value: object, wanted: str) -> None:
    assert kind(value) == wanted


def test_only_numbers_are_numbers() -> None:
    assert [number(value, "x") for value in (3, 0.5, Fraction(1, 3))] == [3, 0.5, Fraction(1, 3)]
    for value in (True, "3", (3,)):
        with pytest.raises(SpaceError, match="`x` needs numbers, got"):
            number(value, "x")
    assert truth(False, "x") is False
    for other in (1, "true", 0.0):
        with pytest.raises(SpaceError, match="`x` needs true or false, got"):
            truth(other, "x")


def test_numbers_up_to_1024_bits_are_kept() -> None:
    largest = 2**1024 - 1
    for value in (largest, -largest, Fraction(1, largest), Fraction(largest, 2)):
        assert bounded(value) == value
    for value in (largest + 1, Fraction(1, largest + 1), Fraction(largest + 2, 2)):
        with pytest.raises(SpaceError, match="a number exceeds 1024 bits"):
            bounded(value)


def test_whole_fractions_become_whole_numbers() -> None:
    assert type(bounded(Fraction(6, 2))) is int
    assert type(bounded(Fraction(1, 2))) is Fraction
    assert bounded(1e308) == 1e308
    for value in (math.inf, math.nan, 1j, "1"):
        with pytest.raises(SpaceError, match="a number is too large or not real"):
            bounded(value)


@pytest.mark.parametrize(
    ("operation", "plain"),
    [
        (ast.Add, operator.add),
        (ast.Sub, operator.sub),
        (ast.Mult, operator.mul),
        (ast.Div, lambda a, b: Fraction(a) / Fraction(b)),
        (ast.FloorDiv, operator.floordiv),
        (ast.Mod, operator.mod),
    ],
)
def test_operations_are_exact(operation: type[ast.operator], plain: object) -> None:
    values = [-7, -2, 1, 3, 8, Fraction(1, 3), Fraction(-5, 2)]
    for left in values:
        for right in values:
            assert calculated(operation, left, right) == plain(left, right)


def test_a_float_on_either_side_gives_a_float() -> None:
    for left, right in ((1.0, 4), (1, 4.0), (Fraction(1, 2), 2.0)):
        found = calculated(ast.Div, left, right)
        assert isinstance(found, float)
        assert found == 0.25


def test_powers() -> None:
    assert calculated(ast.Pow, 2, 64) == 2**64
    assert calculated(ast.Pow, 2, -64) == Fraction(1, 2**64)
    assert calculated(ast.Pow, 1.5, 2) == 2.25
    assert type(calculated(ast.Pow, 2.0, 2)) is float
    assert calculated(ast.Pow, 2**16 - 1, 64) == (2**16 - 1) ** 64  # 16 bits, 64 times: 1024
    assert calculated(ast.Pow, 0, 0) == 1
    for base, exponent in ((1, 65), (1, -65), (2, 0.5), (2, Fraction(1, 2))):
        with pytest.raises(SpaceError, match="an exponent must be a whole number from -64 to 64, got"):
            calculated(ast.Pow, base, exponent)
    for base, exponent in ((2**16, 64), (2**16, -64), (Fraction(1, 2**16), 64)):
        with pytest.raises(SpaceError, match="a number exceeds 1024 bits"):
            calculated(ast.Pow, base, exponent)
    with pytest.raises(SpaceError, match=r"`left \? right` is too large"):
        calculated(ast.Pow, 1e300, 2)
    with pytest.raises(SpaceError, match=r"`left \? right` divides by zero"):
        calculated(ast.Pow, 0, -1)


@pytest.mark.parametrize(
    ("relation", "smaller", "equal", "larger"),
    [
        (ast.Eq, False, True, False),
        (ast.NotEq, True, False, True),
        (ast.Lt, True, False, False),
        (ast.LtE, True, True, False),
        (ast.Gt, False, False, True),
        (ast.GtE, False, True, True),
    ],
)
def test_relations(relation: type[ast.cmpop], smaller: bool, equal: bool, larger: bool) -> None:
    found = [RELATIONS[relation](left, 2, "x") for left in (1, 2, 3)]
    assert found == [smaller, equal, larger]
    for left in ("2", True):
        with pytest.raises(SpaceError, match="`x` "):
            RELATIONS[relation](left, 2, "x")


def test_membership_minds_the_kind() -> None:
    for value, listed in ((1, True), (2, False), (True, False), ("1", False), (1.0, True)):
        assert RELATIONS[ast.In](value, (1, "a", False), "x") is listed
        assert RELATIONS[ast.NotIn](value, (1, "a", False), "x") is not listed
    with pytest.raises(SpaceError, match="`x` needs a list after `in`, got 'abc'"):
        RELATIONS[ast.In]("a", "abc", "x")


def test_signs_and_not() -> None:
    assert [UNARY[sign](3, "x") for sign in (ast.USub, ast.UAdd)] == [-3, 3]
    assert UNARY[ast.Not](True, "x") is False
    assert UNARY[ast.Not](False, "x") is True


@pytest.mark.parametrize(
    ("function", "arguments", "wanted"),
    [
        ("abs", [-2], 2),
        ("abs", [Fraction(1, 2)], Fraction(1, 2)),
        ("ceil", [Fraction(5, 2)], 3),
        ("floor", [Fraction(5, 2)], 2),
        ("len", [(1, 2, 3)], 3),
        ("log2", [1], 0),
        ("log2", [Fraction(1, 8)], -3),
        ("log2", [0.25], -2),
        ("max", [(1, 3, 2)], 3),
        ("max", [1, 3, 2], 3),
        ("max", [5], 5),
        ("min", [(2, 1, 3)], 1),
        ("min", [2, 1], 1),
    ],
)
def test_functions(function: str, arguments: list[object], wanted: object) -> None:
    assert FUNCTIONS[function](arguments, "x") == wanted


@pytest.mark.parametrize("value", [3, 5, 7, 2**100 + 1, Fraction(3, 4), Fraction(5, 3), 0.3])
def test_log2_between_powers_is_a_float(value: float | Fraction) -> None:
    found = FUNCTIONS["log2"]([value], "x")
    assert isinstance(found, float)
    assert found == pytest.approx(math.log2(value), rel=1e-12)


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        ("log2", [0], "log2 needs a number above 0, got 0"),
        ("log2", [-1], "log2 needs a number above 0, got -1"),
        ("len", ["abc"], "`x` needs a list, got 'abc'"),
        ("max", [("a",)], "`x` needs numbers, got 'a'"),
        ("max", [(1,), 2], r"`x` needs numbers, got \(1,\)"),
    ],
)
def test_functions_refuse(function: str, arguments: list[object], message: str) -> None:
    with pytest.raises(SpaceError, match=message):
        FUNCTIONS[function](arguments, "x")
