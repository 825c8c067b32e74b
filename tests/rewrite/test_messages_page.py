"""The page of messages lists every reason why a launch keeps its arguments or is not recorded."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import torchx_cubicml
from torchx_cubicml.launch.messages import KEPT, NOT_RECORDED

PACKAGE = Path(torchx_cubicml.__file__).resolve().parent
PAGE = PACKAGE.parent / "docs" / "messages.md"
RAISING = [
    PACKAGE / "cubicrun.py",
    PACKAGE / "user_files.py",
    *(path for name in ("launch", "rewrite") for path in (PACKAGE / name).rglob("*.py")),
]
RETURNING = [PACKAGE / "rewrite" / f"{name}.py" for name in ("rules", "choice", "unsure_gain")]


def template(node: ast.AST) -> str:
    """Return a text with ``…`` for each placeholder; empty for any other expression."""
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def raised(tree: ast.AST) -> set[str]:
    """Return the templates of the tree's launch errors."""
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call) and node.args)
    return {template(call.args[0]) for call in calls if getattr(call.func, "id", "") == "LaunchError"}


def returned(tree: ast.AST) -> set[str]:
    """Return the texts that the tree's functions return, alone or in a tuple, or bind to a reason first."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Return | ast.Assign) and node.value is not None:
            values = [node.value, *getattr(node.value, "elts", ()), getattr(node.value, "body", None)]
            texts = {template(value) for value in values if isinstance(value, ast.expr)}
            found |= {text for text in texts if isinstance(node, ast.Return) or " config" in text}
    return found


def templates() -> list[str]:
    trees = {path: ast.parse(path.read_text()) for path in {*RAISING, *RETURNING}}
    found = {text for path in RAISING for text in raised(trees[path])}
    found |= {text for path in RETURNING for text in returned(trees[path])}
    return sorted(text for text in found if re.search(r"\w\w+", text) and text != "… (… known)")


def test_templates_are_found() -> None:
    found = templates()
    assert len(found) > 60
    assert "the shell line has a comment" in found
    assert "the best predicted gain, …, is within the noise" in found
    assert "no recorded launch suggests a … config that this launch may run" in found
    assert "…, not surely …: …" in found
    assert "this launch explores (explore = …): …" in found


@pytest.mark.parametrize("text", templates())
def test_each_reason_is_on_the_page(text: str) -> None:
    assert f"`{text}`" in PAGE.read_text()


def test_the_page_names_both_outcomes() -> None:
    page = PAGE.read_text()
    assert f"`{KEPT}: …`" in page
    assert f"`{NOT_RECORDED}: …`" in page
