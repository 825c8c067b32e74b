"""Prefetch of the next suggestion while launches run, so that a free slot need not wait for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchx_cubicml.records.trial import State

if TYPE_CHECKING:
    from torchx_cubicml.advisor import Suggestion
    from torchx_cubicml.tuner.launch_state import FinishedLaunch
    from torchx_cubicml.tuner.request import TuneRequest

_SHARE = 0.02  # of a launch's run time that its slot may wait


@dataclass(slots=True, kw_only=True)
class Prefetch:
    """Suggestion for the next launch, prefetched before a slot is free.

    It is based on one result less than a fresh suggestion. It is used only where launches are short, several are in
    flight, and most of the budget is left for search.

    Args:
        request: the tune's request.
        compute_s: seconds that the last suggestion took.
        suggestion: the prefetched suggestion; ``None`` if there is none.
        is_computed: true if one was computed since a launch last began or ended.
    """

    request: TuneRequest
    compute_s: float = 0.0
    suggestion: Suggestion | None = None
    is_computed: bool = False

    def pays(self, *, launches_left: int, usual_run_s: float) -> bool:
        """Return whether to compute the next suggestion now.

        Args:
            launches_left: launches that the budget still allows.
            usual_run_s: usual run time of a launch in seconds; 0 if unknown.
        """
        request = self.request
        searching = launches_left > 2 * request.repeats_made + request.parallel
        needs_all_results = request.rounds or request.target_gain is not None or request.stop_under is not None
        if request.parallel == 1 or needs_all_results or not searching or self.is_computed:
            return False
        return self.compute_s * request.parallel > _SHARE * usual_run_s > 0

    def keep(self, suggestion: Suggestion | None) -> None:
        """Store a prefetched suggestion; ``None`` if the next launch is not a search."""
        self.suggestion, self.is_computed = suggestion, True

    def hear(self, finished: FinishedLaunch) -> None:
        """Drop the suggestion if a launch ended without a measurement."""
        if finished.trial.state is not State.COMPLETED or finished.trial.measurement is None:
            self.suggestion = None
        self.is_computed = self.suggestion is not None

    def take(self, *, launches_left: int) -> Suggestion | None:
        """Return the prefetched suggestion once; ``None`` if a fresh one is needed."""
        suggestion, self.suggestion, self.is_computed = self.suggestion, None, False
        return suggestion if launches_left > 2 * self.request.repeats_made else None
