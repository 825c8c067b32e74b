"""Section of all trials: a table that the page's script sorts, filters and pages; each row opens to all of its record.

The rows are data of the page, not markup, so that many of them stay small.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchx_cubicml.report.markup import Html, element, joined, json_script
from torchx_cubicml.report.table_columns import to_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchx_cubicml.report.table_columns import Column


def trials_html(columns: Sequence[Column], *, name: str) -> Html:
    """Return the section; without JavaScript it says that the table needs it.

    Args:
        columns: of the table and of the details of each row, of equal length.
        name: unique on the page; letters, digits and hyphens.
    """
    data = {"columns": to_json(columns), "rows": len(columns[0].values) if columns else 0}
    script = element("noscript", element("p", "The table of trials needs JavaScript.", class_="note"))
    return joined(
        element("h3", "All trials"),
        element("div", class_="trials", id=name, data_source=f"{name}-data"),
        script,
        json_script(data, name=f"{name}-data"),
    )
