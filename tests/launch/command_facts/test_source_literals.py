"""Values that a source states are read without running it."""

from __future__ import annotations

import ast

import pytest

from torchx_cubicml.launch.command_facts.source_literals import (
    call_keywords,
    class_fields,
    constants,
    literal,
    module_constants,
    parser_flags,
)


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
