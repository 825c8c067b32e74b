"""One launch of a tune: planned in the store, run on the scheduler, and closed where its job could not close it."""

from __future__ import annotations

import re
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from torchx_cubicml.errors import LaunchError
from torchx_cubicml.event import Event, EventKind
from torchx_cubicml.launch.jobs import JobEnd
from torchx_cubicml.masking import mask
from torchx_cubicml.rewriter import place_config
from torchx_cubicml.store import TrialStore, read_trials
from torchx_cubicml.trial import Origin, State, new_id

if TYPE_CHECKING:
    from torchx_cubicml.advisor import Suggestion
    from torchx_cubicml.launch.jobs import JobOutcome, JobRunner
    from torchx_cubicml.trial import Trial
    from torchx_cubicml.tuner.request import Prepared

READ_DEADLINE_S = 60.0
_AFTER_ALL_OTHERS = 10**9  # sequence of an end that the tuner writes in the job's place
_OF_A_RANK = re.compile(r"\[[^\]]*\d\]:")  # what torchrun puts before the lines of its workers
_LINES_TOLD = 15


def launch(prepared: Prepared, suggestion: Suggestion, jobs: JobRunner) -> tuple[Trial, JobOutcome]:
    """Launch one config, wait for its end, and return its trial.

    Raises:
        LaunchError: the scheduler refuses the job, or it leaves no record of itself.
        KeyboardInterrupt: the user ends the tune; the job is cancelled and its trial closed first.
    """
    request = prepared.request
    launch_id = new_id("launch")
    store = TrialStore(prepared.store_url)
    placed = place_config(
        prepared.component.launch,
        prepared.space,
        suggestion.config,
        store=prepared.store_url,
        origin=Origin.TUNE,
        launch_id=launch_id,
        suggestion=suggestion,
        step_limit=request.step_limit,
        scratch=prepared.scratch,
    )
    app = prepared.component.build(placed.launch, placed.contract)
    planned = Event(
        kind=EventKind.PLANNED,
        launch_id=launch_id,
        writer="tune",
        time=_now(),
        workload=prepared.workload,
        config=suggestion.config,
        origin=Origin.TUNE,
        suggestion=suggestion.to_json(),
    )
    store.append(planned)
    try:
        outcome = jobs.run(app, timeout_s=request.trial_timeout_s)
    except KeyboardInterrupt:
        _close(prepared, store, launch_id, State.STOPPED_EARLY, "interrupted by the user")
        raise
    except LaunchError as error:
        _close(prepared, store, launch_id, State.INFRASTRUCTURE, str(error))
        raise
    if not request.scratch:
        shutil.rmtree(Path(prepared.scratch) / launch_id, ignore_errors=True)
    return _ended_trial(prepared, store, launch_id, outcome), outcome


def read_store(prepared: Prepared) -> list[Trial]:
    """Return every trial of the store.

    Raises:
        StoreError: it cannot be read.
    """
    return read_trials(prepared.store_url, deadline_s=READ_DEADLINE_S)[0]


def with_last_lines(sentence: str, outcome: JobOutcome) -> str:
    """Return ``sentence`` and the last lines that the training itself wrote to stderr."""
    of_ranks = [line for line in outcome.last_lines if _OF_A_RANK.search(line)]
    lines = (of_ranks or list(outcome.last_lines))[-_LINES_TOLD:]
    if not lines:
        return sentence
    return "\n".join([f"{sentence}; its last lines were:", *(f"  {mask(line)}" for line in lines)])


def _ended_trial(prepared: Prepared, store: TrialStore, launch_id: str, outcome: JobOutcome) -> Trial:
    if outcome.end is JobEnd.TIMED_OUT:
        reason = f"cancelled after {prepared.request.trial_timeout_s:g} s"
        return _close(prepared, store, launch_id, State.TIMEOUT, reason)
    trial = _find(prepared, launch_id)
    if trial.state.ended:
        return trial
    closed = _close(prepared, store, launch_id, State.UNKNOWN, f"the job {outcome.end}, and its training said no more")
    if trial.state is State.PLANNED:
        raise LaunchError(with_last_lines(f"the job {outcome.end} and left no record of itself", outcome))
    return closed


def _close(prepared: Prepared, store: TrialStore, launch_id: str, state: State, reason: str) -> Trial:
    trial = _find(prepared, launch_id)
    if not trial.state.ended or trial.state is State.UNKNOWN:
        end = Event(
            kind=EventKind.ENDED,
            trial_id="" if trial.state is State.PLANNED else trial.trial_id,
            launch_id=launch_id,
            sequence=_AFTER_ALL_OTHERS,
            writer="tune",
            time=_now(),
            state=state,
            reason=reason,
        )
        store.append(end)
    return _find(prepared, launch_id)


def _find(prepared: Prepared, launch_id: str) -> Trial:
    found = next((trial for trial in read_store(prepared) if trial.launch_id == launch_id), None)
    if found is None:
        raise LaunchError(f"the launch {launch_id} is missing from the store {mask(prepared.store_url)}")
    return found


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
