from __future__ import annotations

from torchx_cubicml.launch.messages import (
    aligned,
    change_rows,
    first_few,
    gain_text,
    interval_text,
    message_line,
    rate_text,
    short,
    statistic_text,
)
from torchx_cubicml.space import Binding, BindingKind, Parameter, SearchSpace


def test_a_line_is_one_line_of_bounded_length_without_secrets() -> None:
    line = message_line("a\nb \x1b[31m token=hunter2 " + "x" * 1000)
    assert line.startswith("torchx-cubicml: a b ?[31m token=*** xxx")
    assert len(line) < 450
    assert line.endswith("...")


def test_changes_are_shown_with_old_new_and_place() -> None:
    place = Binding(kind=BindingKind.FLAG, name="--sharding")
    space = SearchSpace(
        parameters=(
            Parameter(name="same", choices=(1,), binding=place),
            Parameter(name="sharding", choices=("F", "N"), per_layer=3, binding=place),
            Parameter(name="hidden", choices=(1, 2)),
        )
    )
    before = {"same": 1, "sharding": ("F", "F", "F"), "hidden": 1}
    after = {"same": 1, "sharding": ("N", "F", "F"), "hidden": 2}
    assert change_rows(space, before, after) == [("sharding", "F x3 -> N, F x2  (--sharding)")]


def test_columns_are_aligned() -> None:
    assert aligned([("a", "1"), ("long", "2")]) == ["    a     1", "    long  2"]


def test_long_values_are_cut_and_newlines_gone() -> None:
    assert short("a\nb") == "a b"
    assert len(short(tuple(f"x{number}" for number in range(99)))) == 60


def test_a_gain_without_a_baseline_says_why() -> None:
    assert gain_text({"gain": None}) == "unknown: your own config ran out of memory"


def test_only_the_first_lines_of_many_are_shown() -> None:
    assert first_few(["a", "b"]) == ["a", "b"]
    assert first_few("abcde") == ["a", "b", "c", "and 2 more of this kind"]


def test_a_text_of_the_longest_length_is_not_cut() -> None:
    assert short("x" * 60) == "x" * 60
    assert short("x" * 61) == "x" * 57 + "..."
    assert message_line("x" * 400) == f"torchx-cubicml: {'x' * 400}"
    assert message_line("x" * 401) == f"torchx-cubicml: {'x' * 397}..."


def test_runs_of_equal_entries_are_counted() -> None:
    assert short(("a", "b", "b", "a")) == "a, b x2, a"
    assert short((1,)) == "1"


def test_a_new_value_without_an_old_one_is_shown_alone() -> None:
    place = Binding(kind=BindingKind.FLAG, name="--a")
    space = SearchSpace(parameters=(Parameter(name="a", choices=(1, 2), binding=place),))
    assert change_rows(space, {}, {"a": 2}) == [("a", "2  (--a)")]
    assert change_rows(space, {"a": 1}, {}) == []


def test_a_gain_is_shown_with_its_interval() -> None:
    assert gain_text({"gain": 0.9, "gain_low": 0.504, "gain_high": 1.0}) == "-10 % (80 % interval: -50 % to +0 %)"
    for name in ("gain", "gain_low", "gain_high"):
        known = {"gain": 1.0, "gain_low": 1.0, "gain_high": 1.0, name: None}
        assert gain_text(known) == "unknown: your own config ran out of memory"


def test_an_uncertainty_is_shown_in_three_ways() -> None:
    # The width is 1.645 times the uncertainty.
    shown = {0.0: "", 0.00303: "", 0.00305: "± 0.5 %", 0.0121: "± 2.0 %", 0.0122: "± 2 %"}
    shown |= {0.3: "± 49 %", 0.3039: "± 50 %", 0.304: "within a factor of 1.6"}
    assert {uncertainty: interval_text(uncertainty) for uncertainty in shown} == shown


def test_statistics_have_their_words() -> None:
    assert [statistic_text(name) for name in ("p50", "p10", "p90", "mean")] == [
        "at the median step",
        "at a slow step (nine in ten are faster)",
        "at a fast step (nine in ten are slower)",
        "",
    ]
    assert rate_text(1234.5, "tokens_per_second") == "1,234 tokens/s"
    assert rate_text(1234.56, "samples_per_second") == "1,235 samples/s"


def test_as_many_lines_as_the_limit_are_shown() -> None:
    assert first_few("abc") == ["a", "b", "c"]
    assert first_few("abcd", most=1) == ["a", "and 3 more of this kind"]
    assert aligned([]) == []
