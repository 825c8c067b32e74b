"""Links to files outside of the documentation, which the site offers as files."""

from __future__ import annotations

import posixpath
import re

_PAGE = re.compile(r"\]\((?P<path>[^):#\s]+\.md)\)")


def with_files_outside(text: str, page: str) -> str:
    """Return a page whose links to Markdown files outside of the documentation offer the file.

    Args:
        text: Markdown.
        page: path of the page below the documentation, without its ending.

    >>> with_files_outside("[benchmarks](../benchmarks/README.md), [tuning](tuning.md)", "explain")
    '[benchmarks](path:../benchmarks/README.md), [tuning](tuning.md)'
    """

    def marked(found: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(page), found["path"]))
        return f"](path:{found['path']})" if target.startswith("../") else found[0]

    return _PAGE.sub(marked, text)
