from __future__ import annotations

from torchx_cubicml.launch.messages import aligned, change_rows, first_few, gain_text, message_line, short
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
