"""What happened to each config of the space on one workload, and when launching it again would teach nothing."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from torchx_cubicml.errors import SpaceError
from torchx_cubicml.records.trial import State
from torchx_cubicml.searchers.base import identity

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    from torchx_cubicml.records.trial import Config, Scalar, Trial
    from torchx_cubicml.space import SearchSpace

_SETTLES_AT_ONCE, _SETTLES_TWICE = {State.TIMEOUT, State.COMPLETED}, {State.USER_ERROR, State.UNKNOWN}


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What happened to one config of the space on this workload.

    Args:
        config: made of the space's own literals, never of what a store holds.
        measured: throughputs of the whole job, the lowest first.
        trial_ids: of the trials that measured them, in the same order.
        uncertainties: of their logarithms, as each run told it, likewise.
        row: its choice indices as ``np.intp``, in bytes.
        out_of_memory: whether it ever ran out of memory.
        open: whether it is planned or running.
        failed: whether it ended without a measurement in a way that it would again; see ``_is_given_up``.
        erred: whether it ever ended by an error or without a word, so that it may end so again.
    """

    config: Config
    row: bytes
    measured: tuple[float, ...]
    out_of_memory: bool
    open: bool
    failed: bool
    trial_ids: tuple[str, ...] = ()
    uncertainties: tuple[float, ...] = ()
    erred: bool = False

    @property
    def settled(self) -> bool:
        """Whether launching it again would teach nothing new."""
        return bool(self.measured) or self.out_of_memory or self.open or self.failed

    @property
    def tried(self) -> bool:
        """Whether a launch of it ended otherwise than by being broken off."""
        return bool(self.measured) or self.out_of_memory or self.failed or self.erred


def pinned_choices(space: SearchSpace, current: Config, idle: set[str]) -> dict[str, Scalar]:
    """Return the one choice left to each parameter without effect: the user's own, where one choice can say it."""
    pinned: dict[str, Scalar] = {}
    for parameter in space.parameters:
        value = current.get(parameter.name)
        entry = value[0] if isinstance(value, tuple) and len(set(value)) == 1 else value
        if parameter.name in idle and entry in parameter.choices:
            pinned[parameter.name] = parameter.choices[parameter.choices.index(entry)]
    return pinned


def narrowed(space: SearchSpace, pinned: Mapping[str, Scalar]) -> SearchSpace:
    """Return the space with those choices alone."""
    if not pinned:
        return space
    kept = [replace(item, choices=(pinned[item.name],)) if item.name in pinned else item for item in space.parameters]
    return replace(space, parameters=tuple(kept))


def records_of(space: SearchSpace, own: Sequence[Trial], pinned: Mapping[str, Scalar]) -> dict[Hashable, Record]:
    """Return what happened to each config of ``space`` that was launched, by its identity.

    Args:
        space: bound, and narrowed to ``pinned``.
        own: trials of the workload.
        pinned: see ``pinned_choices``; trials that differ in these alone are of one config.
    """
    groups: defaultdict[Hashable, list[Trial]] = defaultdict(list)
    found: dict[Hashable, tuple[Config, bytes]] = {}
    read: dict[int, tuple[Config, bytes] | None] = {}  # trials read from a store share what is alike
    for trial in own:
        if id(trial.config) not in read:
            read[id(trial.config)] = _placed(space, with_choices(trial.config, pinned))
        placed = read[id(trial.config)]
        if placed is not None:
            key = identity(placed[0])
            found[key] = placed
            groups[key].append(trial)
    return {key: _record(*found[key], group, space.objective) for key, group in groups.items()}


def with_choices(config: Config, pinned: Mapping[str, Scalar]) -> Config:
    """Return ``config`` with the pinned choices in place of its own, for each entry of a per-layer value."""
    changed = {}
    for name in pinned.keys() & config.keys():
        value = config[name]
        changed[name] = (pinned[name],) * len(value) if isinstance(value, tuple) else pinned[name]
    return {**config, **changed}


def _record(config: Config, row: bytes, trials: Sequence[Trial], objective: str) -> Record:
    values = [trial.measurement.throughput(objective) if trial.measurement else None for trial in trials]
    lost = [trial for trial, value in zip(trials, values, strict=True) if trial.state.ended and value is None]
    told = sorted(
        (value, trial.trial_id, trial.measurement.uncertainty)
        for trial, value in zip(trials, values, strict=True)
        if value is not None and trial.measurement is not None
    )
    return Record(
        config=config,
        row=row,
        measured=tuple(value for value, _, _ in told),
        trial_ids=tuple(trial_id for _, trial_id, _ in told),
        uncertainties=tuple(uncertainty for _, _, uncertainty in told),
        out_of_memory=any(trial.state is State.OUT_OF_MEMORY for trial in trials),
        open=any(not trial.state.ended for trial in trials),
        failed=_is_given_up(lost),
        erred=any(trial.state in _SETTLES_TWICE for trial in lost),
    )


def _is_given_up(lost: Sequence[Trial]) -> bool:
    """Whether launches that ended without a throughput say that the next would, too.

    One that was too slow, or of which nothing was to be measured, does. Of an error nobody knows whether the config is
    to blame before it happens twice. What the machines, or somebody, broke off says nothing.
    """
    if any(trial.state in _SETTLES_AT_ONCE or trial.measurement is not None for trial in lost):
        return True
    return sum(trial.state in _SETTLES_TWICE for trial in lost) > 1


def _placed(space: SearchSpace, config: Config) -> tuple[Config, bytes] | None:
    """Return the legal config that ``config`` asks for, made of the space's literals; ``None`` where there is none.

    Values of parameters that the space does not hold are passed over: they were recorded under an older file.
    """
    try:
        vector = space.encode(config)
        found = space.decode(vector)
    except SpaceError:
        return None
    if found is None or any(config.get(name) != value for name, value in found.items()):
        return None
    return found, np.array(vector, dtype=np.intp).tobytes()
