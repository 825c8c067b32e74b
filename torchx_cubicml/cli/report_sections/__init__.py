"""Sections of the report, one module each, in the order of the page.

A section is a function from a ``WorkloadView`` to markup, or to empty markup where it has nothing to show. It gathers
rows here and has them drawn by ``torchx_cubicml.report``. To add one, write its module and name it in ``SECTIONS``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torchx_cubicml.cli.report_sections.view import WorkloadView
    from torchx_cubicml.report.markup import Html

SECTIONS = ("result", "launch_order", "worth", "trials_table")
"""Modules of this package, each with a function ``section``."""


def sections_of(view: WorkloadView) -> Iterator[Html]:
    """Yield the markup of each section of a workload."""
    for name in SECTIONS:
        found: Html = import_module(f"{__name__}.{name}").section(view)
        if found:
            yield found


def data_of(view: WorkloadView) -> dict[str, object]:
    """Return what the sections of a workload tell as JSON values, of those that have a function ``data``."""
    modules = {name: import_module(f"{__name__}.{name}") for name in SECTIONS}
    return {name: module.data(view) for name, module in modules.items() if hasattr(module, "data")}
