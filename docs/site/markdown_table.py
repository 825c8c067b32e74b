"""Tables of Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    r"""Return a table; a bar within a cell is escaped.

    >>> print(table(["option", "meaning"], [["`--x`", "a | b"]]))
    | option | meaning |
    |---|---|
    | `--x` | a \| b |
    """
    shown = [f"| {' | '.join(map(_escaped, cells))} |" for cells in (headings, *rows)]
    return "\n".join([shown[0], f"|{'---|' * len(headings)}", *shown[1:]])


def _escaped(cell: str) -> str:
    return cell.replace("|", r"\|")


def code(text: str) -> str:
    """Return a text as code.

    >>> code("--x"), code("")
    ('`--x`', '')
    """
    return f"`{text}`" if text else ""
