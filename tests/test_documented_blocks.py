"""Each fenced block of the pages states how it is tested; ``make test-docs`` executes them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.documentation.blocks import PAGES, ROOT, Block, blocks_of, indented_code
from tests.documentation.printed import unprinted
from tests.documentation.space_files import read_space

if TYPE_CHECKING:
    from pathlib import Path

BLOCKS = [block for page in PAGES for block in blocks_of(page)]
SKIPPED = Counter(
    {
        "a drawing": 3,
        "it installs packages": 3,
        "it needs a Ray cluster": 2,
        "it needs a cluster": 1,
        "it submits a job of several nodes": 1,
        "of a training on a GPU": 1,
        "of another training": 1,
        "without this package": 7,
    }
)


def test_each_block_says_how_it_is_tested() -> None:
    assert [fault for block in BLOCKS for fault in block.faults()] == []


def test_no_code_stands_without_a_fence() -> None:
    assert [fault for page in PAGES for fault in indented_code(page)] == []


def test_each_fence_is_found() -> None:
    for page in PAGES:
        assert page.read_text().count("```") == 2 * len(blocks_of(page)), page.relative_to(ROOT)


def test_the_blocks_without_a_test_are_counted() -> None:
    """A new one is noticed here."""
    assert Counter(block.skipped for block in BLOCKS if block.skipped) == SKIPPED


@pytest.mark.parametrize(
    "block",
    [block for block in BLOCKS if block.language == "toml" and not block.skipped],
    ids=lambda block: block.place,
)
def test_each_toml_is_a_space_file(block: Block) -> None:
    assert read_space(block).parameters


PAGE = """
<!-- test: in integrations; 8 -> 1;
    train.py --steps 9 -> train.py -->
```bash
torchx run -s slurm dist.ddp -j 1x8 --script train.py \\
    --steps 9
```

- a list

  ```toml
  [parameters]
  ```
"""


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tests.documentation.blocks.ROOT", tmp_path)
    written = tmp_path / "page.md"
    written.write_text(PAGE)
    return written


def test_rules_of_a_block_change_what_is_tested(page: Path) -> None:
    commands, toml = blocks_of(page)
    assert (commands.line, commands.argument("in"), commands.faults()) == (4, "integrations", [])
    assert commands.tested == "torchx run -s slurm dist.ddp -j 1x1 --script train.py\n"
    assert (toml.language, toml.text, toml.is_command) == ("toml", "[parameters]\n", False)


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("8 -> 1", "9x9 -> 1", "page.md:4: '9x9' is not in the block"),
        ("in integrations", "quickly", "page.md:4: unknown rule 'quickly'"),
        ("```bash", "```text", "page.md:4: give it the rule `printed`"),
        ("```bash", "```", "page.md:4: language missing"),
        ("```bash", "```yaml", "page.md:4: give it the rule `file NAME`"),
    ],
)
def test_a_block_without_a_legal_rule_is_a_fault(page: Path, old: str, new: str, fault: str) -> None:
    page.write_text(PAGE.replace(old, new, 1))
    assert blocks_of(page)[0].faults()[0].startswith(fault)


def test_code_without_a_fence_is_a_fault(page: Path) -> None:
    assert indented_code(page) == []
    page.write_text(f"{PAGE}\nText:\n\n    torchx cubicml doctor\n")
    assert indented_code(page) == ["page.md:17: fence this code: torchx cubicml doctor"]


def test_shown_outputs_are_compared_without_their_numbers() -> None:
    printed = "launch 1\nmeasured    1,234 tokens/s ± 2 %\n"
    assert unprinted("measured 41.5 tokens/s ± 9 %\nlaunch ...\n", printed) == []
    assert unprinted("measured 41.5 samples/s\n", printed) == ["measured 41.5 samples/s"]
