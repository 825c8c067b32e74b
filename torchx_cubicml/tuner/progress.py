"""Progress of a tune: the steps that it yields for a display, and its result."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from torchx_cubicml.records.redaction import masked_words

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from torchx_cubicml.advisor import ParameterSensitivity, Suggestion
    from torchx_cubicml.advisor.comparison import Comparison
    from torchx_cubicml.advisor.pareto_front import Frontier
    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.records.values import Config
    from torchx_cubicml.tuner.budget import Spent
    from torchx_cubicml.tuner.launch_state import PendingLaunch
    from torchx_cubicml.tuner.launches import PendingLaunches
    from torchx_cubicml.tuner.request import Prepared
    from torchx_cubicml.tuner.state import TuneState
    from torchx_cubicml.tuner.unconfirmed import Unconfirmed


def progress_of(
    prepared: Prepared, tune_state: TuneState, pending_launches: PendingLaunches, *, spent: Spent, best: Trial | None
) -> Waiting:
    """Build the progress report of a waiting tune; ``best`` is the fastest trial so far."""
    budget, parallel, now = prepared.request.budget, prepared.request.parallel, tune_state.now()
    objective = prepared.space.objective
    left = budget.launches_left(spent, parallel=parallel) if spent.launch_hours else 0
    waves = (left + len(pending_launches.under_way)) / parallel
    return Waiting(
        in_flight=tuple(
            _in_flight(pending, now, tune_state.trial_log.of_launch(pending.launch_id), objective)
            for pending in pending_launches.under_way
        ),
        objective=objective,
        best=throughput_of(best, objective),
        best_config=best.config if best is not None else None,
        budget_left=budget.describe_remaining(spent),
        time_left_s=waves * spent.launch_hours * 3600 if spent.launch_hours else None,
    )


def throughput_of(trial: Trial | None, objective: str) -> float | None:
    """Return a trial's throughput in the unit of the objective; ``None`` if not measured, or there is no trial."""
    return trial.throughput(objective) if trial is not None else None


def _in_flight(pending: PendingLaunch, now: datetime, trial: Trial | None, objective: str) -> InFlight:
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
        uncertainty=trial.uncertainty(objective) if trial is not None else 0.0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """Step: a process has begun a new tune or resumed an unfinished one."""

    tune_id: str
    resumed: bool
    launches: int  # made before the tune was resumed
    in_flight: int  # of these launches
    at_a_time: int = 1  # most launches in flight


@dataclass(frozen=True, slots=True, kw_only=True)
class Launching:
    """Step: a launch is about to be submitted; its number from 1, its purpose, and its suggestion."""

    number: int
    purpose: str
    suggestion: Suggestion


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """Step: a launch has ended.

    Args:
        number: of the launch, from 1.
        trial: of the launch.
        objective: unit of the throughputs.
        throughput: as measured; ``None`` if it was not.
        expected: as predicted before the launch; ``None`` if it was not.
        own: median over the launches of the user's own config in this tune; ``None`` if none was measured so far.
        purpose: of the launch.
    """

    number: int
    trial: Trial
    objective: str
    throughput: float | None
    expected: float | None = None
    own: float | None = None
    purpose: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """Step: a sentence for the user, such as on a budget that is too small."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InFlight:
    """One launch in flight, for display."""

    number: int
    purpose: str
    config: Config
    phase: str
    since_s: float
    expected: float | None
    measured: float | None
    uncertainty: float = 0.0  # of the logarithm of the measured throughput, as reported by the run


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Step: the tune waits; the launches in flight, the best throughput so far, and the remaining budget and time."""

    in_flight: tuple[InFlight, ...]
    objective: str
    best: float | None
    best_config: Config | None
    budget_left: str
    time_left_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneResult:
    """Result of a tune.

    Args:
        comparison: the winner against the user's own config, each as measured in this tune; ``None`` if either was not.
        best: the winner by posterior mean; ``None`` if nothing was measured.
        launches: launches made.
        device_hours: hours that their jobs ran, times their world size.
        command: component and arguments with the winner's config; empty without a winner.
        scheduler_args: options of the scheduler with the winner's config, as ``-cfg`` of ``torchx run``.
        unconfirmed: the fastest measured config, where no gain is claimed; ``None`` if none was measured faster.
        frontier: of two objectives; ``None`` for a tune with one. The winner is that of the first.
        tune_id: name of the tune in the store.
        confidence: probability that no measured config is faster by more than one per cent; ``None`` if unknown.
        sensitivities: sensitivity of the best config's throughput to each parameter.
        launches_lacking: launches until both were measured often enough for a claim.
        others_measured: configs besides the user's own that were measured, in this tune or before it.
        set_aside: parameter that was kept at the user's own value -> reason of the failure that any other value meets.
        refused: what hooks cannot set in this program, one line for each parameter.
        values_set_aside: value that was not tried again, in words -> reason of the failure that it meets.
        ending: used part of the budget, and why the tune ended, in words.
    """

    comparison: Comparison | None
    best: Suggestion | None
    launches: int
    device_hours: float
    command: tuple[str, ...]
    tune_id: str = ""
    confidence: float | None = None
    sensitivities: tuple[ParameterSensitivity, ...] = ()
    launches_lacking: int = 0
    others_measured: int = 0
    set_aside: Mapping[str, str] = field(default_factory=dict)
    refused: tuple[str, ...] = ()
    values_set_aside: Mapping[str, str] = field(default_factory=dict)
    ending: str = ""
    scheduler_args: str = ""
    frontier: Frontier | None = None
    unconfirmed: Unconfirmed | None = None

    @property
    def compares(self) -> bool:
        """True if a config besides the user's own was measured."""
        return self.others_measured > 0

    @property
    def claims_gain(self) -> bool:
        """True if a config was confirmed to be better than the user's own."""
        return self.comparison is not None and self.comparison.claims_gain

    def to_json(self) -> dict[str, object]:
        """Return the fields as JSON values, sensitivities under their stored name ``worths``."""
        fields = asdict(self)
        fields["worths"] = fields.pop("sensitivities")
        fields["frontier"] = self.frontier.to_json() if self.frontier is not None else None
        return {**fields, "claims_gain": self.claims_gain}

    def to_record(self) -> dict[str, object]:
        """Return the JSON values that are kept in the store, with the secrets of the command masked."""
        return {**self.to_json(), "command": masked_words(self.command)}


Step = Begun | Notice | Launching | Ended | Waiting | TuneResult
