"""Table of a few rows as plain markup: it needs no script, and is read out row by row."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchx_cubicml.report.markup import Html, element

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence


def small_table(
    heads: Sequence[str], rows: Sequence[Sequence[str]], *, label: str, texts: Collection[str] = ()
) -> Html:
    """Return the table; the first cell of each row is its heading.

    Args:
        heads: of the columns, each once.
        rows: as many cells each, plain texts or markup.
        label: name of the table, for people who cannot see it.
        texts: heads of the columns that hold texts; the others hold numbers, besides the first.
    """
    kinds = [None if place == 0 or head in texts else "number" for place, head in enumerate(heads)]
    top = [element("th", head, scope="col", class_=kind) for head, kind in zip(heads, kinds, strict=True)]
    body = [
        element(
            "tr",
            element("th", row[0], scope="row"),
            *(element("td", cell, class_=kind) for cell, kind in zip(row[1:], kinds[1:], strict=True)),
        )
        for row in rows
    ]
    table = element("table", element("thead", element("tr", *top)), element("tbody", *body), class_="changes small")
    return element("div", table, class_="scroll", tabindex="0", role="group", aria_label=label)
