"""What to launch next, worked out while launches run, where a free slot would have to wait for it too long."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchx_cubicml.records.trial import State

if TYPE_CHECKING:
    from torchx_cubicml.advisor import Suggestion
    from torchx_cubicml.tuner.launch_state import FinishedLaunch
    from torchx_cubicml.tuner.request import TuneRequest

_SHARE = 0.02  # of the time of a launch that its slot may wait


@dataclass(slots=True, kw_only=True)
class Prefetch:
    """The next launch, thought of before a slot is free; it knows one result less than a fresh thought would.

    So it serves only where launches are short, several are in flight, and most of the budget is left to search.

    Args:
        request: of the tune.
        thought_s: how long the last thought took.
        suggestion: what is to be launched next; ``None`` where it is to be thought of.
        has_thought: whether it was thought of since a launch last began or ended.
    """

    request: TuneRequest
    thought_s: float = 0.0
    suggestion: Suggestion | None = None
    has_thought: bool = False

    def pays(self, *, launches_left: int, usual_run_s: float) -> bool:
        """Whether to think now of what is launched later.

        Args:
            launches_left: of the budget.
            usual_run_s: how long a launch runs; 0 where that is not known.
        """
        asked = self.request
        searching = launches_left > 2 * asked.repeats_made + asked.parallel
        patient = asked.rounds or asked.target_gain is not None or asked.stop_under is not None
        if asked.parallel == 1 or patient or not searching or self.has_thought:
            return False
        return self.thought_s * asked.parallel > _SHARE * usual_run_s > 0

    def keep(self, suggestion: Suggestion | None) -> None:
        """Remember what was thought of; ``None`` where no search is next."""
        self.suggestion, self.has_thought = suggestion, True

    def hear(self, finished: FinishedLaunch) -> None:
        """Forget what was thought where a launch ended otherwise than it was expected to."""
        if finished.trial.state is not State.COMPLETED or finished.trial.measurement is None:
            self.suggestion = None
        self.has_thought = self.suggestion is not None

    def take(self, *, launches_left: int) -> Suggestion | None:
        """Return what was thought of, once; ``None`` where a fresh thought is needed."""
        suggestion, self.suggestion, self.has_thought = self.suggestion, None, False
        return suggestion if launches_left > 2 * self.request.repeats_made else None
