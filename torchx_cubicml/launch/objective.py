"""Objective of a workload whose space file states none: the throughput that its launches were measured in."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from torchx_cubicml.records.trial import OBJECTIVES
from torchx_cubicml.records.workload import is_same_workload

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torchx_cubicml.records.trial import Trial, Workload
    from torchx_cubicml.space import SearchSpace


def with_measured_objective(
    space: SearchSpace, trials: Iterable[Trial], *, workload: Workload
) -> tuple[SearchSpace, str]:
    """Return the space with the objective that launches of the workload were measured in, tokens before samples.

    A stated objective stays. The second value is a message where samples were taken for lack of tokens, or where
    launches disagree, so that some do not count; it is empty otherwise.

    >>> from torchx_cubicml.space import Parameter, SearchSpace
    >>> from torchx_cubicml.records.trial import Trial
    >>> space = SearchSpace(parameters=(Parameter(name="a", choices=(1, 2)),), is_objective_stated=False)
    >>> trial = Trial.completed(workload={}, config={"a": 1}, samples_per_second=9.0)
    >>> with_measured_objective(space, [trial], workload={})[0].objective
    'samples_per_second'
    """
    if space.is_objective_stated:
        return space, ""
    tokens, samples = OBJECTIVES
    own = [trial.measurement for trial in trials if trial.measurement and is_same_workload(trial, workload)]
    n_tokens = sum(each.throughput(tokens) is not None for each in own)
    n_samples_only = sum(each.throughput(tokens) is None and each.throughput(samples) is not None for each in own)
    if n_samples_only and not n_tokens:
        found = space if space.objective == samples else replace(space, objective=samples)
        return found, f"{samples} is compared, as no launch of this workload counted tokens"
    found = space if space.objective == tokens else replace(space, objective=tokens)
    if not n_samples_only:
        return found, ""
    share = f"{n_samples_only} of {n_samples_only + n_tokens} launches of this workload"
    return found, f"{tokens} is compared, which {share} do not have; set objective in the space file to choose"
