from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

import pytest

from torchx_cubicml.errors import RecordError
from torchx_cubicml.records.json_fields import items_of, number_of, object_of, text_of, texts_of, whole_number_of

if TYPE_CHECKING:
    from collections.abc import Callable

LEGAL = [
    (text_of, "", {}),
    (text_of, "x" * 9999, {}),
    (text_of, "four", {"most": 4}),
    (whole_number_of, 0, {}),
    (whole_number_of, 10**30, {}),
    (whole_number_of, 7, {"most": 7}),
    (number_of, 0, {}),
    (number_of, 0.5, {}),
    (number_of, 1.7e308, {}),
    (items_of, [], {}),
    (items_of, [1, None], {"most": 2}),
    (items_of, [1] * 9999, {}),
    (object_of, {}, {}),
    (object_of, {"a": 1}, {}),
]
REFUSED = [
    (text_of, 5, {}, "must be a string, got 5"),
    (text_of, None, {"most": 4}, "must be a string of at most 4 characters, got None"),
    (text_of, "fives", {"most": 4}, "must be a string of at most 4 characters, got 'fives'"),
    (text_of, "a", {"most": 0}, "must be a string of at most 0 characters, got 'a'"),
    (whole_number_of, -1, {}, "must be a whole number >= 0, got -1"),
    (whole_number_of, 8, {"most": 7}, "must be a whole number >= 0, got 8"),
    (whole_number_of, 1.0, {}, "must be a whole number >= 0, got 1.0"),
    (whole_number_of, True, {}, "must be a whole number >= 0, got True"),
    (whole_number_of, "1", {}, "must be a whole number >= 0, got '1'"),
    (number_of, -0.5, {}, "must be a number >= 0, got -0.5"),
    (number_of, True, {}, "must be a number >= 0, got True"),
    (number_of, math.inf, {}, "must be a number >= 0, got inf"),
    (number_of, math.nan, {}, "must be a number >= 0, got nan"),
    (number_of, "1", {}, "must be a number >= 0, got '1'"),
    (items_of, {}, {}, "must be a list, got {}"),
    (items_of, (1,), {}, "must be a list, got (1,)"),
    (items_of, [1, 2, 3], {"most": 2}, "must be a list of at most 2 items, got [1, 2, 3]"),
    (items_of, [1], {"most": 0}, "must be a list of at most 0 items, got [1]"),
    (texts_of, ["a", 5], {}, "must be a string, got 5"),
    (texts_of, "ab", {}, "must be a list, got 'ab'"),
    (texts_of, ["a", "b"], {"most": 1}, "must be a list of at most 1 items, got ['a', 'b']"),
    (texts_of, ["a", "abc"], {"most_characters": 2}, "must be a string of at most 2 characters, got 'abc'"),
    (object_of, [], {}, "must be a JSON object, got []"),
    (object_of, None, {}, "must be a JSON object, got None"),
]


def name_of(value: object) -> str:
    return getattr(value, "__name__", repr(value)[:16])


@pytest.mark.parametrize(("decoder", "value", "limits"), LEGAL, ids=name_of)
def test_a_legal_value_is_returned(decoder: Callable[..., object], value: object, limits: dict[str, int]) -> None:
    assert decoder(value, "x", **limits) is value


@pytest.mark.parametrize(("decoder", "value", "limits", "rule"), REFUSED, ids=name_of)
def test_a_refusal_names_the_field_and_the_rule(
    decoder: Callable[..., object], value: object, limits: dict[str, int], rule: str
) -> None:
    with pytest.raises(RecordError, match=f"^field {re.escape(rule)}$"):
        decoder(value, "field", **limits)


def test_texts_become_a_tuple() -> None:
    assert texts_of(["a", "", "bc"], "x", most=3, most_characters=2) == ("a", "", "bc")
    assert texts_of([], "x") == ()


def test_a_long_value_is_cut_in_the_message() -> None:
    with pytest.raises(RecordError) as raised:
        text_of(["x" * 100], "field")
    assert str(raised.value) == "field must be a string, got ['" + "x" * 58
