"""Report of a store before it takes a format: what was read, and a view of each workload."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torchx_cubicml.cli.report_sections.view import WorkloadView
    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.report.sections.figures import Colours


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreReport:
    """Report of the chosen workloads of a store.

    Args:
        store: its URL, masked and printable.
        read_at: time of the reading, ISO 8601 in UTC.
        trials: of all chosen workloads, those of most launches first.
        views: of all chosen workloads, in the same order.
        chapters: number of them that get a chapter: the first.
        predictor: name of the chosen predictor.
        notes: sentences on the whole, printable.
        colours: of the page's figures.
        missing: sentence on the missing renderer; empty where it is installed.
        report: takes the number of sections made so far, and of all.
    """

    store: str
    read_at: str
    trials: Sequence[Trial]
    views: Sequence[WorkloadView]
    chapters: int
    predictor: str
    notes: Sequence[str]
    colours: Colours
    missing: str
    report: Callable[[int, int], None] = lambda _done, _total: None

    @property
    def title(self) -> str:
        """Title of the page."""
        return f"Launches in {self.store}"

    @property
    def about(self) -> str:
        """Line below the title."""
        many = f" of {len(self.views)} workloads" if len(self.views) > 1 else ""
        trials = f"{len(self.trials):,} trial{'s' if len(self.trials) != 1 else ''}"
        return f"{trials}{many}, read on {self.read_at[:10]} at {self.read_at[11:16]} UTC"
