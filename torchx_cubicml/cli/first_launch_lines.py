"""Lines that a tune prints before its first launch: what the formulas predict of a workload that was never launched."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchx_cubicml.history.history import History


def first_launch_lines(history: History) -> list[str]:
    """Return the prediction of the user's own config; empty where it was launched, or where nothing is predicted."""
    from torchx_cubicml.advisor import Study
    from torchx_cubicml.advisor.breakdown import Breakdowns

    if any(trial.measurement is not None for trial in history.own):
        return []  # saves the time of a fit
    study = Study.fitted(history)
    found = Breakdowns.estimate(study, {"your config": study.current}).first_launch
    return found.lines if found.throughput else []
