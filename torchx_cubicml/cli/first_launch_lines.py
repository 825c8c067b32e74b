"""Lines that a tune prints before its first launch: what the formulas predict of a workload that was never launched."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.tuner import Prepared


def first_launch_lines(prepared: Prepared, trials: Sequence[Trial]) -> list[str]:
    """Return the prediction of the user's own config; empty where it was launched, or where nothing is predicted."""
    from torchx_cubicml.advisor import Study
    from torchx_cubicml.advisor.breakdown import Breakdowns
    from torchx_cubicml.records.workload import is_same_workload

    if any(trial.measurement is not None and is_same_workload(trial, prepared.workload) for trial in trials):
        return []  # saves the time of a fit
    study = Study.of(prepared.space, workload=prepared.workload, current=prepared.current, trials=trials)
    found = Breakdowns.estimate(study, {"your config": study.current}).first_launch
    return found.lines if found.throughput else []
