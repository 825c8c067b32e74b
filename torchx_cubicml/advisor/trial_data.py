"""Trials as training data: outcomes of configs, without facts that leak the target."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from torchx_cubicml.errors import SpaceError
from torchx_cubicml.predictors.features.history import training_row
from torchx_cubicml.records.trial import State
from torchx_cubicml.records.workload import matches
from torchx_cubicml.searchers.base import identity
from torchx_cubicml.space.trainers import STANDARD_PARAMETERS

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping, Sequence

    from torchx_cubicml.records.trial import Config, Scalar, Trial, Value, Workload
    from torchx_cubicml.space import SearchSpace


def nearest(trials: Iterable[Trial], workload: Workload, *, count: int) -> list[Trial]:
    """Return the ``count`` trials that declare the most facts of ``workload``, of those alike the latest."""
    trials = list(trials)
    if len(trials) <= count:
        return trials
    facts = set(workload.items())
    shared: dict[int, int] = {}
    for trial in trials:
        if id(trial.workload) not in shared:
            shared[id(trial.workload)] = len(facts & set(trial.workload.items()))
    trials.sort(key=lambda trial: (shared[id(trial.workload)], trial.ended_at or trial.started_at, trial.trial_id))
    return trials[-count:]


def telling(trials: Sequence[Trial], workload: Workload, *, count: int) -> list[Trial]:
    """Return the trials ``nearest`` to ``workload``, at least half of them measured where there are as many.

    Of failures alone nothing could be learned of speed, however near they are.
    """
    near = nearest(trials, workload, count=count)
    if 2 * sum(trial.measurement is not None for trial in near) >= len(near) or len(near) == len(trials):
        return near
    measured = nearest((trial for trial in trials if trial.measurement is not None), workload, count=count // 2)
    others = (trial for trial in trials if trial.measurement is None)
    return [*measured, *nearest(others, workload, count=count - len(measured))]


def is_covered(workload: Workload, trials: Iterable[Trial]) -> bool:
    """Return whether each fact of ``workload`` is one that trials of other workloads declare, if only some of them."""
    unseen = set(workload.items())
    for other in {id(trial.workload): trial.workload for trial in trials}.values():
        if other != workload:
            unseen -= set(other.items())
    return not unseen


# What a launch finds, whatever its config: the latest value stands for the next launch.
_ENVIRONMENT = frozenset({"device", "torch_version", "python_version", "scheduler"})


def leaking_facts(own: Iterable[Trial], known: set[str]) -> set[str]:
    """Return observed facts that differ between trials of one workload though no parameter sets them.

    They follow from the config or from the machine of the day, so a config that was not launched has none.
    """
    seen: defaultdict[str, set[Value]] = defaultdict(set)
    for trial in own:
        for name, value in trial.observed.items():
            seen[name].add(value)
    return {name for name, values in seen.items() if len(values) > 1 and name not in known | _ENVIRONMENT}


def not_as_requested(own: Iterable[Trial], seen_as: Mapping[str, str]) -> set[str]:
    """Return facts observed otherwise than their parameter was requested, such as a batch split over ranks.

    What is not launched yet can only be told by its request; so the workload's own trials must be, too.
    """
    return {
        fact
        for trial in own
        for name, fact in seen_as.items()
        if fact in trial.observed and name in trial.config and trial.observed[fact] != trial.config[name]
    }


def always_the_same(own: Iterable[Trial], names: set[str], observe: Mapping[str, str]) -> dict[str, Value]:
    """Return the value under which training rows of the workload tell each of ``names``, where it is one."""
    values: defaultdict[str, set[Value]] = defaultdict(set)
    for trial in own if names else ():
        row = training_row(trial, observe=observe)
        for name in names & row.keys():
            values[name].add(row[name])
    return {name: next(iter(seen)) for name, seen in values.items() if len(seen) == 1}


def without(trial: Trial, names: set[str]) -> Trial:
    """Return the trial as if ``names`` had not been observed."""
    if names.isdisjoint(trial.observed):
        return trial
    return replace(trial, observed={name: value for name, value in trial.observed.items() if name not in names})


def latest_observed(own: Sequence[Trial]) -> dict[str, Value]:
    """Return the value of each fact that was observed last."""
    latest: dict[str, Value] = {}
    for trial in sorted(own, key=lambda trial: (trial.started_at, trial.trial_id)):
        latest.update(trial.observed)
    return latest


def with_observed_configs(trials: Sequence[Trial], *, workload: Workload, space: SearchSpace) -> list[Trial]:
    """Return the trials, those of ``workload`` that have no config with the one that was observed.

    A parameter's value is observed under its standard name, or the one that it says. That a request is seen as what it
    was must have shown in another trial, and in none the contrary: a batch may be split over ranks, FSDP on one rank
    runs NO_SHARD. A trial of which one value is not known so stays as it is.

    >>> from torchx_cubicml.space import Parameter, SearchSpace
    >>> from torchx_cubicml.records.trial import Trial
    >>> space = SearchSpace(parameters=(Parameter(name="micro_batch_size", choices=(1, 2)),))
    >>> told, seen = (Trial.completed(workload={}, config={}, tokens_per_second=9.0) for _ in range(2))
    >>> told = replace(told, config={"micro_batch_size": 1}, observed={"micro_batch_size": 1})
    >>> seen = replace(seen, observed={"micro_batch_size": 2, "device": "H100"})
    >>> [dict(trial.config) for trial in with_observed_configs([told, seen], workload={}, space=space)]
    [{'micro_batch_size': 1}, {'micro_batch_size': 2}]
    """
    seen_as = {
        item.name: item.observe or item.name
        for item in space.parameters
        if item.observe or item.name in STANDARD_PARAMETERS
    }
    own = [trial for trial in trials if matches(trial, workload)]
    bare = {id(trial) for trial in own if not trial.config}
    known = len(seen_as) == len(space.parameters)
    if not bare or not known or not all(_is_seen_as_requested(own, *pair) for pair in seen_as.items()):
        return list(trials)
    return [replace(trial, config=_observed(trial, seen_as)) if id(trial) in bare else trial for trial in trials]


def _is_seen_as_requested(own: Sequence[Trial], name: str, fact: str) -> bool:
    pairs = [
        (_spread(trial.config[name]), _spread(trial.observed[fact]))
        for trial in own
        if name in trial.config and fact in trial.observed
    ]
    return bool(pairs) and all(requested == observed for requested, observed in pairs)


def _observed(trial: Trial, seen_as: Mapping[str, str]) -> dict[str, Value]:
    found = {name: trial.observed[fact] for name, fact in seen_as.items() if fact in trial.observed}
    return found if len(found) == len(seen_as) else {}


def _spread(value: Value) -> Value:
    """Return one value for a tuple whose entries are all alike: asking for it per layer asks for the same."""
    return value[0] if isinstance(value, tuple) and len(set(value)) == 1 else value


_SETTLES_AT_ONCE, _SETTLES_TWICE = {State.TIMEOUT, State.COMPLETED}, {State.USER_ERROR, State.UNKNOWN}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigOutcome:
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


def records_of(space: SearchSpace, own: Sequence[Trial], pinned: Mapping[str, Scalar]) -> dict[Hashable, ConfigOutcome]:
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


def _record(config: Config, row: bytes, trials: Sequence[Trial], objective: str) -> ConfigOutcome:
    values = [trial.measurement.throughput(objective) if trial.measurement else None for trial in trials]
    lost = [trial for trial, value in zip(trials, values, strict=True) if trial.state.ended and value is None]
    told = sorted(
        (value, trial.trial_id, trial.measurement.uncertainty)
        for trial, value in zip(trials, values, strict=True)
        if value is not None and trial.measurement is not None
    )
    return ConfigOutcome(
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
