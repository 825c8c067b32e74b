from __future__ import annotations

import math
import time
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchx_cubicml.errors import SpaceError
from torchx_cubicml.space.decision_diagram import Symbolic
from torchx_cubicml.space.expression import MAX_DEPTH, MAX_SOURCE, is_name, parse_expression


def evaluate(source: str, **values: object) -> object:
    return parse_expression(source, where="here").evaluate(values)


@pytest.mark.parametrize(
    ("source", "result"),
    [
        ("8 / 2", 4),
        ("7 / 2 * 2", 7),
        ("1 / 3 + 2 / 3", 1),
        ("7 // 2", 3),
        ("-7 % 4", 1),
        ("2 ** 10", 1024),
        ("2 ** -1 * 2", 1),
        ("10 ** 40 / 10 ** 39", 10),
        ("0.5 * 3", 1.5),
        ("min(3, 1, 2) + max(4, 5)", 6),
        ("ceil(7 / 2) + floor(7 / 2)", 7),
        ("log2(8)", 3),
        ("log2(1 / 4)", -2),
        ("abs(-3)", 3),
        ("+3 - -3", 6),
        ("1 < 2 < 3", True),
        ("1 < 2 > 3", False),
        ("not 1 == 2 and (False or true)", True),
        ("3 in (1, 2, 3) and 'a' not in ['b']", True),
        ("-1 in [-1]", True),
        ("1 in [true, '1']", False),
        ("'full' if 3 > 2 else 'none'", "full"),
        (" 1 ", 1),
    ],
)
def test_evaluates_exactly(source: str, result: object) -> None:
    value = evaluate(source)
    assert value == result
    assert type(value) is type(result)


def test_reads_names() -> None:
    expression = parse_expression("max(tp_degree, 2) <= 8 and precision == 'bf16'", where="here")
    assert expression.names == {"tp_degree", "precision"}
    assert expression.evaluate({"tp_degree": 8, "precision": "bf16"}) is True


def test_equal_sources_are_equal_expressions() -> None:
    one, other = parse_expression("a + 1", where="here"), parse_expression("a + 1", where="there")
    assert one == other != parse_expression("a + 2", where="here")
    assert repr(one) == "Expression(source='a + 1', names=frozenset({'a'}), where='here')"


def test_reads_per_layer_values() -> None:
    layers = ("FULL_SHARD", "NO_SHARD")
    assert evaluate("len(layers)", layers=layers) == 2
    assert evaluate("'NO_SHARD' in layers", layers=layers) is True
    assert evaluate("max(sizes) - min(sizes)", sizes=(4, 1, 3)) == 3


@pytest.mark.parametrize(
    "source",
    [
        "",
        "1 +",
        "a.b",
        "a[0]",
        "f(1)",
        "max",
        "max()",
        "abs(1, 2)",
        "max(*a)",
        "max(a, key=b)",
        "lambda: 1",
        "[x for x in a]",
        "(x := 1)",
        "f'{a}'",
        "b'a'",
        "1j",
        "None",
        "...",
        "{1: 2}",
        "1 @ 2",
        "1 << 2",
        "~1",
        "a is b",
        "[[1]]",
        "[a]",
        "[1 / 2]",
        "__import__('os')",
        "1; 2",
        "a = 1",
        "1e999",
        "yield",
        "\0",
        "(" * 250 + "1" + ")" * 250,
        "-" * (MAX_DEPTH + 1) + "1",
        "-" * 990 + "1",
        "(" + "-" * 900 + "1).real",
        "[" + "-" * 900 + "x]",
        "1 + " * 100 + "1",
        "1" * (MAX_SOURCE + 1),
        "9" * 400,
    ],
    ids=lambda source: source[:20],
)
def test_refuses_what_is_not_listed(source: str) -> None:
    with pytest.raises(SpaceError, match=r"^here: "):
        parse_expression(source, where="here")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("a + 1", "unknown name a; known names: b"),
        ("7 / 2", "7/2 is not a whole number"),
        ("1 / 0", "divides by zero"),
        ("1 % 0", "divides by zero"),
        ("0.0 ** -1", "divides by zero"),
        ("9 ** 9 ** 9", "exponent must be a whole number"),
        ("2 ** 0.5", "exponent must be a whole number"),
        ("(2 ** 64) ** 64", "exceeds 1024 bits"),
        ("(2 ** 60) ** 10 * (2 ** 60) ** 10", "exceeds 1024 bits"),
        ("1e308 * 10", "too large"),
        ("10.0 ** 64 ** 1 ** 1 * 1e300", "too large"),
        ("log2(0)", "above 0"),
        ("'a' * 3", "needs numbers"),
        ("true + 1", "needs numbers"),
        ("1 < 'a'", "needs numbers"),
        ("1 == '1'", "compares a number with"),
        ("1 == true", "compares a number with"),
        ("1 and 2", "needs true or false"),
        ("not 1", "needs true or false"),
        ("1 if 1 else 2", "needs true or false"),
        ("1 in 2", "needs a list after `in`"),
        ("'a' in 'abc'", "needs a list after `in`"),
        ("len('abc')", "needs a list"),
        ("max(())", "empty"),
        ("(1, 2)", "must be one value, not a list"),
    ],
)
def test_reports_what_cannot_be_evaluated(source: str, message: str) -> None:
    with pytest.raises(SpaceError, match=r"^here: ") as caught:
        evaluate(source, b=1)
    assert message in str(caught.value)


def test_a_predicate_is_true_or_false() -> None:
    assert parse_expression("1 < 2", where="here").holds({})
    with pytest.raises(SpaceError, match="must be true or false, got 3"):
        parse_expression("1 + 2", where="here").holds({})


@pytest.mark.parametrize("source", ["9**9**9**9", "'a'*9**9", "2**64**2", "(((10**60)**16)**16)**16", "1e300**64"])
def test_never_hangs(source: str) -> None:
    start = time.process_time()
    with pytest.raises(SpaceError):
        evaluate(source)
    assert time.process_time() - start < 10  # without a limit, none of these ends


def test_odd_spellings_do_not_warn() -> None:
    assert evaluate(r"'\d' == '\d'") is True  # a DeprecationWarning of Python otherwise


@pytest.mark.parametrize("name", ["tp_degree", "_x", "match"])
def test_is_name(name: str) -> None:
    assert is_name(name)


@pytest.mark.parametrize("name", ["", "a.b", "1a", "max", "true", "True", "None", "in", "if", "a b", "grösse", "a-b"])
def test_is_no_name(name: str) -> None:
    assert not is_name(name)


numbers = st.integers(-50, 50)


@given(a=numbers, b=numbers, c=numbers.filter(bool))
def test_arithmetic_is_that_of_fractions(a: int, b: int, c: int) -> None:
    expected = (Fraction(a) * b - c) / c + Fraction(b, c)
    if expected.denominator == 1:
        assert evaluate("(a * b - c) / c + b / c", a=a, b=b, c=c) == expected
    else:
        with pytest.raises(SpaceError, match="not a whole number"):
            evaluate("(a * b - c) / c + b / c", a=a, b=b, c=c)
    assert evaluate("a // c * c + a % c == a", a=a, c=c) is True


@given(st.floats(min_value=1e-300, max_value=1e300))
def test_log2_is_that_of_floats(x: float) -> None:
    assert evaluate("log2(x)", x=x) == pytest.approx(math.log2(x))


@given(st.text(alphabet="ab12 +-*/%().,<>=![]'\"notandorifelsmxc\\\n", max_size=60))
def test_any_text_gives_a_value_or_a_space_error(source: str) -> None:
    try:
        value = evaluate(source, a=3, b=(1, 2))
    except SpaceError:
        return
    assert isinstance(value, bool | int | float | str)


class TestWithUnknownNames:
    """Equal unknowns turn out alike; what is certain is certain for every value of what is missing."""

    def partly(self, source: str, **known: object) -> object:
        expression = parse_expression(source, where="here")
        values = {name: known.get(name, Symbolic(name, whole=True)) for name in expression.names}
        return expression.evaluate_partly(values)

    def test_products_are_folded(self) -> None:
        assert self.partly("a * b * c == 8", a=2, b=4) == self.partly("a * b * c == 8", a=4, b=2)
        assert self.partly("a * (b * c) == 8", a=2, c=4) == self.partly("a * (b * c) == 8", a=4, c=2)
        assert self.partly("a * b * c == 8", a=2, b=2) != self.partly("a * b * c == 8", a=4, b=2)

    def test_floats_are_not_folded(self) -> None:
        assert self.partly("a * (b * c) == 8", a=2.0, b=4) != self.partly("a * (b * c) == 8", a=4.0, b=2)
        expression, real = parse_expression("a * (b * c) == 8", where="here"), Symbolic("c")
        one = expression.evaluate_partly({"a": 3, "b": 7, "c": real})
        assert one != expression.evaluate_partly({"a": 7, "b": 3, "c": real})

    def test_a_decided_operand_decides(self) -> None:
        assert self.partly("a > 1 or b > 1", a=2) is True
        assert self.partly("a > 1 and b > 1", a=0) is False
        assert self.partly("1 < a < b", a=0) is False
        assert self.partly("b if a > 1 else 3", a=0) == 3

    def test_an_operand_behind_an_unknown_does_not_decide(self) -> None:
        # the unknown operand may have no value at all, and then neither has the whole
        assert isinstance(self.partly("1 / a > 0 or b > 1", b=2), Symbolic)
        assert isinstance(self.partly("a > 0 and 1 / b > 1", b=0), Symbolic)

    def test_certain_errors_are_reported(self) -> None:
        with pytest.raises(SpaceError, match="divides by zero"):
            self.partly("a + 1 / b > 0", b=0)

    def test_membership_forgets_which_layer(self) -> None:
        expression = parse_expression("'x' in layers", where="here")
        one = Symbolic(("layers", 1), list_name="layers", entries=("y",))
        two = Symbolic(("layers", 2), list_name="layers", entries=("z",))
        found = Symbolic(("layers", 3), list_name="layers", entries=("z", "x"))
        assert expression.evaluate_partly({"layers": one}) == expression.evaluate_partly({"layers": two})
        assert expression.evaluate_partly({"layers": found}) is True
        equality = parse_expression("layers == layers", where="here")
        assert equality.evaluate_partly({"layers": one}) != equality.evaluate_partly({"layers": two})

    def test_what_is_left_of_a_list_is_its_best_entry(self) -> None:
        def layers(*entries: int) -> Symbolic:
            return Symbolic(("layers", entries), list_name="layers", entries=entries)

        def of(source: str, values: Symbolic) -> object:
            return parse_expression(source, where="here").evaluate_partly({"layers": values})

        assert of("max(layers)", layers(1, 3)) == of("max(layers)", layers(3, 2)) != of("max(layers)", layers(1, 2))
        assert of("min(layers)", layers(1, 3)) == of("min(layers)", layers(2, 1)) != of("min(layers)", layers(3, 2))
        assert of("max(layers)", layers()) != of("max(layers)", layers(1))
        assert of("len(layers)", layers(1, 3)) != of("len(layers)", layers(3, 2))
        with pytest.raises(SpaceError, match="needs numbers"):
            of("max(layers)", Symbolic("layers", list_name="layers", entries=("x",)))

    def test_membership_of_what_is_known(self) -> None:
        def of(source: str, *entries: str, **more: object) -> object:
            layers = Symbolic(("layers", entries), list_name="layers", entries=entries)
            return parse_expression(source, where="here").evaluate_partly({"layers": layers, **more})

        assert of("'x' in layers", "x") is True
        assert of("'x' not in layers", "x") is False
        assert of("'x' in layers", "y") == of("'x' in layers", "z") != of("'x' not in layers", "y")
        assert isinstance(of("a in layers", "x", a=Symbolic("a")), Symbolic)

    def test_chains_are_undecided_where_a_later_link_is(self) -> None:
        assert self.partly("1 < 2 < a") == self.partly("0 < 2 < a") != self.partly("1 < 3 < a")
        assert self.partly("a < b < 3", b=1) != self.partly("a < b < 3", b=2)
        assert self.partly("3 < 2 < a") is False
        one, other = self.partly("a < 2 < b", b=3), self.partly("a < 2 < b", b=1)
        assert isinstance(one, Symbolic)
        assert isinstance(other, Symbolic)

    def test_undecided_branches_differ_by_their_values(self) -> None:
        assert self.partly("b if a > 1 else 3", b=1) == self.partly("b if a > 1 else 3", b=1)
        assert self.partly("b if a > 1 else 3", b=1) != self.partly("b if a > 1 else 3", b=2)
        assert self.partly("a > 1 or b > 1", b=1) != self.partly("a > 1 and b > 1", b=1)
        assert self.partly("a > 1 or b > 1", b=1) != self.partly("a > 1 or b > 1", b=2)
        assert isinstance(self.partly("1 / b if a > 1 else 3", b=0), Symbolic)


@pytest.mark.parametrize(
    ("one", "more"),
    [("-{}", "1"), ("not {}", "true"), ("1 + ({})", "1"), ("abs({})", "1"), ("2if 1else({})", "1")],
)
def test_operations_nest_to_the_limit(one: str, more: str) -> None:
    deepest = more
    for _ in range(MAX_DEPTH):
        deepest = one.format(deepest)
    assert parse_expression(deepest, where="here").names == set()
    with pytest.raises(SpaceError, match=f"operations are nested more than {MAX_DEPTH} levels deep"):
        parse_expression(one.format(deepest), where="here")


def test_sources_have_a_limit() -> None:
    longest = "1" + " " * (MAX_SOURCE - 1)
    assert evaluate(longest) == 1
    with pytest.raises(SpaceError, match=f"{MAX_SOURCE + 1} characters exceed the limit of {MAX_SOURCE}"):
        evaluate(longest + " ")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("1 +", "here: '1 +': not an expression (invalid syntax); allowed: numbers"),
        ("(" * 250 + "1" + ")" * 250, "not an expression (too many nested parentheses); allowed: numbers"),
        ("a.b", "here: 'a.b': `a.b` at column 1 is not allowed; allowed: numbers"),
        ("1 + b'a'", "`b'a'` at column 5 is not allowed"),
        ("max", "`max` is a function; write its arguments in parentheses"),
        ("max()", "max takes one or more arguments"),
        ("len()", "len takes one argument"),
        ("abs(1, 2)", "abs takes one argument"),
        ("[1, a]", "a list may only hold numbers and strings, not `a`"),
        ("[1, 1 / 2]", "a list may only hold numbers and strings, not `1 / 2`"),
        ("[(1, 2)]", "a list may only hold numbers and strings, not `(1, 2)`"),
    ],
)
def test_messages_name_what_is_wrong(source: str, message: str) -> None:
    with pytest.raises(SpaceError) as caught:
        parse_expression(source, where="here")
    assert message in str(caught.value)


def test_unknown_names_list_the_known_ones() -> None:
    with pytest.raises(SpaceError, match="unknown name a; known names: none"):
        evaluate("a")
    with pytest.raises(SpaceError, match="unknown name a; known names: b, c"):
        evaluate("a", c=1, b=2)
    with pytest.raises(SpaceError, match="here: 'a': the result is unknown"):
        evaluate("a", a=Symbolic("a"))


def test_long_texts_are_cut_in_messages() -> None:
    with pytest.raises(SpaceError) as caught:
        parse_expression("1 +" + " " * 300, where="here")
    assert f"here: {'1 +' + ' ' * 197!r}: " in str(caught.value)
    wide = " + ".join("a" * 3 for _ in range(30)) + " + 'x'"
    with pytest.raises(SpaceError) as caught:
        evaluate(wide, aaa=1)
    assert f"`{wide:.60}` needs numbers, got 'x'" in str(caught.value)
    # 32 names and their sums are 126 nodes, 33 are 130
    for count, shown in ((32, "a + a + a + a + a + a + a + a + a + a"), (33, "...")):
        with pytest.raises(SpaceError) as caught:
            parse_expression(f"[{' + '.join(['a'] * count)}]", where="here")
        assert f"not `{shown}" in str(caught.value)
