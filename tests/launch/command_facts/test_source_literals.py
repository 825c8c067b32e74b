"""Values that a source states are read without running it."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

import pytest

from torchx_cubicml.launch import Launch
from torchx_cubicml.launch.command_facts.source_literals import (
    call_keywords,
    class_fields,
    constants,
    declared_flags,
    literal,
    module_constants,
    parser_flags,
)

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5 * 8", 40),
        ("-3", -3),
        ("2 ** 10", 1024),
        ("7 // 2", 3),
        ("(1, 2)", (1, 2)),
        ("'bf16'", "bf16"),
        ("field(default=3)", 3),
        ("width * 2", 128),
        ("2 ** 10 ** 9", None),
        ("1 / 0", None),
        ("1 // 0", None),
        ("read()", None),
        ("None", None),
        ("[1, read()]", None),
        ("other", None),
    ],
)
def test_literals(text: str, value: object) -> None:
    assert literal(ast.parse(text, mode="eval").body, {"width": 64}) == value


def test_the_last_assignment_counts() -> None:
    tree = ast.parse("a = 1\na = 2\nb, c = 3, a\nd: int = 4\ne = f = a * b\nb = read()\n")
    assert constants(tree.body) == {"a": 2, "c": 2, "d": 4, "e": 6, "f": 6}


def test_flags_of_parsers() -> None:
    tree = ast.parse(
        "WIDTH = 8\nadd = parser.add_argument\n"
        "add('-n', '--n-layer', default=2)\nadd('--width', default=WIDTH)\nadd('--fast', action='store_true')\n"
        "add('--slow', action='store_false')\nadd('--name')\nadd('--steps', type=count, default=3)\n"
        "add('--twice', default=1)\nother.add_argument('--twice', default=2)\nadd('--text', type=int, default='4')\n"
    )
    flags = parser_flags(tree)
    expected = {"n_layer": 2, "width": 8, "fast": False, "slow": True, "name": None, "steps": 3, "twice": None}
    assert {name: flags[name].default for name in expected} == expected
    assert (flags["name"].has_no_default, flags["twice"].has_no_default) == (True, False)
    assert (flags["steps"].has_own_type, flags["text"].has_own_type) == (True, False)


def test_what_follows_a_flag() -> None:
    tree = ast.parse(
        "add = parser.add_argument\n"
        "add('--word')\nadd('--words', nargs='+', action='extend')\nadd('--both', type=int)\n"
        "other.add_argument('--both', action='store_true')\nadd('--plain', action='store_true')\n"
        "add('--pair', action=argparse.BooleanOptionalAction)\nadd('-v', '--verbose', action='count')\n"
        "add('--own', action=Own)\nadd('--packed', **more)\n"
    )
    flags = parser_flags(tree)
    expected = {"word": True, "words": True, "both": None, "plain": False, "pair": False, "verbose": False}
    assert {name: flags[name].takes_value for name in flags} == {**expected, "own": None, "packed": None}


def test_types_and_choices_of_flags() -> None:
    tree = ast.parse(
        "ALL = ('a', 'b')\nadd = parser.add_argument\nadd('-d', '--Depth-First', type=int, default=False)\n"
        "add('--mode', choices=ALL)\nadd('--level', type=float, choices=[1, 2])\nadd('--free', choices=names())\n"
    )
    flags = parser_flags(tree)
    assert (flags["depth_first"].name, repr(flags["depth_first"].default)) == ("--Depth-First", "0")
    assert [flags[name].choices for name in ("mode", "level", "free")] == [("a", "b"), (1, 2), ()]


def test_flags_of_a_program_are_those_nearest_to_its_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.py").write_text("import options\np.add_argument('--near', default=1)\n")
    (tmp_path / "options.py").write_text("p.add_argument('--near', default=2)\np.add_argument('--far', default=3)\n")
    found = declared_flags(Launch(program="run.py"))
    assert {name: flag.default for name, flag in found.items()} == {"near": 1, "far": 3}


def test_fields_and_keywords() -> None:
    tree = ast.parse(
        "DEPTH = 4\nclass Sizes:\n    width: int = 16\n    depth = 2\n"
        "def main():\n    words = 9\n    make(width=words, depth=DEPTH, other=read())\n"
    )
    assert class_fields(tree) == {"Sizes": {"width": 16, "depth": 2}}
    assert ("make", {"width": 9, "depth": 4}) in list(call_keywords(tree))


def test_files_that_are_no_python_state_nothing(tmp_path) -> None:
    (tmp_path / "broken.py").write_text("a = (")
    assert module_constants(tmp_path / "broken.py") == {}
    assert module_constants(tmp_path / "missing.py") == {}
