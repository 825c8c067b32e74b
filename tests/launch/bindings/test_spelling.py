from __future__ import annotations

import pytest

from torchx_cubicml.errors import LaunchError
from torchx_cubicml.launch.bindings.spelling import number, read_scalar, spell_switch, switch_value


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
def test_what_is_no_such_kind_is_reported_with_its_place(text: str, choices: list[int]) -> None:
    with pytest.raises(LaunchError, match=r"^--x is '.*; (it must be a number|choose from)"):
        read_scalar(text, choices, where="--x")


@pytest.mark.parametrize("word", ["true", "False", "1", "no", "ON".lower(), "TRUE"])
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
