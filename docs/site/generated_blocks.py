"""Blocks of pages that are generated from the code.

A block begins with the comment ``<!-- generated: NAME -->`` and ends with ``<!-- end -->``. The build of the site
writes every block anew. A block that is filled in the file too, for readers without the site, is kept true by a test.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from command_pages import command_page, component_page, cubicrun_help
from name_tables import flag_table, hook_table, job_rules_table, record_names, trainer_names, trainer_rules
from python_api import python_api
from space_keys import key_table

from torchx_cubicml.space.toml.key_meanings import TABLES

if TYPE_CHECKING:
    from collections.abc import Callable

_BLOCK = re.compile(r"(<!-- generated: (?P<name>[\w: .-]+) -->\n)(?P<text>.*?)(?=<!-- end -->)", re.DOTALL)

BLOCKS: dict[str, Callable[[], str]] = {
    "commands": command_page,
    "components": component_page,
    "cubicrun": cubicrun_help,
    "python-api": python_api,
    "flags": flag_table,
    "hooks": hook_table,
    "job-rules": job_rules_table,
    "record-names": record_names,
    "trainer-names": trainer_names,
    "trainer-rules": trainer_rules,
    **{f"keys: {name}": (lambda name=name: key_table(name)) for name in TABLES},
}
"""Block -> function that returns its Markdown."""


def blocks_of(text: str) -> dict[str, str]:
    r"""Return the generated blocks of a page as they stand in it, by name.

    >>> blocks_of("<!-- generated: commands -->\nold\n<!-- end -->")
    {'commands': 'old\n'}
    """
    return {found["name"]: found["text"] for found in _BLOCK.finditer(text)}


def with_blocks(text: str, *, only_filled: bool = False) -> str:
    """Return a page with its generated blocks written anew.

    Args:
        text: the page, Markdown.
        only_filled: whether a block that is empty stays so.

    Raises:
        KeyError: no generator has the name of a block.
    """

    def renewed(found: re.Match[str]) -> str:
        if only_filled and not found["text"].strip():
            return found[0]
        return f"{found[1]}\n{BLOCKS[found['name']]()}\n\n"

    return _BLOCK.sub(renewed, text)
