"""Objective of a workload whose space file states none: the throughput that its launches were measured in."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING

from torchx_cubicml.records.objective_units import OBJECTIVES, RATES
from torchx_cubicml.records.workload import is_same_workload
from torchx_cubicml.space.constraints import data_parallel_degree, is_count

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torchx_cubicml.history.history import History
    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.records.values import Config, Workload
    from torchx_cubicml.space import SearchSpace

COUNT_WORK = "count samples with torchx_cubicml.measure.step(samples=...), or declare your log lines in [log]"
# Sizes whose product is the work of a step, or a part of it.
_SIZES = (
    ("global_batch_size",),
    ("micro_batch_size", "gradient_accumulation_steps", "dp_degree"),
    ("seq_len",),
)


def measured_objective(history: History) -> tuple[SearchSpace, str]:
    """Return the space with the objective that most launches of the workload were measured in: tokens before samples.

    Optimizer steps per second serve where most launches counted neither, and all steps do the same work. A stated
    objective stays. The second value is a message where tokens were not taken, or where launches lack the objective, so
    that they do not count; it is empty otherwise.

    >>> from torchx_cubicml.history.history import History
    >>> from torchx_cubicml.space import Parameter, SearchSpace
    >>> from torchx_cubicml.records.trial import Trial
    >>> space = SearchSpace(parameters=(Parameter(name="a", choices=(1, 2)),), is_objective_stated=False)
    >>> trial = Trial.completed(workload={}, config={"a": 1}, samples_per_second=9.0)
    >>> measured_objective(History(space=space, workload={}, current={}, trials=[trial]))[0].objective
    'samples_per_second'
    """
    space = history.space
    if space.is_objective_stated:
        return space, ""
    tokens, samples, steps = OBJECTIVES
    measured = [trial for trial in history.own if any(_has(trial, name) for name in OBJECTIVES)]
    having = {name: sum(_has(trial, name) for trial in measured) for name in OBJECTIVES}
    counted = samples if having[samples] > having[tokens] else tokens
    lacks_work = 2 * having[counted] < len(measured)  # most launches counted neither
    why = changer_of_work(space, measured, workload=history.workload) if lacks_work else ""
    unit = steps if lacks_work and not why else counted
    if why and not having[counted]:
        return _with(
            space, tokens
        ), f"{_none_counted(steps)}, and steps per second do not compare as {why}; {COUNT_WORK}"
    return _with(space, unit), _line(unit, having, len(measured))


def uncounted_sizes(space: SearchSpace, own: Iterable[Trial], *, current: Config) -> tuple[str, ...]:
    """Return the parameters that may change the work of a step, where steps alone were counted in most launches.

    They stay as typed, and only launches with the same values of them are compared.
    """
    found = [any(map(trial.throughput, RATES)) for trial in own if trial.measurement is not None]
    is_uncounted = 2 * sum(found) < len(found) and not space.is_objective_stated
    labels = space.changers_of_work() if is_uncounted or space.objective == OBJECTIVES[-1] else ()
    return tuple(each.name for each in space.parameters if (each.label or each.name) in labels and each.name in current)


def _line(unit: str, having: Mapping[str, int], n_measured: int) -> str:
    """Return the message on the unit that is compared; empty where every launch has it, and it is tokens."""
    preferred = OBJECTIVES[: OBJECTIVES.index(unit)]
    if having[unit] < n_measured or any(having[name] for name in preferred):
        share = f"{having[unit]} of {n_measured} launches of this workload"
        return f"{unit} is compared, which {share} have; set objective in the space file to choose"
    cure = f"; {COUNT_WORK}" if unit == OBJECTIVES[-1] else ""
    return f"{unit} is compared, as {_none_counted(unit)}{cure}" if preferred else ""


def _none_counted(unit: str) -> str:
    others = [name.removesuffix("_per_second") for name in OBJECTIVES[: OBJECTIVES.index(unit)]]
    return f"no launch of this workload counted {' or '.join(others)}"


def changer_of_work(space: SearchSpace, trials: Iterable[Trial], *, workload: Workload) -> str:
    """Return the cause, in words, by which the work of a step differs between configs or launches measured in steps.

    Empty if there is none.
    """
    changers = space.changers_of_work()
    if changers:
        return f"{' and '.join(changers)} may change the work of a step"
    own = [trial for trial in trials if _has(trial, OBJECTIVES[-1]) and is_same_workload(trial, workload)]
    tuned = {item.name for item in space.parameters}
    differing = [name for names in _SIZES for name in _differing(names, own, tuned)]
    return f"launches differ in {' and '.join(differing)}" if differing else ""


def _differing(names: tuple[str, ...], trials: Iterable[Trial], tuned: set[str]) -> list[str]:
    """Return the sizes that launches differ in, if their product differs between launches that know the same ones.

    A launch of which a tuned size is unknown does not count.
    """
    known: defaultdict[tuple[str, ...], list[Mapping[str, int]]] = defaultdict(list)
    for trial in trials:
        values = {**trial.workload, **trial.config, **trial.observed}
        values.setdefault("dp_degree", data_parallel_degree(values) or 0)
        sizes = {name: value for name in names if is_count(value := values.get(name))}
        if tuned.isdisjoint(set(names) - sizes.keys()):
            known[tuple(sizes)].append(sizes)
    unequal = [group for group in known.values() if len({prod(sizes.values()) for sizes in group}) > 1]
    return [name for name in names if any(len({sizes.get(name) for sizes in group}) > 1 for group in unequal)]


def _has(trial: Trial, objective: str) -> bool:
    return trial.throughput(objective) is not None


def _with(space: SearchSpace, objective: str) -> SearchSpace:
    return space if space.objective == objective else replace(space, objective=objective)
