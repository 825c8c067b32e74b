"""Pages of the documentation as one site: its table of contents, its links and the blocks made from the code."""

from __future__ import annotations

import ast
import doctest
import os
import re
import sys
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

from torchx_cubicml.cli import COMMANDS
from torchx_cubicml.cli.evaluate import SPLITS
from torchx_cubicml.facts.hook_registry import hook_fact, hook_names, illegal_hook_fact
from torchx_cubicml.records.job_time import JOB_UNITS
from torchx_cubicml.space import BindingKind
from torchx_cubicml.space.toml.key_meanings import FACT_BINDINGS, JOB, PARAMETER, TABLES
from torchx_cubicml.space.trainers import TRAINERS

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
sys.path.append(str(DOCS / "site"))

from command_pages import COMPONENTS, command_page, component_page, parsers  # noqa: E402 - found by the path above
from generated_blocks import BLOCKS, blocks_of, with_blocks  # noqa: E402 - likewise
from link_tree import sections, with_toctrees  # noqa: E402 - likewise
from name_tables import trainer_names, trainer_rules  # noqa: E402 - likewise
from outside_links import with_files_outside  # noqa: E402 - likewise
from space_keys import LINKS  # noqa: E402 - likewise

PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md"), ROOT / "benchmarks" / "README.md"])
FENCE = re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?P<page>[^)#:\s]*)(?:#(?P<anchor>[^)\s]*))?\)")


@cache
def text_of(page: Path) -> str:
    return FENCE.sub("", with_blocks(page.read_text()))


@cache
def anchors(page: Path) -> frozenset[str]:
    """Return the anchors that GitHub gives the headings of a page; a repeated one gets a number."""
    found: list[str] = []
    for heading in re.findall(r"^#+ (.+)$", text_of(page), re.MULTILINE):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        anchor = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        repeated = sum(each == anchor or re.fullmatch(rf"{re.escape(anchor)}-\d+", each) is not None for each in found)
        found.append(f"{anchor}-{repeated}" if repeated else anchor)
    return frozenset(found)


def faults_of(page: Path) -> list[str]:
    """Return the inner links of a page that lead nowhere."""
    found = []
    for link in LINK.finditer(text_of(page)):
        target = (page.parent / link["page"]).resolve() if link["page"] else page
        if not target.exists():
            found.append(f"{link['page']}: no such file")
        elif link["anchor"] and target.suffix == ".md" and link["anchor"] not in anchors(target):
            found.append(f"{link['page']}#{link['anchor']}: no such heading")
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_inner_link_leads_to_a_page_and_a_heading(page: Path) -> None:
    assert faults_of(page) == []


def test_links_and_headings_are_found() -> None:
    assert sum(len(LINK.findall(text_of(page))) for page in PAGES) > 150
    assert {"log-lines-log", "a-key-of-a-config-file"} <= anchors(DOCS / "space-file.md")


def test_the_first_page_lists_every_page_once() -> None:
    listed = [page for pages in sections((DOCS / "index.md").read_text()).values() for page in pages]
    pages = {str(page.relative_to(DOCS).with_suffix("")) for page in DOCS.rglob("*.md")} - {"index"}
    assert sorted(listed) == sorted(pages)


def test_the_table_of_contents_has_the_headings_of_the_first_page() -> None:
    text = with_toctrees("## Guides\n\n- [Tuning](tuning.md): many launches\n")
    assert text.endswith("```{toctree}\n:hidden:\n:caption: Guides\n\ntuning\n```")


@pytest.mark.parametrize("page", [page for page in PAGES if blocks_of(page.read_text())], ids=lambda page: page.name)
def test_the_generated_blocks_are_those_of_the_code(page: Path) -> None:
    """``RENEW_GOLDEN=1`` writes them; a block that is empty in the file is filled in the site alone."""
    text = page.read_text()
    renewed = with_blocks(text, only_filled=True)
    if os.environ.get("RENEW_GOLDEN"):
        page.write_text(renewed)
    assert text == renewed


def test_every_generated_block_stands_on_one_page() -> None:
    used = [name for page in PAGES for name in blocks_of(page.read_text())]
    assert sorted(used) == sorted(BLOCKS)


def test_every_command_and_option_is_in_the_reference() -> None:
    page = command_page()
    assert {parser.prog.split()[2] for _, parser in parsers()} == set(COMMANDS)
    for _, parser in parsers():
        section = page.partition(f"## `{parser.prog}`\n")[2].partition("\n## ")[0]
        for action in parser._actions:
            for option in action.option_strings:
                assert f"`{option}" in section or action.dest == "help", (parser.prog, option)
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| `")]
    assert len(rows) > 100
    assert all(len(row) == 3 and row[1] for row in rows)
    assert {f"## `torchx run {name}`" for name in COMPONENTS} <= set(component_page().splitlines())


def test_the_reference_shows_choices_and_defaults() -> None:
    rows = command_page().splitlines()
    (split,) = (row for row in rows if row.startswith("| `--split "))
    assert split.endswith(" | random |")
    assert all(name in split for name in SPLITS)
    assert "| `--trial-timeout S` | seconds that a launch may run | 3600 |" in rows
    assert "| `-j VALUE` | nodes x processes per node, as 2x8 |  |" in component_page().splitlines()


def test_every_trainer_is_in_the_reference() -> None:
    for name, trainer in TRAINERS.items():
        table = trainer_names().partition(f"### `{name}`\n")[2].partition("\n### ")[0]
        assert all(f"| `{parameter}` |" in table for parameter in trainer.flags)
        rules = trainer_rules().partition(f"### Rules of `{name}`\n")[2].partition("\n### ")[0]
        assert all(f"| `{rule}` |" in rules for rule in trainer.rules)
        assert trainer.release.version in rules


def test_the_keys_of_a_space_file_are_told_whole() -> None:
    assert tuple(JOB) == JOB_UNITS
    assert set(BindingKind) <= set(PARAMETER)
    assert FACT_BINDINGS.items() <= PARAMETER.items()
    assert set(LINKS) == set(TABLES["top level"])
    assert all(text.meaning for table in TABLES.values() for text in table.values())


def test_links_to_files_outside_become_downloads() -> None:
    text = "[a](../CHANGELOG.md) [b](../../README.md) [c](tuning.md) [d](../tuning.md) [e](https://x/y.md)"
    told = "[a](../CHANGELOG.md) [b](path:../../README.md) [c](tuning.md) [d](../tuning.md) [e](https://x/y.md)"
    assert with_files_outside(text, "design/store") == told
    assert with_files_outside("[a](../CHANGELOG.md)", "tuning") == "[a](path:../CHANGELOG.md)"


@pytest.mark.parametrize("name", ["generated_blocks", "link_tree", "markdown_table", "outside_links"])
def test_examples_in_the_docstrings_hold(name: str) -> None:
    result = doctest.testmod(import_module(name))
    assert result.attempted
    assert not result.failed


def test_every_recorded_fact_of_the_page_has_a_writer() -> None:
    page = (DOCS / "recorded-facts.md").read_text().partition("## Observed facts")[2].partition("## The measurement")[0]
    tables = [table.partition("\n#")[0] for table in page.split("| fact |")[1:]]
    cells = [row.split("|")[1] for table in tables for row in table.splitlines() if row.startswith("| `")]
    facts = {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}
    assert len(facts) > 100
    known = {*map(hook_fact, hook_names()), *map(illegal_hook_fact, hook_names())}
    for package in ("recorder", "records"):
        for path in (ROOT / "torchx_cubicml" / package).rglob("*.py"):
            nodes = [*ast.walk(ast.parse(path.read_text()))]
            known |= {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
            known |= {node.arg for node in nodes if isinstance(node, ast.keyword) and node.arg}
    assert facts - known == set()


def test_every_promise_has_a_test() -> None:
    page = (DOCS / "promises.md").read_text()
    promises = re.findall(r"^- .*\n(?:  .*\n)+", page, re.MULTILINE)
    assert len(promises) > 20
    for promise in promises:
        kept_by = re.findall(r"^  - `(tests/[\w/]+\.py)::(test_\w+)`$", promise, re.MULTILINE)
        assert kept_by, promise
        for path, name in kept_by:
            assert f"def {name}(" in (ROOT / path).read_text(), promise


CLIENTS = {"aiohttp", "ftplib", "http", "httpx", "requests", "smtplib", "urllib3", "xmlrpc"}


def test_only_stores_and_ranks_are_talked_to() -> None:
    """Stores are read by fsspec, and ranks meet at torch's own store; sockets serve processes of one job."""
    found, with_sockets = set(), set()
    for path in (ROOT / "torchx_cubicml").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
            found |= {
                (path.name, name) for name in names if name.partition(".")[0] in CLIENTS or name == "urllib.request"
            }
            with_sockets |= {path.relative_to(ROOT / "torchx_cubicml").parts[0] for name in names if name == "socket"}
    assert found == set()
    assert with_sockets == {"recorder"}
