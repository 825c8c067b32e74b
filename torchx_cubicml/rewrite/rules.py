"""Rules of an ordinary launch: what it may change, and whether the predicted gain is enough; with reasons in words.

A parameter stays as typed if ``[rewrite]`` freezes it, or if it changes what is trained and the space file does not
permit that (``changes_training``). The advisor then searches a space in which the parameter has one value.
``rejection_reason`` compares the predicted gain with ``min_gain`` and the noise, and the memory with ``min_fit``.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from typing import TYPE_CHECKING

from torchx_cubicml.errors import LaunchError
from torchx_cubicml.facts.named_places import NamedPlace, is_remote, places_in
from torchx_cubicml.history.same_training import batch_change, batch_cure, batch_sizes, not_permitted
from torchx_cubicml.records.iso_time import parse_time
from torchx_cubicml.records.resumption import touches_state
from torchx_cubicml.records.trial import Origin
from torchx_cubicml.records.workload import is_same_program, is_same_workload
from torchx_cubicml.space.search_space import RESHARDS

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from datetime import datetime

    from torchx_cubicml.launch import Launch
    from torchx_cubicml.records.suggestion import Suggestion
    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.records.values import Config, Workload
    from torchx_cubicml.space import Parameter, RewriteRules, SearchSpace

_LAYOUT = re.compile(r"(?i)(?:tp|pp|cp|ep|dp_shard|dp_replicate)_degree|sharding|parallel_size|mesh|partition|kernel")
_PLAIN_GAIN = 1.25  # lower end of the interval of a gain that no slow node explains
ENOUGH_OF_BASELINE = 3  # measurements of the user's own config from which no launch is spent on it
_LOW_END = 1.0  # least lower end of the 80 % interval of a gain: a gain with 90 % probability


def held(space: SearchSpace, *, goes_on: bool = False) -> tuple[str, ...]:
    """Return the names of parameters that an ordinary launch leaves as typed.

    Args:
        space: search space as the user wrote it.
        goes_on: whether the launch goes on with an earlier training: then all stay but those that touch neither the
            order of the samples nor the state, and those of the layout where ``[rewrite]`` says that it may change.
    """
    frozen = {*space.rewrite.freeze, *not_permitted(space), *space.scheduler_options}
    if goes_on:
        frozen |= {item.name for item in space.parameters if not _is_free_to_resume(item, space.rewrite.resume)}
    return tuple(item.name for item in space.parameters if item.name in frozen)


def _is_free_to_resume(parameter: Parameter, resume: Collection[str]) -> bool:
    follows = parameter.derive is not None  # from the others
    is_layout = RESHARDS in resume and any(map(_LAYOUT.search, parameter.known_names))
    return follows or parameter.name in resume or is_layout or not all(map(touches_state, parameter.known_names))


def check_outputs(launch: Launch) -> None:
    """Check that what a failed launch leaves could be moved aside before the launch starts again as typed.

    Files on this machine can be renamed. What is written to a remote store cannot.

    Raises:
        LaunchError: a flag for an output names a remote place.

    >>> from torchx_cubicml.launch import Launch
    >>> check_outputs(Launch(program="train.py", script_args=("--load-checkpoint", "s3://a", "--out", "runs/1")))
    """
    for name, value in places_in(launch.script_args, NamedPlace.OUTPUT):
        if is_remote(value):
            raise LaunchError(
                "a rewritten launch that fails is started again as typed, but what it left in "
                f"{value.partition('://')[0]}:// ({name}) could not be moved aside before; "
                "set retry_as_typed = false under [rewrite] to rewrite it all the same"
            )


def batch_change_reason(space: SearchSpace, *, workload: Workload, current: Config, config: Config) -> str:
    """Return a message if ``config`` changes the global batch size without permission; empty if it does not."""
    change = batch_change(space, workload=workload, current=current, config=config)
    if change is None:
        return ""
    sizes = [item.name for item in batch_sizes(space) if config.get(item.name) != current.get(item.name)]
    return f"the best known config changes the global batch size {change}; {batch_cure(space, sizes)}"


def rejection_reason(suggestion: Suggestion, rules: RewriteRules) -> str:
    """Return the reason for not changing the user's command to a suggestion; empty if there is none."""
    if suggestion.probability_to_fit < rules.min_fit:
        return (
            f"the best known config fits in memory with a probability of only {suggestion.probability_to_fit:.0%}, "
            f"below min_fit, {rules.min_fit:.0%}"
        )
    gain, low = suggestion.gain, suggestion.gain_low
    # Without a gain, the user's own config is known to run out of memory, so any config that fits is better.
    if gain is None or low is None:
        return ""
    if low <= _LOW_END:
        return f"the best predicted gain, {gain - 1:+.1%}, is within the noise"
    if gain - 1 < rules.min_gain:
        return f"the best predicted gain, {gain - 1:+.1%}, is below min_gain, {rules.min_gain:.1%}"
    return ""


def explores(space: SearchSpace, *, workload: Workload, n_trials: int) -> bool:
    """Return whether the next launch explores.

    The draw is a hash of the workload and its number of launches, so that a dry run shows what the launch will do.
    """
    drawn = hashlib.sha256(json.dumps([sorted(workload.items()), n_trials]).encode()).digest()
    return int.from_bytes(drawn[:8]) < space.rewrite.explore * 2**64


def measures_baseline(suggestion: Suggestion, rules: RewriteRules, *, n_launched: int) -> bool:
    """Return whether the next launch runs as typed, because the gain rests on few measurements of the own config.

    A plain gain, whose 80 % interval begins at 1.25 or above, needs no further measurement: a slow node seldom costs a
    fifth. An own config that runs out of memory, so that there is no gain, is not run again.

    Args:
        suggestion: what would run otherwise.
        rules: the user's.
        n_launched: known launches of the workload, so that a dry run shows what the launch will do.
    """
    low = suggestion.gain_low
    if not rules.baseline_every or low is None or low >= _PLAIN_GAIN or suggestion.n_baseline >= ENOUGH_OF_BASELINE:
        return False
    return n_launched % rules.baseline_every == rules.baseline_every - 1


def explored_device_hours(trials: Sequence[Trial], *, workload: Workload, now: datetime) -> float:
    """Return the device hours (wall hours times world size) of the launches of the workload's program that explored.

    A launch in flight counts from its start until ``now``, limited to the longest one that has ended: it may be lost.
    """
    own = [trial for trial in trials if is_same_program(trial, workload)]
    longest = max((hours for trial in own if (hours := _hours(trial, None)) is not None), default=math.inf)
    spent = 0.0
    for trial in own:
        if trial.origin is Origin.EXPLORE:
            hours = _hours(trial, now) or 0.0
            spent += (hours if trial.state.ended else min(hours, longest)) * _devices(trial)
    return spent


def expected_device_hours(trials: Sequence[Trial], workload: Workload) -> float:
    """Return the most device hours of any ended launch of a workload; 0 if none is known."""
    own = [trial for trial in trials if is_same_workload(trial, workload)]
    return max(((_hours(trial, None) or 0.0) * _devices(trial) for trial in own), default=0.0)


def _hours(trial: Trial, now: datetime | None) -> float | None:
    start, end = parse_time(trial.started_at), parse_time(trial.ended_at) if trial.ended_at else now
    return max((end - start).total_seconds(), 0.0) / 3600 if start is not None and end is not None else None


def _devices(trial: Trial) -> int:
    size = trial.fact("world_size")
    return size if isinstance(size, int) and size > 0 else 1
