"""Overheads of a launch, predicted from earlier ones: queue, start-up, compilation and slow first steps.

Each part has a tree of its own. A node splits by the parameter whose values explain the differences best, if an F-test
says that they do; a leaf predicts its median. So a compiled config is charged with compilation, a busy partition with
its queue, and all others with what they have in common.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field, replace
from statistics import fmean, median
from typing import TYPE_CHECKING, Self

import numpy as np

from torchx_cubicml.predictors.features.rows import choices_of
from torchx_cubicml.records.job_time import MOST_OVERHEAD_S, OVERHEADS, QUEUE_S, Job, TimedJob
from torchx_cubicml.records.workload import is_same_workload

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from numpy.typing import NDArray

    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.records.values import Config, Value, Workload

_SIGNIFICANCE = 0.05  # probability of a split by chance, over all parameters of a node
_PRIOR_SD = 0.1  # of log(1 s + part) between launches of one config, known as well as by two of them
_PRIOR_DEGREES = 2.0
_OF_MEDIAN = 1.25  # standard error of a median over that of a mean


@dataclass(frozen=True, slots=True, kw_only=True)
class PartTree:
    """Tree that predicts one part.

    Args:
        seconds: median of the launches at this node.
        doubt_s: standard error of it, for a config of this node that no branch knows.
        name: parameter by which it splits; empty for a leaf.
        branches: value of the parameter -> tree.
    """

    seconds: float
    doubt_s: float
    name: str = ""
    branches: Mapping[Value, PartTree] = field(default_factory=dict)

    @classmethod
    def of(cls, launches: Sequence[tuple[Config, float]], names: Collection[str]) -> Self:
        """Return the tree of launches, each a config and the seconds of the part; at least one."""
        seconds = median(each for _, each in launches)
        logs = [math.log1p(each) for _, each in launches]
        groups, name = _best_split(launches, names)
        within = _sum_of_squares(logs) if not groups else 0.0
        sd = math.sqrt((_PRIOR_DEGREES * _PRIOR_SD**2 + within) / (_PRIOR_DEGREES + len(logs) - 1))
        doubt_s = _OF_MEDIAN * sd / math.sqrt(len(logs)) * (1.0 + seconds)
        if not groups:
            return cls(seconds=seconds, doubt_s=doubt_s)
        branches = {value: cls.of(group, set(names) - {name}) for value, group in groups.items()}
        of_branches = [branch.seconds for branch in branches.values()]
        between_s = max(of_branches) - min(of_branches)
        return cls(seconds=seconds, doubt_s=max(doubt_s, between_s), name=name, branches=branches)

    def leaf(self, config: Mapping[str, Value | None]) -> PartTree:
        """Return the node that predicts a config."""
        value = config.get(self.name)
        branch = self.branches.get(value) if value is not None else None
        return self if branch is None else branch.leaf(config)

    def names(self) -> set[str]:
        """Return the parameters that the tree reads."""
        return {self.name, *(name for branch in self.branches.values() for name in branch.names())} - {""}


@dataclass(frozen=True, slots=True, kw_only=True)
class OverheadForecast:
    """Overheads of ``n`` configs.

    Args:
        seconds: of all parts, float64 ``[n]``.
        doubt_s: standard error of it, float64 ``[n]``.
        kind: number of the kind of config, ``[n]``; configs of one kind have the same overheads, and the same error.
    """

    seconds: NDArray[np.float64]
    doubt_s: NDArray[np.float64]
    kind: NDArray[np.intp]


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOverhead:
    """Overheads of the launches of one workload.

    Args:
        trees: part -> its tree; a part that no launch knows is missing, and counts as nothing.
    """

    trees: Mapping[str, PartTree]

    @classmethod
    def of(cls, trials: Sequence[Trial]) -> Self:
        """Return the overheads as the trials of one workload recorded them."""
        trees = {}
        for part in OVERHEADS:
            launches = [(each.config, seconds) for each in trials if (seconds := part_of(each, part)) is not None]
            if launches:
                trees[part] = PartTree.of(launches, {name for config, _ in launches for name in config})
        return cls(trees=trees)

    def parts(self, config: Mapping[str, Value]) -> dict[str, float]:
        """Return the predicted seconds of each known part for a config."""
        return {part: tree.leaf(config).seconds for part, tree in self.trees.items()}

    def at(self, rows: Sequence[Mapping[str, Value]]) -> OverheadForecast:
        """Return the overheads of ``rows``."""
        names = sorted({name for tree in self.trees.values() for name in tree.names()})
        found = [_values_of(rows, name) for name in names]
        columns = [index for _, index in found] or [np.zeros((len(rows), 1), dtype=np.intp)]
        kinds, kind = np.unique(np.hstack(columns), axis=0, return_inverse=True)
        values = [
            {name: known[at] for name, (known, _), at in zip(names, found, row, strict=False)} for row in kinds.tolist()
        ]
        leaves = [[tree.leaf(each) for tree in self.trees.values()] for each in values]
        seconds = np.array([sum(leaf.seconds for leaf in each) for each in leaves], dtype=np.float64)
        doubt_s = np.array([math.hypot(*(leaf.doubt_s for leaf in each)) for each in leaves], dtype=np.float64)
        kind = kind.reshape(-1)
        return OverheadForecast(seconds=seconds[kind], doubt_s=doubt_s[kind], kind=kind)

    def timed(self, trial: Trial, job: Job) -> Trial:
        """Return a trial with the job that its throughput is for: its own overheads, but the queue of all alike.

        A queue is as long as others made it; two launches on one machine differ in it by chance.
        """
        parts = self.parts(trial.config)
        own = {part: seconds for part in OVERHEADS[1:] if (seconds := part_of(trial, part)) is not None}
        return replace(trial, timed=TimedJob(job=job, overheads={**parts, **own}))


def with_jobs(trials: Sequence[Trial], job: Job | None, *, workload: Workload) -> list[Trial]:
    """Return the trials; those of the workload with the job that they are judged by, if there is one."""
    if job is None:
        return list(trials)
    own = {id(each) for each in trials if is_same_workload(each, workload)}
    overhead = LaunchOverhead.of([each for each in trials if id(each) in own])
    return [overhead.timed(each, job) if id(each) in own else each for each in trials]


def part_of(trial: Trial, part: str) -> float | None:
    """Return the recorded seconds of one of ``OVERHEADS``; ``None`` where unknown or impossible."""
    value = trial.observed.get(QUEUE_S) if part == QUEUE_S else getattr(trial.measurement, part, None)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= MOST_OVERHEAD_S:
        return None
    return float(value)


def _values_of(rows: Sequence[Mapping[str, Value]], name: str) -> tuple[Sequence[Value | None], NDArray[np.intp]]:
    """Return the values of a parameter and the index of each row's, ``[n, 1]``; one per layer is none that splits."""
    values, index = choices_of(rows, name)
    return (values, index) if index.shape[1] == 1 else ([None], np.zeros((len(rows), 1), dtype=np.intp))


def _best_split(
    launches: Sequence[tuple[Config, float]], names: Collection[str]
) -> tuple[Mapping[Value, Sequence[tuple[Config, float]]], str]:
    """Return the launches by the value of the parameter that explains them best, and its name; empty without one."""
    splits = {name: _by_value(launches, name) for name in sorted(names)}
    varied = {name: groups for name, groups in splits.items() if len(groups) > 1}
    chances = {name: _chance(list(groups.values())) for name, groups in varied.items()}
    best = min(chances, key=lambda name: chances[name], default="")
    return (varied[best], best) if best and chances[best] * len(chances) < _SIGNIFICANCE else ({}, "")


def _by_value(launches: Sequence[tuple[Config, float]], name: str) -> dict[Value, list[tuple[Config, float]]]:
    """Return the launches by a parameter's value; those without it, or with one per layer, belong to no group."""
    groups: defaultdict[Value, list[tuple[Config, float]]] = defaultdict(list)
    for launch in launches:
        value = launch[0].get(name)
        if value is not None and not isinstance(value, tuple):
            groups[value].append(launch)
    return groups


def _chance(groups: Sequence[Sequence[tuple[Config, float]]]) -> float:
    """Return the probability that groups differ so much by chance: a one-way analysis of variance (F-test)."""
    from scipy.special import fdtrc

    logs = [[math.log1p(seconds) for _, seconds in group] for group in groups]
    count = sum(map(len, logs))
    centre = fmean(each for group in logs for each in group)
    between = sum(len(group) * (fmean(group) - centre) ** 2 for group in logs) / (len(logs) - 1)
    degrees = _PRIOR_DEGREES + count - len(logs)
    within = (_PRIOR_DEGREES * _PRIOR_SD**2 + sum(map(_sum_of_squares, logs))) / degrees
    return float(fdtrc(len(logs) - 1, degrees, between / within))


def _sum_of_squares(values: Sequence[float]) -> float:
    centre = fmean(values)
    return sum((each - centre) ** 2 for each in values)
