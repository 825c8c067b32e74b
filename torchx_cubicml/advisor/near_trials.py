"""Which trials tell most of a workload, where there are too many to learn from all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torchx_cubicml.records.trial import Trial, Workload


def nearest(trials: Iterable[Trial], workload: Workload, *, count: int) -> list[Trial]:
    """Return the ``count`` trials that declare the most facts of ``workload``, of those alike the latest."""
    trials = list(trials)
    if len(trials) <= count:
        return trials
    facts = set(workload.items())
    shared: dict[int, int] = {}
    for trial in trials:
        if id(trial.workload) not in shared:
            shared[id(trial.workload)] = len(facts & set(trial.workload.items()))
    trials.sort(key=lambda trial: (shared[id(trial.workload)], trial.ended_at or trial.started_at, trial.trial_id))
    return trials[-count:]


def telling(trials: Sequence[Trial], workload: Workload, *, count: int) -> list[Trial]:
    """Return the trials ``nearest`` to ``workload``, at least half of them measured where there are as many.

    Of failures alone nothing could be learned of speed, however near they are.
    """
    near = nearest(trials, workload, count=count)
    if 2 * sum(trial.measurement is not None for trial in near) >= len(near) or len(near) == len(trials):
        return near
    measured = nearest((trial for trial in trials if trial.measurement is not None), workload, count=count // 2)
    others = (trial for trial in trials if trial.measurement is None)
    return [*measured, *nearest(others, workload, count=count - len(measured))]


def familiar(workload: Workload, trials: Iterable[Trial]) -> bool:
    """Return whether each fact of ``workload`` is one that trials of other workloads declare, if only some of them."""
    unseen = set(workload.items())
    for other in {id(trial.workload): trial.workload for trial in trials}.values():
        if other != workload:
            unseen -= set(other.items())
    return not unseen
