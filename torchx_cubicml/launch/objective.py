"""Objective of a workload whose space file states none: the throughput that its launches were measured in."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from torchx_cubicml.records.trial import OBJECTIVES
from torchx_cubicml.records.workload import is_same_workload

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torchx_cubicml.records.trial import Trial, Workload
    from torchx_cubicml.space import SearchSpace

COUNT_WORK = "report them with torchx_cubicml.measure.step(samples=...), or describe your log lines in [log]"
_OF_BATCH = ("micro_batch_size", "gradient_accumulation_steps", "seq_len")


def with_measured_objective(
    space: SearchSpace, trials: Iterable[Trial], *, workload: Workload
) -> tuple[SearchSpace, str]:
    """Return the space with the objective that launches of the workload were measured in: tokens before samples.

    Optimizer steps per second serve where neither could be counted, and all steps do the same work. A stated objective
    stays. The second value is a message where tokens were not taken, or where launches disagree, so that some do not
    count; it is empty otherwise.

    >>> from torchx_cubicml.space import Parameter, SearchSpace
    >>> from torchx_cubicml.records.trial import Trial
    >>> space = SearchSpace(parameters=(Parameter(name="a", choices=(1, 2)),), is_objective_stated=False)
    >>> trial = Trial.completed(workload={}, config={"a": 1}, samples_per_second=9.0)
    >>> with_measured_objective(space, [trial], workload={})[0].objective
    'samples_per_second'
    """
    if space.is_objective_stated:
        return space, ""
    tokens, samples, steps = OBJECTIVES
    own = [trial for trial in trials if trial.measurement is not None and is_same_workload(trial, workload)]
    measured = [next((name for name in OBJECTIVES if _has(trial, name)), "") for trial in own]
    n_tokens, n_samples = measured.count(tokens), measured.count(samples)
    if n_tokens and n_samples:
        share = f"{n_samples} of {n_samples + n_tokens} launches of this workload"
        line = f"{tokens} is compared, which {share} do not have; set objective in the space file to choose"
        return _with(space, tokens), line
    if n_samples:
        return _with(space, samples), f"{samples} is compared, as no launch of this workload counted tokens"
    if n_tokens or steps not in measured:
        return _with(space, tokens), ""
    changer = _changer_of_work(space, [trial for trial in own if _has(trial, steps)])
    if changer:
        line = f"no launch counted tokens or samples, and steps per second do not compare as {changer}; {COUNT_WORK}"
        return _with(space, tokens), line
    return _with(space, steps), f"{steps} is compared, as no launch counted tokens or samples; {COUNT_WORK}"


def _has(trial: Trial, objective: str) -> bool:
    return trial.measurement is not None and trial.measurement.throughput(objective) is not None


def _with(space: SearchSpace, objective: str) -> SearchSpace:
    return space if space.objective == objective else replace(space, objective=objective)


def _changer_of_work(space: SearchSpace, own: Sequence[Trial]) -> str:
    """Return what makes the work of a step differ between configs or launches, in words; empty if nothing does."""
    changers = space.changers_of_work()
    if changers:
        return f"{' and '.join(changers)} may change the work of a step"
    differing = [name for name in _OF_BATCH if len({trial.observed.get(name) for trial in own}) > 1]
    return f"launches differ in {' and '.join(differing)}" if differing else ""
