from __future__ import annotations

import datetime
import json

import pytest
import tomlkit
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from torchx_cubicml.errors import LaunchError
from torchx_cubicml.launch.config_text import MISSING, alike, parse_document, value_at, with_values

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
