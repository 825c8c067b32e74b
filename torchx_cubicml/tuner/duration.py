"""Time that a tune will take, told before its first launch from earlier launches of the same command."""

from __future__ import annotations

import math
from statistics import median
from typing import TYPE_CHECKING

from torchx_cubicml.predictors.features.history import config_key
from torchx_cubicml.records.iso_time import parse_time
from torchx_cubicml.records.job_time import seconds_text
from torchx_cubicml.records.standard_names import ACCUMULATION, MICRO_BATCH
from torchx_cubicml.records.trial import State
from torchx_cubicml.space.constraints import is_count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.tuner.request import Prepared

_FACTORS = (MICRO_BATCH, ACCUMULATION)
_STEP_LIMIT = "step limit"  # reason of a launch that `--steps` has ended early
_WORTH_SAYING = 1.5  # times the work of the user's own step


def duration_text(prepared: Prepared, before: Sequence[Trial]) -> str:
    """Return the time that the tune will take, in words; empty where no earlier launch tells.

    Args:
        prepared: the checked request.
        before: trials of the workload from before this tune.
    """
    runs_s = [seconds for trial in before if (seconds := _run_s(prepared, trial)) is not None]
    if not runs_s:
        return ""
    request, each_s = prepared.request, median(runs_s)
    ran = f"an earlier launch of your config took about {_about(each_s)}"
    steps = "" if request.step_limit is None else f", less with --steps {request.step_limit}"
    if request.budget.launches is not None:
        launches, waves = request.budget.launches, math.ceil(request.budget.launches / request.parallel)
        in_turn = "one after another" if request.parallel == 1 else f"{request.parallel} at a time"
        text = f"{launches} launches {in_turn} take about {_about(waves * each_s)}" if launches > 1 else ""
        return f"{ran}: {text or 'one launch takes as long'}, besides queues{steps}"
    devices = prepared.component.launch.world_size or 1
    hours = request.budget.hours or (request.budget.device_hours or 0.0) / devices
    at_once = request.parallel if request.budget.hours is not None else 1
    launches = at_once * int(hours * 3600 / each_s) if each_s > 0 else 0
    enough = f"are enough for about {launches:,} such launches" if launches else "are too few for such a launch"
    return f"{ran}: {request.budget} {enough}{steps}"


def rounds_text(prepared: Prepared) -> str:
    """Return the launches that ``--rounds`` has for rounds, in words; empty without rounds or a budget of launches."""
    request = prepared.request
    launches, first = request.budget.launches, max(request.method.random_launches, 1)
    if not request.rounds or launches is None:
        return ""
    left = max(launches - first - (2 * request.repeats_made - 1), 0)
    return f"{left} of {launches} launches are left for rounds of {request.parallel}, besides start and confirmation"


def more_work_text(prepared: Prepared) -> str:
    """Return the extra work that a step may do, over the user's own, in words; empty where the batch stays."""
    free = [item for item in prepared.space.parameters if item.name in _FACTORS and item.derive is None]
    times = 1.0
    for item in free:
        own, sizes = prepared.current.get(item.name), [size for size in item.choices if is_count(size)]
        times *= max(sizes, default=1) / own if is_count(own) else 1.0
    is_free = any(item.changes_training for item in free) and not prepared.space.derives_batch
    if not is_free or times < _WORTH_SAYING:
        return ""
    return (
        f"changes_training lets a step do up to {times:.3g} times the work of yours: "
        "with the same number of steps, such a launch may take as many times as long"
    )


def _run_s(prepared: Prepared, trial: Trial) -> float | None:
    """Return the seconds of a completed launch of the user's own config, start-up included; ``None`` of any other."""
    start, end = parse_time(trial.started_at), parse_time(trial.ended_at)
    if start is None or end is None or trial.state is not State.COMPLETED or trial.reason == _STEP_LIMIT:
        return None
    seconds = (end - start).total_seconds()
    if seconds <= 0 or config_key(trial.config) != config_key(prepared.current):
        return None
    # A tune's own launch began with its submission. Else the launcher started before it, about as long as the process.
    started_s = trial.measurement.startup_s if trial.measurement is not None and not trial.launch_id else None
    return seconds + (started_s or 0.0)


def _about(seconds: float) -> str:
    """Return a duration to two digits.

    >>> _about(13.4), _about(161.0), _about(181.0), _about(5000.0)
    ('13 s', '2 min 40 s', '3 min', '1 h 23 min')
    """
    return seconds_text(float(f"{seconds:.2g}")).removesuffix(" 0 s").removesuffix(" 0 min")
