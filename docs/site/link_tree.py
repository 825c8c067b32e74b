"""Table of contents of the site, taken from the lists of links on its first page."""

from __future__ import annotations

import re

INDEX = "index"
_HEADING = re.compile(r"^## (.+)$")
_LINK = re.compile(r"^- \[[^\]]+\]\(([\w/.-]+)\.md\)")


def sections(text: str) -> dict[str, list[str]]:
    r"""Return the pages that the lists of a page link to, by the heading above each list.

    >>> sections("## Guides\n- [Slurm](guides/slurm.md): a cluster\n- [Tuning](tuning.md)\n")
    {'Guides': ['guides/slurm', 'tuning']}
    """
    found: dict[str, list[str]] = {}
    heading = ""
    for line in text.splitlines():
        if match := _HEADING.match(line):
            heading = match[1]
        elif match := _LINK.match(line):
            found.setdefault(heading, []).append(match[1])
    return found


def with_toctrees(text: str) -> str:
    """Return a page with one hidden table of contents for each list of links."""
    trees = [
        "\n".join(["```{toctree}", ":hidden:", f":caption: {heading}", "", *pages, "```"])
        for heading, pages in sections(text).items()
    ]
    return "\n\n".join([text, *trees])
