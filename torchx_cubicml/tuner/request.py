"""Request of a tune, checked before anything is launched."""

from __future__ import annotations

import getpass
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from torchx_cubicml.advisor import DEFAULT_METHOD, ProposalMethod
from torchx_cubicml.errors import LaunchError, SpaceError, StoreError
from torchx_cubicml.history.history import History
from torchx_cubicml.history.passes import OF_TUNE, passed
from torchx_cubicml.history.same_training import can_change_batch
from torchx_cubicml.launch import command_history
from torchx_cubicml.launch.component import ComponentLaunch
from torchx_cubicml.launch.config_io import change_for_profiling
from torchx_cubicml.launch.going_on import ResumeSigns
from torchx_cubicml.launch.scheduler import check_takes_command, scheduler_options
from torchx_cubicml.predictors.measurement_error import FEWEST_TO_CLAIM
from torchx_cubicml.records.objective_units import PER_CURRENCY
from torchx_cubicml.space.toml import load_space
from torchx_cubicml.store import absolute_url, read_trials
from torchx_cubicml.store.digest_key import digest_keys
from torchx_cubicml.tuner.budget import Budget
from torchx_cubicml.tuner.kept_training import keep_training

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torchx_cubicml.history.present_command import PresentCommand
    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.records.values import Config, Value, Workload
    from torchx_cubicml.space import SearchSpace

FEWEST_STEPS = 5  # with fewer, no steps are left after warm-up
FEWEST_LAUNCHES = 2 * FEWEST_TO_CLAIM + 1  # for a claim: both sides, and the launch that finds the winner


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneRequest:
    """Request of a tune, as given by the user.

    Args:
        component: the TorchX component to launch, such as ``dist.ddp``.
        component_args: arguments of the component, script arguments included.
        space: path of the space file.
        store: URL of the store.
        scheduler: name of a TorchX scheduler.
        scheduler_args: options of the scheduler, as ``-cfg`` of ``torchx run``.
        budget: budget of the tune, confirmations included.
        repeats: measurements of the user's own config, and of the winner after it was found, >= 1; fewer if they would
            take more than half of a small budget.
        parallel: most launches in flight, >= 1.
        rounds: if true, the next launches wait until all in flight have ended, as in the paper.
        trial_timeout_s: seconds of run time after which a launch is cancelled, > 0.
        queue_timeout_s: seconds in the scheduler's queue after which a launch is cancelled, > 0.
        target_gain: sufficient ratio to the user's own config, > 1; ``None`` to search for the best.
        stop_under: least share by which another launch must be expected to raise the best, > 0; ``None`` for no limit.
        fresh: start over instead of resuming an unfinished tune of the same request.
        workspace: as ``--workspace`` of ``torchx run``; its image is built once.
        step_limit: optimizer steps after which each launch ends; ``None`` lets the script end by itself.
        scratch: folder that replaces ``{scratch}`` in ``[tune]``; empty for a folder of this user in the system's
            temporary folder, from which each launch's part is removed when the launch has ended.
        keeps_command: whether the records keep the command.
        method: method by which launches are chosen after the initial design.
        seed: random seed.
    """

    component: str
    component_args: tuple[str, ...]
    space: str
    store: str
    scheduler: str
    scheduler_args: str = ""
    budget: Budget = field(default_factory=lambda: Budget(launches=16))
    repeats: int = 3
    parallel: int = 1
    rounds: bool = False
    trial_timeout_s: float = 3600.0
    queue_timeout_s: float = 86_400.0
    target_gain: float | None = None
    stop_under: float | None = None
    fresh: bool = False
    workspace: str = ""
    step_limit: int | None = None
    scratch: str = ""
    keeps_command: bool = False
    method: ProposalMethod = DEFAULT_METHOD
    seed: int = 0

    def __post_init__(self) -> None:
        counts = (("repeats", "--repeats", 1), ("parallel", "--parallel", 1), ("step_limit", "--steps", FEWEST_STEPS))
        for name, flag, least in counts:
            value = getattr(self, name)
            if value is not None and value < least:
                raise LaunchError(f"{flag} must be >= {least}, got {value}")
        for name in ("trial", "queue"):
            value = getattr(self, f"{name}_timeout_s")
            if not value > 0:
                raise LaunchError(f"--{name}-timeout must be a positive number of seconds, got {value}")
        if self.stop_under is not None and not self.stop_under > 0:
            raise LaunchError(f"--stop-under must be a share above 0, such as 0.01, got {self.stop_under}")
        if self.target_gain is not None and not self.target_gain > 1:
            raise LaunchError(f"--target-gain must be a ratio above 1, such as 1.2, got {self.target_gain}")

    @property
    def repeats_made(self) -> int:
        """Measurements of each contender, limited so that at least half of the budget is left for search.

        A claim's two are kept all the same, unless the budget is too small for any claim.
        """
        return self.repeats if self.budget.launches is None else self.repeats_within(self.budget.launches)

    def repeats_within(self, launches: int) -> int:
        """Return the measurements of each contender within so many launches."""
        fewest = FEWEST_TO_CLAIM if launches >= FEWEST_LAUNCHES else 1
        return min(self.repeats, max(fewest, launches // 4))

    @property
    def can_claim(self) -> bool:
        """True if the repeats allow a gain to be claimed."""
        return self.repeats_made >= FEWEST_TO_CLAIM


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """Checked request with everything that a launch needs.

    Args:
        request: as given by the user.
        component: the command.
        space: search space, without what would change the training and is not permitted to.
        workload: facts of the launch.
        current: the user's own config.
        command: as a history compares it.
        store_url: absolute URL of the store.
        scratch: folder that replaces ``{scratch}``.
        predictor: name of the predictor chosen for the store, if any.
        notices: what stays as typed although the space file lists other values, and how to let it vary.
    """

    request: TuneRequest
    component: ComponentLaunch
    space: SearchSpace
    workload: Workload
    current: Config
    command: PresentCommand
    store_url: str
    scratch: str
    predictor: str = ""
    notices: tuple[str, ...] = ()

    def history(self, trials: Sequence[Trial], keys: tuple[str, ...] = ()) -> History:
        """Return a history of trials for the command; ``keys`` are those of the store's digests."""
        return History(
            space=self.space,
            workload=self.workload,
            current=self.current,
            trials=trials,
            command=self.command,
            keys=keys,
            predictor=self.predictor,
        )


def prepare(request: TuneRequest) -> Prepared:
    """Check a request and read its space file and command.

    Raises:
        CubicMLError: the request, the space file or the command is not legal, or nothing is left to tune because each
            other config changes the training.
    """
    check_takes_command(request.scheduler)
    space = load_space(request.space)
    parsed = ComponentLaunch.parse(request.component, request.component_args)
    launch = replace(
        parsed.launch,
        scheduler=request.scheduler,
        scheduler_options=scheduler_options(request.scheduler, request.scheduler_args),
        submits=True,
    )
    component = replace(parsed, launch=launch)
    history, url = command_history(component.launch, space), absolute_url(request.store, for_launch=True)
    space, workload, current = history.space, history.workload, history.current
    scratch = request.scratch or str(Path(tempfile.gettempdir()) / f"torchx-cubicml-{getpass.getuser()}")
    placed = change_for_profiling(launch, space, {"scratch": scratch, "launch_id": "tune"})
    if says := ResumeSigns.of(placed).says:
        raise LaunchError(f"a tune compares trainings that begin anew, but {says} goes on with one: leave it out")
    is_free = can_change_batch(space, workload=workload, current=current)
    known = _with_same_work(history, url) if is_free else history
    kept = keep_training(known, component.launch, where=request.space)
    if kept.is_empty:
        raise LaunchError(f"nothing is left to tune: {' '.join(kept.notices)}")
    space = kept.space
    request.method.check(space.bind(workload=workload, current=current))
    _check_price(space, {**workload, **current}, where=request.space)
    return Prepared(
        request=request,
        component=component,
        space=space,
        workload=workload,
        current=current,
        command=history.command,
        store_url=url,
        scratch=scratch,
        notices=kept.notices,
    )


def _with_same_work(history: History, url: str) -> History:
    """Return the history of the recorded trials that did the same work; none of a store that cannot be read now."""
    with suppress(StoreError):
        recorded = replace(history, trials=read_trials(url)[0], keys=digest_keys(url))
        return passed(recorded, *OF_TUNE)
    return history


def _check_price(space: SearchSpace, values: Mapping[str, Value], *, where: str) -> None:
    """Check that the user's own config has a price, if the objective divides by it: a gain is measured against it."""
    if {space.objective, space.second_objective}.isdisjoint(PER_CURRENCY) or space.prices is None:
        return
    name = space.prices.name
    if space.prices.price(values.get(name)) is None:
        raise SpaceError(f"{where}: prices.{name}: no price for {values.get(name)!r:.60}, the value of your command")
