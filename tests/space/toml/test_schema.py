from __future__ import annotations

import pytest

from torchx_cubicml.errors import SpaceError
from torchx_cubicml.records.values import MAX_ITEMS, MAX_TEXT
from torchx_cubicml.space.toml.schema import TomlTable, choose_from, closest


def table(**content: object) -> TomlTable:
    return TomlTable(content, where="x.toml", name="outer.inner", legal=None)


def refuses(method: str, value: object, message: str, **more: object) -> None:
    with pytest.raises(SpaceError) as caught:
        getattr(table(key=value), method)("key", **more)
    assert str(caught.value).startswith(f"x.toml: outer.inner.key: {message}")


def test_a_table_knows_its_place() -> None:
    inner = table(a=1, b=2)
    assert (inner.name, inner.place, list(inner), len(inner)) == ("inner", "x.toml: outer.inner", ["a", "b"], 2)
    assert "a" in inner
    assert "c" not in inner
    whole = TomlTable({}, where="x.toml", legal=())
    assert (whole.name, whole.place) == ("", "x.toml")
    assert str(whole.error("a", "must be 1")) == "x.toml: a: must be 1"
    assert str(inner.error("a", "must be 2")) == "x.toml: outer.inner.a: must be 2, got 1"
    assert str(inner.error("a\n", "must be 2")) == "x.toml: outer.inner.'a\\n': must be 2"


def test_inner_tables() -> None:
    outer = TomlTable({"t": {"a": 1}, "many": [{"a": 2}, {}]}, where="x.toml", legal=("t", "many", "other"))
    assert outer.table("t", legal=("a",)).raw("a") == 1
    assert outer.table("t", legal=None).place == "x.toml: t"
    assert len(outer.table("other", legal=())) == 0
    assert [(each.place, each.raw("a")) for each in outer.tables("many", legal=("a",))] == [
        ("x.toml: many[0]", 2),
        ("x.toml: many[1]", None),
    ]
    assert outer.tables("other", legal=()) == []
    with pytest.raises(SpaceError, match=r"x.toml: t: must be an array of tables, \[\[t\]\], got"):
        outer.tables("t", legal=())
    with pytest.raises(SpaceError, match=r"x.toml: many: must be a table, got"):
        outer.table("many", legal=None)
    with pytest.raises(SpaceError, match=r"x.toml: t: unknown key 'a'; did you mean 'aa'\? \(choose from aa\)"):
        outer.table("t", legal=("aa",))


def test_texts() -> None:
    longest = "x" * MAX_TEXT
    assert table(key=longest).text("key") == longest
    assert table().text("key") is None
    for value in (longest + "x", "a\0b", 1, True, ["a"]):
        refuses("text", value, f"must be a string of at most {MAX_TEXT} characters")


def test_counts() -> None:
    assert [table(key=value).count("key") for value in (1, MAX_ITEMS)] == [1, MAX_ITEMS]
    assert table().count("key") is None
    for value in (0, -1, MAX_ITEMS + 1, True, 1.0, "1"):
        refuses("count", value, f"must be a whole number from 1 to {MAX_ITEMS}")


def test_switches() -> None:
    assert table(key=True).switch("key") is True
    assert table(key=False).switch("key") is table().switch("key") is False
    for value in (1, "true"):
        refuses("switch", value, "must be true or false")


def test_numbers() -> None:
    assert [table(key=value).number("key") for value in (0, -1.5, 2**63 - 1)] == [0, -1.5, 2**63 - 1]
    assert table().number("key") is None
    for value in (True, "1"):
        refuses("number", value, "must be a number, got")


def test_values_are_bounded() -> None:
    for value in (True, "x" * MAX_TEXT, 2**63 - 1, 1 - 2**63, 0.5):
        assert table(key=value).value("key") == value
        assert table(key=[value]).values("key", most=1) == (value,)
    for value in ("x" * (MAX_TEXT + 1), "\0", 2**63, -(2**63), float("inf"), float("nan"), {}):
        refuses("value", value, "values must be true, false, finite numbers within 64 bits or strings of at most")
    assert table().value("key") is None


def test_lists_are_bounded() -> None:
    assert table(key=[1, "a"]).value("key") == (1, "a")
    assert len(table(key=[1] * MAX_ITEMS).value("key") or ()) == MAX_ITEMS
    refuses("value", [1] * (MAX_ITEMS + 1), f"must be a list of 1 to {MAX_ITEMS} values")
    for value in ([], [1, 2, 3], 1, "ab"):
        refuses("values", value, "must be a list of 1 to 2 values", most=2)


def test_unknown_names_are_answered() -> None:
    assert str(table().unknown("key", "flag", "ab", ["abc", "x"], owner="t")) == (
        "x.toml: outer.inner.key: unknown flag 'ab' for t; did you mean 'abc'? (choose from abc, x)"
    )
    assert str(table().unknown("key", "flag", "qqq", ["abc", "x"])) == (
        "x.toml: outer.inner.key: unknown flag 'qqq'; choose from abc, x"
    )
    assert choose_from(["b"], "zzz") == "choose from b"
    assert closest("zzz", ["b"]) == ""
    assert closest("a" * 80, ["a" * 79 + "b", "a" * 81]) == f"; did you mean {'a' * 79 + 'b'!r}?"
    assert closest("a" * 300, ["a" * 80]) == f"; did you mean {'a' * 80!r}?"
