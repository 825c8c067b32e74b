"""Progress of a tune: its stages and what a display shows of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime

    from torchx_cubicml.advisor import ParameterWorth, Suggestion
    from torchx_cubicml.records.trial import Config, Trial
    from torchx_cubicml.tuner.budget import Spent
    from torchx_cubicml.tuner.comparison import Comparison
    from torchx_cubicml.tuner.launch_state import PendingLaunch
    from torchx_cubicml.tuner.launches import PendingLaunches
    from torchx_cubicml.tuner.request import Prepared
    from torchx_cubicml.tuner.state import TuneState


def glance(
    prepared: Prepared, tune_state: TuneState, pending_launches: PendingLaunches, *, spent: Spent, best: Trial | None
) -> Waiting:
    """Return what is to be seen while a tune waits; ``best`` is the fastest trial so far."""
    budget, parallel, now = prepared.request.budget, prepared.request.parallel, tune_state.now()
    objective = prepared.space.objective
    left = budget.launches_left(spent, parallel=parallel) if spent.launch_hours else 0
    waves = (left + len(pending_launches.under_way)) / parallel
    return Waiting(
        in_flight=tuple(
            _shown(pending, now, tune_state.ledger.of_launch(pending.launch_id), objective)
            for pending in pending_launches.under_way
        ),
        best=throughput_of(best, objective),
        best_config=best.config if best is not None else None,
        budget_left=budget.told_left(spent),
        time_left_s=waves * spent.launch_hours * 3600 if spent.launch_hours else None,
    )


def throughput_of(trial: Trial | None, objective: str) -> float | None:
    """Return what a trial measured in the unit of the objective; ``None`` where it did not, or there is no trial."""
    return trial.measurement.throughput(objective) if trial is not None and trial.measurement else None


def _shown(pending: PendingLaunch, now: datetime, trial: Trial | None, objective: str) -> InFlight:
    return InFlight(
        number=pending.number,
        purpose=pending.purpose,
        config=pending.config,
        phase="ending"
        if pending.cancellation or pending.ended
        else str(pending.state.phase)
        if pending.state
        else "submitted",
        since_s=(now - pending.since).total_seconds(),
        expected=pending.suggestion.throughput if pending.suggestion is not None else None,
        measured=throughput_of(trial, objective),
        uncertainty=trial.measurement.uncertainty if trial is not None and trial.measurement else 0.0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """A process leads a tune: a new one, or one that was left unfinished."""

    tune_id: str
    resumed: bool
    launches: int  # made before, when resumed
    in_flight: int  # of them


@dataclass(frozen=True, slots=True, kw_only=True)
class Launching:
    """A launch is about to be submitted: its number from 1, why it is made, and what is hoped of it."""

    number: int
    purpose: str
    suggestion: Suggestion


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A launch ended: its trial, with the throughput in the objective's unit where one was measured."""

    number: int
    trial: Trial
    throughput: float | None
    expected: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InFlight:
    """One launch under way, for display."""

    number: int
    purpose: str
    config: Config
    phase: str
    since_s: float
    expected: float | None
    measured: float | None
    uncertainty: float = 0.0  # of the logarithm of what was measured, as its run tells it


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """The tune waits: what is in flight, the best so far, and what is left."""

    in_flight: tuple[InFlight, ...]
    best: float | None
    best_config: Config | None
    budget_left: str
    time_left_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneResult:
    """How a tune ended.

    Args:
        comparison: the user's own config against the winner, each as measured in this tune; ``None`` where either was
            not.
        best: the winner by posterior mean; ``None`` where nothing was measured.
        launches: launches made.
        device_hours: hours that their jobs ran times their world size.
        command: component and arguments with the winner's config; empty without a winner.
        tune_id: name of the tune in the store.
        confidence: probability that no measured config is faster by more than a per cent; ``None`` where unknown.
        worths: what each parameter of the best config is worth.
    """

    comparison: Comparison | None
    best: Suggestion | None
    launches: int
    device_hours: float
    command: tuple[str, ...]
    tune_id: str = ""
    confidence: float | None = None
    worths: tuple[ParameterWorth, ...] = ()


Step = Begun | Launching | Ended | Waiting | TuneResult
