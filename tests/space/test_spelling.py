from __future__ import annotations

import pytest

from torchx_cubicml.errors import LaunchError
from torchx_cubicml.space.spelling import number, read_scalar, same_value, spell, spell_switch, switch_value


@pytest.mark.parametrize(
    ("text", "choices", "value"),
    [
        ("4", [1, 4], 4),
        ("4.0", [1, 4], 4),
        ("3", [1, 4], 3),
        ("1e-3", [0.001, 0.1], 0.001),
        ("4", ["4", "8"], "4"),
        ("auto", [1, "auto"], "auto"),
        ("True", [True, False], True),
        ("off", [True, False], False),
        ("1", [True, False], True),
        ("N", [True, False], False),
        ("bf16", [], "bf16"),
        ("0.5", [], 0.5),
        ("nan", [], "nan"),
    ],
)
def test_a_text_is_read_as_the_kind_of_the_choices(text: str, choices: list[int], value: object) -> None:
    read = read_scalar(text, choices, where="--x")
    assert (type(read), read) == (type(value), value)


@pytest.mark.parametrize(
    ("text", "choices"), [("auto", [1, 2]), ("inf", [1.0]), ("9" * 5000, [1]), ("2", [True, False])]
)
def test_a_text_of_another_kind_is_reported_with_its_place(text: str, choices: list[int]) -> None:
    with pytest.raises(LaunchError, match=r"^--x is '.*; (it must be a number|choose from)"):
        read_scalar(text, choices, where="--x")


@pytest.mark.parametrize("word", ["true", "False", "1", "no", "on", "TRUE", "F", "y", "oFf"])
def test_switch_words_keep_their_style(word: str) -> None:
    value = switch_value(word)
    assert value is not None
    assert spell_switch(value, like=word) == word


def test_numbers_are_finite() -> None:
    assert [number(text) for text in ("+4", "-1.5e3", "inf", "nan", "0x10", "1_000", "")] == [
        4,
        -1500.0,
        None,
        None,
        None,
        1000.0,
        None,
    ]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (1, 1.0, True),
        (1, True, False),
        (0, False, False),
        (True, True, True),
        ("1", 1, False),
        ((1, 2), (1, 2.0), True),
        ((1, 2), (1, 3), False),
        ((1,), (1, 2), False),
        ((1, 0), (1, False), False),
        ((1,), 1, False),
        (1, (1,), False),
    ],
)
def test_values_are_the_same_in_one_kind(one: object, other: object, same: bool) -> None:
    assert same_value(one, other) is same


@pytest.mark.parametrize("yes", ["true", "True", "1", "yes", "On", "TRUE", "t", "Y"])
def test_each_word_of_a_switch_has_its_opposite(yes: str) -> None:
    no = spell_switch(False, like=yes)
    assert (switch_value(yes), switch_value(no), switch_value("maybe")) == (True, False, None)
    assert (spell_switch(True, like=no), spell_switch(True, like=yes), spell_switch(False, like=no)) == (yes, yes, no)
    assert (spell_switch(True, like="maybe"), spell_switch(False, like="maybe")) == ("true", "false")


def test_values_are_spelled_for_a_command() -> None:
    assert [spell(value) for value in (False, 0.5, "a", (True, 1, "b"))] == ["false", "0.5", "a", "true,1,b"]


def test_a_whole_number_has_at_most_300_digits() -> None:
    assert number("-" + "9" * 300) == -(10**300 - 1)
    assert type(number("9" * 301)) is float
    assert number("9" * 400) is None
