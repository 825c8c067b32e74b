"""Each fenced block of the pages states how it is tested; ``make test-docs`` executes them."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.documentation.blocks import PAGES, ROOT, Block, blocks_of, indented_code
from tests.documentation.space_files import read_space

BLOCKS = [block for page in PAGES for block in blocks_of(page)]
SKIPPED = Counter(
    {
        "a drawing": 2,
        "it installs packages": 3,
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
