from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "benchmarks" / "README.md"])
TABLE = ("|", "│", "┃", "<tr", "<td")
MARKUP = ("```", "<!--")
MOST_LINES, WIDEST = 120, 100


def prose(page: Path) -> list[str]:
    """Return the lines of a page without drawings, rows of tables, fences and comments."""
    text = re.sub(r"^```mermaid\n.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    return [line for line in text.splitlines() if not line.startswith((*TABLE, *MARKUP))]


def test_the_readme_and_the_architecture_page_are_short() -> None:
    assert len(prose(ROOT / "README.md")) <= MOST_LINES
    assert len(prose(ROOT / "docs" / "architecture.md")) <= MOST_LINES


def test_the_readme_shows_what_the_commands_print() -> None:
    text = (ROOT / "README.md").read_text()
    blocks = re.findall(r"<!-- output: (\w+) -->\n```text\n(.*?)```\n<!-- end -->", text, re.DOTALL)
    assert {name for name, _ in blocks} == {"launch", "tune"}
    assert all(len(lines.splitlines()) > 3 for _, lines in blocks)


def test_the_lines_of_the_pages_are_short() -> None:
    long = [f"{page.name}: {line}" for page in PAGES for line in prose(page) if len(line) > WIDEST]
    assert long == []


def test_every_table_of_the_pages_has_its_heading() -> None:
    """A blank line within a table ends it, and the rows below are shown as text."""
    for page in PAGES:
        lines = ["", *page.read_text().splitlines(), ""]
        begins = [number for number, line in enumerate(lines) if line.startswith("|") and lines[number - 1][:1] != "|"]
        bare = [lines[number] for number in begins if not re.fullmatch(r"[|:\s-]+", lines[number + 1])]
        assert bare == [], page.name
