"""Sections of the report, one module each, in the order of the page.

A section is a function from a ``WorkloadView`` to markup, or to empty markup where it has nothing to show. It gathers
rows here and has them drawn by ``torchx_cubicml.report``. To add one, write its module and name it in ``SECTIONS``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from torchx_cubicml.records.redaction import mask, printable
from torchx_cubicml.report.markup import Html, element

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torchx_cubicml.cli.report_sections.view import WorkloadView

SECTIONS = (
    "result",
    "launch_order",
    "accuracy",
    "worth",
    "response",
    "memory_limit",
    "best_configs",
    "layers_by_config",
    "step_breakdown",
    "hardware_use",
    "two_objectives",
    "launch_times",
    "kept_promises",
    "trials_table",
)
"""Modules of this package, each with a function ``section``."""
_MOST_LETTERS = 300  # of a cause


def sections_of(view: WorkloadView, *, report: Callable[[int], None] = lambda _done: None) -> Iterator[Html]:
    """Yield the markup of each section of a workload; a sentence with the cause stands for one that fails.

    Args:
        view: of the workload.
        report: takes the number of sections made so far.
    """
    for number, name in enumerate(SECTIONS):
        report(number)
        try:
            found: Html = import_module(f"{__name__}.{name}").section(view)
        except Exception as error:  # noqa: BLE001 - the other sections are shown whatever is wrong with one
            found = _failure(name, error)
        if found:
            yield found


def short_result(view: WorkloadView) -> str:
    """Return the result of a workload in few words; empty where finding it fails, as its section then says."""
    from torchx_cubicml.cli.report_sections.result import headline_of, summary_of

    try:
        return summary_of(headline_of(view))
    except Exception:  # noqa: BLE001 - the section of the result tells the cause
        return ""


def data_of(view: WorkloadView) -> dict[str, object]:
    """Return the JSON values of the sections that have a function ``data``; a cause where one fails."""
    found: dict[str, object] = {}
    for name in SECTIONS:
        data = getattr(import_module(f"{__name__}.{name}"), "data", None)
        if data is None:
            continue
        try:
            found[name] = data(view)
        except Exception as error:  # noqa: BLE001 - likewise
            found[name] = {"failure": _cause(error)}
    return found


def _failure(name: str, error: Exception) -> Html:
    """Return the sentence on a section that failed, where a reader and a report of the defect find its cause."""
    text = f"The section \u201c{name.replace('_', ' ')}\u201d is left out, as making it failed: {_cause(error)}"
    return element("p", text, class_="note failure")


def _cause(error: Exception) -> str:
    return " ".join(printable(mask(f"{type(error).__name__}: {error}"[: 2 * _MOST_LETTERS])).split())[:_MOST_LETTERS]
