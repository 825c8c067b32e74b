"""Stores that the report is tested on in a real browser, each made by one function of this package."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.browser.stores import failures, hostile, imported, layers, many, tuned

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A store for the report.

    Args:
        fill: fills a store at a path; returns further words for the command, such as ``--space FILE``.
        trials: trials in the table of its first workload.
        workloads: on the page.
    """

    fill: Callable[[Path], tuple[str, ...]]
    trials: int
    workloads: int = 1


CASES = {
    "tuned": Case(fill=tuned.fill, trials=tuned.LAUNCHES),
    "failures": Case(fill=failures.fill, trials=failures.LAUNCHES),
    "layers": Case(fill=layers.fill, trials=layers.LAUNCHES),
    "imported": Case(fill=imported.fill, trials=imported.FIRST, workloads=20),
    "one": Case(fill=many.fill_one, trials=1),
    "many": Case(fill=many.fill, trials=many.TRIALS),
    "hostile": Case(fill=hostile.fill, trials=hostile.TRIALS),
}
