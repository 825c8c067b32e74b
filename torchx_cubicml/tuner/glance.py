"""A tune at one moment, for display: what is in flight, the best so far, and what is left."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchx_cubicml.tuner.steps import InFlight, Waiting

if TYPE_CHECKING:
    from datetime import datetime

    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.tuner.budget import Spent
    from torchx_cubicml.tuner.flight import Flight
    from torchx_cubicml.tuner.flights import Flights
    from torchx_cubicml.tuner.request import Prepared
    from torchx_cubicml.tuner.state import Books


def glance(prepared: Prepared, books: Books, flights: Flights, *, spent: Spent, best: Trial | None) -> Waiting:
    """Return what is to be seen while a tune waits; ``best`` is the fastest trial so far."""
    budget, parallel, now = prepared.request.budget, prepared.request.parallel, books.now()
    objective = prepared.space.objective
    left = budget.launches_left(spent, parallel=parallel) if spent.launch_hours else 0
    waves = (left + len(flights.under_way)) / parallel
    return Waiting(
        in_flight=tuple(
            _shown(flight, now, books.ledger.of_launch(flight.launch_id), objective) for flight in flights.under_way
        ),
        best=throughput_of(best, objective),
        best_config=best.config if best is not None else None,
        budget_left=budget.told_left(spent),
        time_left_s=waves * spent.launch_hours * 3600 if spent.launch_hours else None,
    )


def throughput_of(trial: Trial | None, objective: str) -> float | None:
    """Return what a trial measured in the unit of the objective; ``None`` where it did not, or there is no trial."""
    return trial.measurement.throughput(objective) if trial is not None and trial.measurement else None


def _shown(flight: Flight, now: datetime, trial: Trial | None, objective: str) -> InFlight:
    return InFlight(
        number=flight.number,
        purpose=flight.purpose,
        config=flight.config,
        phase="ending" if flight.doom or flight.ended else str(flight.state.phase) if flight.state else "submitted",
        since_s=(now - flight.since).total_seconds(),
        expected=flight.suggestion.throughput if flight.suggestion is not None else None,
        measured=throughput_of(trial, objective),
        uncertainty=trial.measurement.uncertainty if trial is not None and trial.measurement else 0.0,
    )
