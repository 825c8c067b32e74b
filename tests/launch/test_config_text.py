from __future__ import annotations

import datetime
import json

import pytest
import tomlkit
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from torchx_cubicml.errors import LaunchError
from torchx_cubicml.launch.config_text import (
    MAX_NODES,
    MISSING,
    alike,
    is_document,
    parse_document,
    value_at,
    with_values,
)

NAMES = st.sampled_from(["a", "b", "stage", "no", "1", "a b", "é", "a.b"])
TEXTS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=8)
PLAIN = st.booleans() | st.integers(-(2**40), 2**40) | st.floats(allow_nan=False, allow_infinity=False) | TEXTS
DOCUMENTS = st.recursive(
    st.dictionaries(NAMES, PLAIN | st.lists(st.integers(), max_size=3), max_size=4),
    lambda inner: st.dictionaries(NAMES, PLAIN | inner, max_size=4),
    max_leaves=12,
)


def rendered(document: dict[str, object], path: str) -> str:
    if path.endswith("toml"):
        return tomlkit.dumps(document)
    return json.dumps(document) if path.endswith("json") else yaml.safe_dump(document, allow_unicode=True)


@pytest.mark.parametrize("path", ["c.json", "c.yaml", "c.toml"])
@settings(max_examples=60)
@given(document=DOCUMENTS, key=st.lists(NAMES, min_size=1, max_size=3).map(tuple), value=PLAIN)
def test_one_value_is_set_and_all_others_stay(
    path: str, document: dict[str, object], key: tuple[str, ...], value: object
) -> None:
    text = rendered(document, path)
    try:
        changed = with_values(text, {key: value}, path=path)
    except LaunchError:
        below = [value_at(document, key[:depth]) for depth in range(1, len(key))]
        assert any(not isinstance(inner, dict) for inner in below if inner is not MISSING) or not document
        return
    after = parse_document(changed, path=path)
    assert alike(value_at(after, key), value)
    back = with_values(changed, {key: value}, path=path)
    assert alike(parse_document(back, path=path), after)


@pytest.mark.parametrize(
    ("path", "text", "after"),
    [
        (
            "a.yaml",
            "# of ours\nfsdp_config: # here\n  strategy: FULL_SHARD # why\n  on: 1e-5\nlast: yes\n",
            "# of ours\nfsdp_config: # here\n  strategy: NO_SHARD # why\n  on: 1e-5\nlast: yes\n",
        ),
        (
            "a.toml",
            "# of ours\n[fsdp_config]\nstrategy = 'FULL_SHARD' # why\nat = 1979-05-27\n",
            '# of ours\n[fsdp_config]\nstrategy = "NO_SHARD" # why\nat = 1979-05-27\n',
        ),
    ],
    ids=["yaml", "toml"],
)
def test_other_bytes_stay(path: str, text: str, after: str) -> None:
    changed = with_values(text, {("fsdp_config", "strategy"): "NO_SHARD"}, path=path)
    assert changed.replace('"NO_SHARD" #', "NO_SHARD #") == after.replace('"NO_SHARD" #', "NO_SHARD #")


@pytest.mark.parametrize(
    ("path", "text", "message"),
    [
        ("c.yaml", "a: &x {b: 1}\nc: *x\n", "an anchor or an alias"),
        ("c.yaml", "---\na: 1\n---\na: 2\n", "single document"),
        ("c.yaml", "a: !!python/name:os.system x\n", "could not determine a constructor"),
        ("c.yaml", "a: &a [*a]\n", "refers to itself"),
        ("c.yaml", "a: &a [1,1,1,1,1,1,1,1,1,1]\n" * 1 + "b: 2\n", ""),
        ("c.yaml", "[1, 2]", "its top level must be a table of keys"),
        ("c.json", "{", "cannot be read"),
        ("c.json", '{"a": 1}', "must be a table to set"),
        ("c.toml", "a = ", "cannot be read"),
        ("c.ini", "a = 1", "unsupported format; choose from"),
    ],
)
def test_an_unsettable_key_is_reported(path: str, text: str, message: str) -> None:
    if not message:
        assert parse_document(with_values(text, {("b",): 3}, path=path), path=path)["b"] == 3
        return
    with pytest.raises(LaunchError, match=message):
        with_values(text, {("a", "b"): 3}, path=path)


def test_aliases_of_aliases_do_not_fill_the_memory() -> None:
    lines = ["x0: &x0 [1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"x{n}: &x{n} [{', '.join([f'*x{n - 1}'] * 9)}]" for n in range(1, 12)]
    with pytest.raises(LaunchError, match="more than 100000 values"):
        parse_document("\n".join(lines), path="bomb.yaml")


def test_dates_survive() -> None:
    text = with_values("day: 2020-01-02\na: 1\n", {("a",): 2}, path="c.yaml")
    assert parse_document(text, path="c.yaml") == {"day": datetime.date(2020, 1, 2), "a": 2}


DAMAGED = {
    "x.yaml": "# c\na: &x {b: 1, c: [1, 2]}\nd:\n  e: yes\n  f: |\n    text\n  g: 'q''s'\n? k\n: v\n"
    "j: *x\nl:\n- a\nm: {}\n",
    "x.toml": "# c\nx = 1\n[a]\nb = 2 # z\nc = {d = 1}\n[[t]]\nq = 1\n[a.n]\nd.e = 1\n'o p' = 3\ns = '''\nm\n'''\n",
    "x.json": '{"a": {"b": 1, "c": [1, 2.5e8]}, "d": {"e": true, "f": null}, "k": "v", "n": 1e-5}',
}
PIECES = [
    "\n",
    "  ",
    "- ",
    ": ",
    "{",
    "}",
    "[",
    "]",
    ",",
    "&x ",
    "*x",
    "|",
    "'",
    '"',
    "#",
    "\t",
    "\0",
    "é",
    "!!",
    "---\n",
]
PIECES += ["? ", "<<: ", "=", "\r\n", "\ufeff", "%", "1", "a", "9" * 400, ""]
PLACES = [
    ("a",),
    ("a", "b"),
    ("d", "e"),
    ("d", "f"),
    ("l",),
    ("m", "z"),
    ("o p",),
    ("t", "q"),
    ("new", "er", "k"),
    ("s",),
]
SET = [1, 2.5, 1e-7, True, "a: b # c", "é\n\"'", (1, 2), "", "no", "1e5", "~"]


@settings(max_examples=150)
@given(
    path=st.sampled_from(sorted(DAMAGED)),
    damage=st.lists(st.tuples(st.floats(0, 1), st.sampled_from(PIECES), st.integers(0, 3)), max_size=3),
    key=st.sampled_from(PLACES),
    value=st.sampled_from(SET),
)
def test_a_damaged_file_is_set_or_reported_in_one_line(
    path: str, damage: list[tuple[float, str, int]], key: tuple[str, ...], value: object
) -> None:
    text = DAMAGED[path]
    for where, piece, dropped in damage:
        at = int(where * len(text))
        text = text[:at] + piece + text[at + dropped :]
    try:
        changed = with_values(text, {key: value}, path=path)
    except LaunchError as error:
        message = str(error)
    else:
        wanted = list(value) if isinstance(value, tuple) else value
        assert alike(value_at(parse_document(changed, path=path), key), wanted)
        message = ""
    assert "\n" not in message


@pytest.mark.parametrize(
    ("text", "key", "value", "after"),
    [
        ("a:   1 # x\nb: 2\n", "a", 3, "a:   3 # x\nb: 2\n"),
        ("a: 1\nb: 2\na: 3\n", "a", 4, "a: 1\nb: 2\na: 4\n"),
        ("a:\nb: 2\n", "a", 3, "a: 3\nb: 2\n"),
        ("a: # x\nb: 2\n", "a", 3, "a: 3 # x\nb: 2\n"),
        ("a:", "a", 3, "a: 3"),
        ("? a\n: 1\nb: 2\n", "a", 3, "? a\n: 3\nb: 2\n"),
        ("'x:y': 1\nb: 2\n", "x:y", 3, "'x:y': 3\nb: 2\n"),
        ("'x:y':\nb: 2\n", "x:y", 3, "'x:y': 3\nb: 2\n"),
        ("a:\n  - 1\n  - 2\n\nb: 2\n", "a", [3], "a: [3]\n\nb: 2\n"),
        ("a:\n  c: 1\nb: 2\n", "a", 3, "a: 3\nb: 2\n"),
        ("a: |\n  x\n  y\nb: 2\n", "a", "z", 'a: "z"\nb: 2\n'),
        ("a: 'x\n  y'\nb: 2\n", "a", 3, "a: 3\nb: 2\n"),
        ("{a: 1, b: 2}", "a", 3, "{a: 3, b: 2}"),
        ("{a: 1}", "b", 3, "{b: 3, a: 1}"),
        ("a: {}\n", "a.b", 3, "a: {b: 3}\n"),
        ("a: {c: 1}\n", "a.b", 3, "a: {b: 3, c: 1}\n"),
        ("# x\na: 1\n", "b", 3, "# x\nb: 3\na: 1\n"),
        ("a:\n    c: 1\n", "a.b", 3, "a:\n    b: 3\n    c: 1\n"),
        ("a:\n  c: 1\n", "a.b.d.e", 3, "a:\n  b: {d: {e: 3}}\n  c: 1\n"),
        ("a: 1\n", "x.z", 3, "x: {z: 3}\na: 1\n"),
        ("a: {b: {c: 1, d: 2}}\n", "a.b.d", 3, "a: {b: {c: 1, d: 3}}\n"),
        ("x: [&x 1]\na: 1\ny: *x\n", "a", 3, "x: [&x 1]\na: 3\ny: *x\n"),
    ],
)
def test_one_place_of_a_yaml_text_is_edited(text: str, key: str, value: object, after: str) -> None:
    assert with_values(text, {tuple(key.split(".")): value}, path="c.yaml") == after


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1e-7, "1.0e-07"),
        (2.5e-7, "2.5e-07"),
        (1e22, "1.0e+22"),
        (1.5, "1.5"),
        (3.0, "3.0"),
        (-2e30, "-2.0e+30"),
        ((1e-7, "a", True), '[1.0e-07, "a", true]'),
        ('a "b" \\', '"a \\"b\\" \\\\"'),
        ("é\n", '"\\u00e9\\n"'),
        ("\uffff\U00010000", '"\\uffff\\U00010000"'),
        ("", '""'),
        (False, "false"),
        (7, "7"),
    ],
)
def test_a_value_is_written_for_any_yaml_reader(value: object, text: str) -> None:
    assert with_values("a: 1", {("a",): value}, path="c.yaml") == f"a: {text}"


@pytest.mark.parametrize(
    "name", ["y", "n", "yes", "no", "on", "off", "true", "false", "null", "No", "TRUE", "1", "a b", "a-b", ""]
)
def test_a_name_that_yaml_takes_for_a_value_is_quoted(name: str) -> None:
    assert with_values("a: 1", {(name,): 2}, path="c.yml") == f'"{name}": 2\na: 1'


@pytest.mark.parametrize("name", ["yess", "a_b", "é", "Null_"])
def test_a_plain_name_is_not_quoted(name: str) -> None:
    assert with_values("a: 1", {("b", name): 2}, path="c.YML") == f"b: {{{name}: 2}}\na: 1"


@pytest.mark.parametrize(
    ("text", "key", "reason"),
    [
        ("a: &x 1\nb: *x\n", "a", r"^c.yaml: a cannot be set: its value is an anchor or an alias, which several"),
        ("a: &x {c: 1}\nb: *x\n", "b.c", r"^c.yaml: b.c cannot be set: b is an anchor or an alias, which several"),
        ("a: {b: &x {c: 1}}\nd: *x\n", "a.b.c", "a.b is an anchor or an alias"),
        ("a: 1", "a.b", "^c.yaml: a must be a table to set a.b, but it is a value$"),
        ("a: {b: 1}", "a.b.c", "^c.yaml: b must be a table to set b.c, but it is a value$"),
        ("", "a", "cannot be set: its top level must be a table of keys$"),
    ],
)
def test_a_place_that_cannot_be_edited_is_named(text: str, key: str, reason: str) -> None:
    with pytest.raises(LaunchError, match=reason):
        with_values(text, {tuple(key.split(".")): 3}, path="c.yaml")


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ({"a": 1}, {"a": 1, "b": 2}, False),
        ({"a": 1, "b": 2}, {"a": 1}, False),
        ({1: "a"}, {True: "a"}, False),
        ({"a": [1]}, {"a": [1.0]}, False),
        ({"a": {"b": 1}}, {"a": {"b": 1}}, True),
        ([1, 2], [1], False),
        ([1], [1, 2], False),
        ([1, 2], [1, 3], False),
        (float("nan"), float("nan"), True),
        (float("nan"), 1.0, False),
        (1.0, float("nan"), False),
        (1.0, 2.0, False),
        ("a", "a", True),
        ("a", "b", False),
        (1, True, False),
        (None, None, True),
    ],
)
def test_two_values_are_alike_in_kind_and_content(one: object, other: object, same: bool) -> None:
    assert alike(one, other) is same


@pytest.mark.parametrize(
    ("path", "is_one"),
    [("a.json", True), ("a.YAML", True), ("d.x/a.yml", True), ("a.toml", True), ("a.ini", False), ("json", False)],
)
def test_the_suffix_names_the_format(path: str, is_one: bool) -> None:
    assert is_document(path) is is_one


def test_the_values_of_a_yaml_text_are_counted() -> None:
    def listed(more: int) -> str:
        """Return 1 + 1 + 1 values for table, key and list, 999 times a list of 99 and itself, and some more."""
        return f"a: [&x [{', '.join('1' * 99)}]{', *x' * 998}{', 1' * more}]"

    more = MAX_NODES - 3 - 999 * 100
    assert len(parse_document(listed(more), path="c.yaml")["a"]) == 999 + more
    with pytest.raises(LaunchError, match="more than 100000 values"):
        parse_document(listed(more + 1), path="c.yaml")


def test_a_deep_text_is_refused_in_words() -> None:
    with pytest.raises(LaunchError, match=r"^c\.json cannot be read: (too deeply nested|maximum recursion)"):
        parse_document("[" * 100_000, path="c.json")


def test_an_empty_yaml_text_has_no_keys() -> None:
    assert parse_document("", path="c.yaml") == parse_document("# x\n", path="c.yml") == {}


def test_a_missing_key_is_not_a_value() -> None:
    document = {"a": {"b": None}, "c": "xy"}
    assert value_at(document, ("a", "b")) is None
    assert value_at(document, ("a", "x")) is MISSING
    assert value_at(document, ("c", "x")) is MISSING


def test_several_values_are_set_in_turn() -> None:
    changes = {("a", "b"): 2, ("a", "c"): (1, 2)}
    assert json.loads(with_values('{"a": {"b": 1}, "d": [1]}', changes, path="c.json")) == {
        "a": {"b": 2, "c": [1, 2]},
        "d": [1],
    }
    assert with_values("[a]\nb = 1 # x\n", changes, path="c.toml") == "[a]\nb = 2 # x\nc = [1, 2]\n"
