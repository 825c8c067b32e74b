"""What a user asks of a tune, checked before anything is launched."""

from __future__ import annotations

import getpass
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from torchx_cubicml.errors import LaunchError
from torchx_cubicml.launch import read_config
from torchx_cubicml.launch.app import ComponentLaunch
from torchx_cubicml.space_file import read_space
from torchx_cubicml.store import absolute_url

if TYPE_CHECKING:
    from torchx_cubicml.space import SearchSpace
    from torchx_cubicml.trial import Config, Workload

FEWEST_STEPS = 5  # under it nothing is left after warm-up


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
        repeats: measurements of the user's own config, and of the winner after it was found, >= 1; fewer are made where
            they would take more than half of a small budget.
        trial_timeout_s: seconds after which a launch is cancelled, queueing included, > 0.
        step_limit: optimizer steps after which each launch ends; ``None`` lets the script end by itself.
        scratch: folder that ``{scratch}`` in ``[tune]`` stands for; empty for one of this user's in the system's
            temporary folder, from which each launch's part is removed when it ended.
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

    def __post_init__(self) -> None:
        for name, least in (("launches", 1), ("repeats", 1), ("step_limit", FEWEST_STEPS)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise LaunchError(f"{name.replace('_', ' ')} must be >= {least}, got {value}")
        if not self.trial_timeout_s > 0:
            raise LaunchError(f"the trial timeout must be a positive number of seconds, got {self.trial_timeout_s}")

    @property
    def repeats_made(self) -> int:
        """Measurements of each contender, such that at least half of the budget is left to search."""
        return min(self.repeats, max(1, self.launches // 4))


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A request that was checked: everything a launch needs; ``predictor`` as chosen for the store, if one was."""

    request: TuneRequest
    component: ComponentLaunch
    space: SearchSpace
    workload: Workload
    current: Config
    store_url: str
    scratch: str
    predictor: str = ""


def prepare(request: TuneRequest) -> Prepared:
    """Check a request, reading the space file and the command.

    Raises:
        CubicMLError: something in it is not legal.
    """
    space = read_space(request.space)
    parsed = ComponentLaunch.parse(request.component, request.component_args)
    component = replace(parsed, launch=replace(parsed.launch, scheduler=request.scheduler))
    workload, current = read_config(component.launch, space)
    space.bind(workload=workload, current=current)  # an impossible space is told before anything is launched
    return Prepared(
        request=request,
        component=component,
        space=space,
        workload=workload,
        current=current,
        store_url=absolute_url(request.store, for_launch=True),
        scratch=request.scratch or str(Path(tempfile.gettempdir()) / f"torchx-cubicml-{getpass.getuser()}"),
    )
