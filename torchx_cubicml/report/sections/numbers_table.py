"""Table of a figure's numbers, folded below it: for readers who cannot see the figure, and for a page without one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchx_cubicml.report.markup import Html, element
from torchx_cubicml.report.sections.small_table import small_table

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
    table = small_table(heads, rows, label=label, texts=heads)
    return element("details", element("summary", label), table, class_="numbers", open="" if is_open else None)
