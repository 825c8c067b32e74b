"""Table of a figure's numbers, folded below it: for readers who cannot see the figure, and for a page without one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchx_cubicml.report.markup import Html, element, joined

if TYPE_CHECKING:
    from collections.abc import Sequence


def numbers_html(
    heads: Sequence[str], rows: Sequence[Sequence[str]], *, is_open: bool = False, label: str = "The numbers"
) -> Html:
    """Return the table; its first column names each row.

    Args:
        heads: of the columns, plain text.
        rows: cells, plain text.
        is_open: whether it is unfolded, as where no figure is drawn.
        label: words on which it unfolds.
    """
    head = element("thead", element("tr", *(element("th", name, scope="col") for name in heads)))
    body = [
        element("tr", element("th", first, scope="row"), *(element("td", cell) for cell in others))
        for first, *others in rows
    ]
    table = element("table", head, element("tbody", *body), class_="changes")
    scroll = element("div", table, class_="scroll", tabindex="0", role="group", aria_label=label)
    return joined(element("details", element("summary", label), scroll, class_="numbers", open="" if is_open else None))
