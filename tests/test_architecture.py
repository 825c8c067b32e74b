from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_the_floors_of_the_page_are_those_of_the_linter() -> None:
    contract, *_ = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    page = (ROOT / "docs" / "architecture.md").read_text()
    floors = re.findall(r"^ {6}\d  (\S+(?: \| \S+)*)", page, re.MULTILINE)
    assert [set(floor.split(" | ")) for floor in floors] == [set(layer.split(" | ")) for layer in contract["layers"]]


def is_installed(path: Path) -> bool:
    return any(part.startswith(".venv") for part in path.relative_to(ROOT).parts)


def test_every_file_that_the_page_names_is_there() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    files = {path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.py") if not is_installed(path)}
    named = set(re.findall(r"[\w/]+\.py\b", page))
    assert {name for name in named if not any(f"/{file}".endswith(f"/{name}") for file in files)} == set()
