"""CubicML's outer loop: suggest, launch, record, refit, round after round (arXiv 2409.04585, section 3).

The truth is in the store: what to launch next is worked out anew before each launch, from the trials alone.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from torchx_cubicml.advisor import Suggestion, best_known, suggest
from torchx_cubicml.comparison import Comparison, compare, repeats_of
from torchx_cubicml.errors import LaunchError
from torchx_cubicml.event import Event, EventKind
from torchx_cubicml.history import config_key, matches
from torchx_cubicml.launch import read_config
from torchx_cubicml.launch.app import ComponentLaunch
from torchx_cubicml.launch.jobs import JobEnd, JobRunner
from torchx_cubicml.noise import repeat_noise
from torchx_cubicml.rewriter import place_config
from torchx_cubicml.space_file import read_space
from torchx_cubicml.store import TrialStore, absolute_url, read_trials
from torchx_cubicml.trial import Origin, State, new_id

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torchx_cubicml.launch.jobs import JobOutcome
    from torchx_cubicml.space import SearchSpace
    from torchx_cubicml.trial import Config, Trial, Workload

READ_DEADLINE_S = 60.0
_AFTER_ALL_OTHERS = 10**9  # sequence of an end that the tuner writes in the job's place


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneRequest:
    """What a user asks of a tune.

    Args:
        component: the TorchX component to launch, such as ``dist.ddp``.
        component_args: its arguments, script arguments included.
        space: path of the space file.
        store: URL of the store.
        scheduler: name of a TorchX scheduler.
        scheduler_args: its options, as ``-cfg`` of ``torchx run``.
        launches: how many launches may be made, confirmations included, >= 1.
        repeats: measurements of the user's own config and of the winner before a gain is claimed, >= 1.
        trial_timeout_s: seconds after which a launch is cancelled, queueing included.
        step_limit: optimizer steps after which each launch ends; ``None`` lets the script end by itself.
        scratch: folder that ``{scratch}`` in ``[tune]`` stands for; empty for one in the system's temporary folder.
        seed: of the random numbers.
    """

    component: str
    component_args: tuple[str, ...]
    space: str
    store: str
    scheduler: str
    scheduler_args: str = ""
    launches: int = 16
    repeats: int = 3
    trial_timeout_s: float = 3600.0
    step_limit: int | None = None
    scratch: str = ""
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A request that was checked: everything a launch needs."""

    request: TuneRequest
    component: ComponentLaunch
    space: SearchSpace
    workload: Workload
    current: Config
    store_url: str
    scratch: str


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
        comparison: the user's own config against the winner; ``None`` where either was never measured.
        best: the winner by posterior mean; ``None`` where nothing was measured.
        launches: launches made.
        device_hours: wall hours of the launches times their world size.
        command: the user's command with the winner's config, to follow ``torchx run``; empty without a winner.
    """

    comparison: Comparison | None
    best: Suggestion | None
    launches: int
    device_hours: float
    command: tuple[str, ...]


def prepare(request: TuneRequest) -> Prepared:
    """Check a request, reading the space file and the command.

    Raises:
        CubicMLError: something in it is not legal.
    """
    if request.launches < 1 or request.repeats < 1:
        raise LaunchError(f"launches and repeats must be >= 1, got {request.launches} and {request.repeats}")
    space = read_space(request.space)
    component = ComponentLaunch.parse(request.component, request.component_args)
    workload, current = read_config(component.launch, space)
    space.bind(workload=workload, current=current)  # an impossible space is told before anything is launched
    return Prepared(
        request=request,
        component=component,
        space=space,
        workload=workload,
        current=current,
        store_url=absolute_url(request.store, for_launch=True),
        scratch=request.scratch or str(Path(tempfile.gettempdir()) / "torchx-cubicml"),
    )


def tune(prepared: Prepared) -> Iterator[Launching | Ended | TuneResult]:
    """Launch within the budget, yielding each launch as it begins and ends, and the result at last.

    Raises:
        LaunchError: the first launch fails by the user's own error, or a launch leaves no record.
        StoreError: the store cannot be read or written.
    """
    request = prepared.request
    device_seconds, made = 0.0, 0
    logs = str(Path(prepared.scratch) / "logs")
    with JobRunner(request.scheduler, scheduler_args=request.scheduler_args, log_dir=logs) as jobs:
        while made < request.launches:
            planned = next_launch(prepared, _trials(prepared), launches_left=request.launches - made)
            if planned is None:
                break
            made += 1
            yield Launching(number=made, purpose=planned[0], suggestion=planned[1])
            trial, outcome = _launch(prepared, planned[1], jobs)
            device_seconds += outcome.wall_s * (prepared.component.launch.world_size or 1)
            throughput = trial.measurement.throughput(prepared.space.objective) if trial.measurement else None
            yield Ended(number=made, trial=trial, throughput=throughput)
            if made == 1 and trial.state is State.USER_ERROR:
                raise LaunchError(_with_lines(f"the first launch failed: {trial.reason}", outcome))
    yield _result(prepared, _trials(prepared), launches=made, device_hours=device_seconds / 3600)


def next_launch(prepared: Prepared, trials: Sequence[Trial], *, launches_left: int) -> tuple[str, Suggestion] | None:
    """Return why and what to launch next, worked out from the trials alone; ``None`` when nothing is left to learn.

    The user's own config comes first. The last launches measure it and the winner again, so that a gain can be told
    from noise.
    """
    space, workload, current = prepared.space, prepared.workload, prepared.current
    of_workload = [trial for trial in trials if matches(trial, workload)]
    own = _own_config(current)
    if not any(config_key(trial.config) == config_key(current) for trial in of_workload):
        return "baseline", own
    seed = prepared.request.seed + len(trials)
    best = best_known(space, workload=workload, current=current, trials=trials, seed=seed)
    repeats = _lacking_repeats(prepared, of_workload, [own] if best is None else [own, best])
    if len(repeats) < launches_left:
        found = suggest(space, workload=workload, current=current, trials=trials, count=1, seed=seed)
        if found:
            return "search", found[0]
    return ("confirm", repeats[0]) if repeats else None


def _own_config(current: Config) -> Suggestion:
    return Suggestion(
        config=current,
        throughput=None,
        low=None,
        high=None,
        probability_to_fit=1.0,
        reason="your own config",
        n_trials=0,
    )


def _lacking_repeats(
    prepared: Prepared, of_workload: Sequence[Trial], contenders: Sequence[Suggestion]
) -> list[Suggestion]:
    """Return each contender as often as it lacks measurements, taken in turn, the least measured first."""
    lacking: dict[tuple[int, str], Suggestion] = {}
    for contender in contenders:
        measured = repeats_of(of_workload, contender.config, objective=prepared.space.objective)
        have = len(measured.throughputs) if measured is not None else 0
        for repeat in range(have, prepared.request.repeats):
            lacking[repeat, config_key(contender.config)] = contender
    return [lacking[key] for key in sorted(lacking)]


def _launch(prepared: Prepared, suggestion: Suggestion, jobs: JobRunner) -> tuple[Trial, JobOutcome]:
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
    store.append(
        Event(
            kind=EventKind.PLANNED,
            launch_id=launch_id,
            writer="tune",
            time=_now(),
            workload=prepared.workload,
            config=suggestion.config,
            origin=Origin.TUNE,
            suggestion=suggestion.to_json(),
        )
    )
    outcome = jobs.run(prepared.component.build(placed.launch, placed.contract), timeout_s=request.trial_timeout_s)
    return _ended_trial(prepared, store, launch_id, outcome), outcome


def _ended_trial(prepared: Prepared, store: TrialStore, launch_id: str, outcome: JobOutcome) -> Trial:
    trial = _find(prepared, launch_id)
    if trial.state.ended:
        return trial
    if trial.state is State.PLANNED and outcome.end is not JobEnd.TIMED_OUT:
        raise LaunchError(_with_lines(f"the job {outcome.end} and left no record of itself", outcome))
    store.append(
        Event(
            kind=EventKind.ENDED,
            trial_id=trial.trial_id,
            launch_id=launch_id,
            sequence=_AFTER_ALL_OTHERS,
            writer="tune",
            time=_now(),
            state=State.TIMEOUT if outcome.end is JobEnd.TIMED_OUT else State.UNKNOWN,
            reason=f"the job {outcome.end} without a word from the training",
        )
    )
    return _find(prepared, launch_id)


def _result(prepared: Prepared, trials: Sequence[Trial], *, launches: int, device_hours: float) -> TuneResult:
    space, workload, current = prepared.space, prepared.workload, prepared.current
    of_workload = [trial for trial in trials if matches(trial, workload)]
    best = best_known(space, workload=workload, current=current, trials=trials, seed=prepared.request.seed)
    command: tuple[str, ...] = ()
    comparison = None
    if best is not None:
        launch = place_config(
            prepared.component.launch, space, best.config, store=prepared.store_url, origin=Origin.USER
        ).launch
        command = (prepared.request.component, *prepared.component.arguments(launch))
        measured = [repeats_of(of_workload, config, objective=space.objective) for config in (current, best.config)]
        if measured[0] is not None and measured[1] is not None:
            noise = repeat_noise(of_workload, objective=space.objective)
            comparison = compare(measured[0], measured[1], objective=space.objective, noise=noise)
    return TuneResult(comparison=comparison, best=best, launches=launches, device_hours=device_hours, command=command)


def _find(prepared: Prepared, launch_id: str) -> Trial:
    found = next((trial for trial in _trials(prepared) if trial.launch_id == launch_id), None)
    if found is None:
        raise LaunchError(f"the launch {launch_id} is missing from the store {prepared.store_url}")
    return found


def _trials(prepared: Prepared) -> list[Trial]:
    return read_trials(prepared.store_url, deadline_s=READ_DEADLINE_S)[0]


def _with_lines(sentence: str, outcome: JobOutcome) -> str:
    if not outcome.last_lines:
        return sentence
    return "\n".join([f"{sentence}; its last lines were:", *(f"  {line}" for line in outcome.last_lines)])


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
