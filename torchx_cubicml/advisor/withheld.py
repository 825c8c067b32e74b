"""Which observed facts are withheld from the predictors, for no config that was not launched has them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

from torchx_cubicml.predictors.features.history import training_row

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torchx_cubicml.records.trial import Trial, Value

# What a launch finds, whatever its config: the latest value stands for the next launch.
_ENVIRONMENT = frozenset({"device", "torch_version", "python_version", "scheduler"})


def consequences(own: Iterable[Trial], known: set[str]) -> set[str]:
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
