"""HTML of records for notebooks: small tables in the notebook's own colours, light or dark, with every text escaped."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from torchx_cubicml.records.redaction import MASK, excerpt, names_secret
from torchx_cubicml.records.shell_words import shell_text
from torchx_cubicml.records.value_text import value_text
from torchx_cubicml.report.markup import Html, element, joined

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MOST_ROWS = 60
"""Rows of a table; the others are counted."""
_MOST_LETTERS = 300  # of one cell
_CELL = "text-align:left;vertical-align:top;overflow-wrap:anywhere"
_COMMAND = ("command", "words")


def section_html(title: str, *parts: str) -> Html:
    """Return a heading, and what stands below it.

    Args:
        title: plain text.
        parts: tables, and sentences as plain text; empty ones are left out.
    """
    body = [part if isinstance(part, Html) else note_html(part) for part in parts if part]
    return element("div", element("strong", excerpt(title, most=_MOST_LETTERS)), *body)


def note_html(text: str) -> Html:
    """Return a sentence."""
    return element("p", excerpt(text, most=_MOST_LETTERS), style="margin:.3em 0;opacity:.75;max-width:60em")


def table_html(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Html:
    """Return a table; without a row it is empty.

    Args:
        headings: of the columns, plain text; none where each row begins with its own name.
        rows: cells as plain text; secrets and control characters in them are replaced.
    """
    if not rows:
        return Html("")
    head = element("thead", element("tr", *(element("th", name, style=_CELL) for name in headings)))
    body = [element("tr", *_cells(row, has_name=not headings)) for row in rows[:MOST_ROWS]]
    table = element("table", *([head] if headings else []), element("tbody", *body))
    left_out = len(rows) - len(body)
    return joined(table, note_html(f"{left_out:,} more") if left_out else Html(""))


def _cells(row: Sequence[str], *, has_name: bool) -> list[Html]:
    tags = ["th" if has_name and not place else "td" for place in range(len(row))]
    return [element(tag, excerpt(text, most=_MOST_LETTERS), style=_CELL) for tag, text in zip(tags, row, strict=True)]


def fact_rows(groups: Mapping[str, object]) -> list[tuple[str, str]]:
    """Return name and text of each value; those of a mapping stand as ``group.name``, and empty ones are left out.

    Values under the name of a secret are masked.

    >>> fact_rows({"state": "completed", "config": {"compile": True}, "reason": "", "command": {"words": ("a", "b c")}})
    [('state', 'completed'), ('config.compile', 'True'), ('command.words', "a 'b c'")]
    """
    return [(".".join(names), _text(names, value)) for names, value in _flat(groups) if value not in (None, "", ())]


def _flat(groups: Mapping[str, object]) -> Iterable[tuple[tuple[str, ...], object]]:
    for group, value in groups.items():
        if isinstance(value, Mapping):
            yield from (((group, str(name)), inner) for name, inner in value.items())
        else:
            yield (group,), value


def _text(names: tuple[str, ...], value: object) -> str:
    if names == _COMMAND and isinstance(value, tuple):
        return shell_text([str(word) for word in value])
    is_secret = names_secret(names[-1]) and not isinstance(value, bool)
    return MASK if is_secret else value_text(value)
