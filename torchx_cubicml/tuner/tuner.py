"""The loop: the truth is in the store, and what to launch next is worked out anew before each launch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from torchx_cubicml.errors import LaunchError
from torchx_cubicml.launch.jobs import JobRunner
from torchx_cubicml.rewriter import place_config
from torchx_cubicml.trial import OBJECTIVES, Origin, State
from torchx_cubicml.tuner.launching import launch, read_store, with_last_lines
from torchx_cubicml.tuner.plan import next_launch, winner_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torchx_cubicml.advisor import Suggestion
    from torchx_cubicml.comparison import Comparison
    from torchx_cubicml.launch.jobs import JobOutcome
    from torchx_cubicml.trial import Trial
    from torchx_cubicml.tuner.request import Prepared


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


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneResult:
    """How a tune ended.

    Args:
        comparison: the user's own config against the winner, each as measured in this tune; ``None`` where either was
            not.
        best: the winner by posterior mean; ``None`` where nothing was measured.
        launches: launches made.
        device_hours: wall hours of the launches times their world size.
        command: component and arguments with the winner's config; empty without a winner.
    """

    comparison: Comparison | None
    best: Suggestion | None
    launches: int
    device_hours: float
    command: tuple[str, ...]


def tune(prepared: Prepared) -> Iterator[Launching | Ended | TuneResult]:
    """Launch within the budget, yielding each launch as it begins and ends, and the result at last.

    Raises:
        LaunchError: the first launch fails by the user's own error or measures nothing, or a launch leaves no record.
        StoreError: the store cannot be read or written.
        KeyboardInterrupt: the user ends the tune.
    """
    request = prepared.request
    known = frozenset(trial.trial_id for trial in read_store(prepared))
    device_seconds, made = 0.0, 0
    logs = str(Path(prepared.scratch) / "logs")
    with JobRunner(request.scheduler, scheduler_args=request.scheduler_args, log_dir=logs) as jobs:
        while made < request.launches:
            left = request.launches - made
            planned = next_launch(prepared, read_store(prepared), launches_left=left, known=known)
            if planned is None:
                break
            made += 1
            yield Launching(number=made, purpose=planned[0], suggestion=planned[1])
            trial, outcome = launch(prepared, planned[1], jobs)
            device_seconds += outcome.wall_s * (prepared.component.launch.world_size or 1)
            yield Ended(number=made, trial=trial, throughput=_throughput(prepared, trial))
            if made == 1:
                _refuse_to_go_on(prepared, trial, outcome)
    best, comparison = winner_of(prepared, read_store(prepared), known=known)
    yield TuneResult(
        comparison=comparison,
        best=best,
        launches=made,
        device_hours=device_seconds / 3600,
        command=_command(prepared, best) if best is not None else (),
    )


def _refuse_to_go_on(prepared: Prepared, first: Trial, outcome: JobOutcome) -> None:
    """End a tune whose first launch shows that no launch can be measured."""
    if first.state is State.USER_ERROR:
        raise LaunchError(with_last_lines(f"the first launch failed: {first.reason}", outcome))
    if first.state is not State.COMPLETED or _throughput(prepared, first) is not None:
        return
    others = [name for name in OBJECTIVES if first.measurement and first.measurement.throughput(name) is not None]
    if others:
        wanted = f'set objective = "{others[0]}" in {prepared.request.space}'
        raise LaunchError(f"{prepared.space.objective} cannot be measured in this training; {wanted}")
    raise LaunchError(
        "the first launch completed, and no steady state was measured: it makes too few optimizer steps, or none that "
        "can be seen (a training can tell its own: torchx_cubicml.measure)"
    )


def _throughput(prepared: Prepared, trial: Trial) -> float | None:
    return trial.measurement.throughput(prepared.space.objective) if trial.measurement else None


def _command(prepared: Prepared, best: Suggestion) -> tuple[str, ...]:
    placed = place_config(
        prepared.component.launch, prepared.space, best.config, store=prepared.store_url, origin=Origin.USER
    )
    return prepared.request.component, *prepared.component.arguments(placed.launch)
