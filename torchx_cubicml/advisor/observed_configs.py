"""Configs of launches that were recorded before a space file said what may be tuned: what was seen stands for them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from torchx_cubicml.records.same_workload import matches
from torchx_cubicml.space.trainers import STANDARD_PARAMETERS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torchx_cubicml.records.trial import Trial, Value, Workload
    from torchx_cubicml.space import SearchSpace


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
