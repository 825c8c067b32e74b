"""Plots of a search space as the trials let it be predicted: what each parameter is worth, and what fits in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchx_cubicml.advisor.sensitivity import sensitivity
from torchx_cubicml.advisor.study import Study
from torchx_cubicml.errors import RecordError
from torchx_cubicml.plots.memory_cells import memory_cells
from torchx_cubicml.plots.round_figures import objective_text
from torchx_cubicml.records.redaction import printable
from torchx_cubicml.records.value_text import config_text, entries_text
from torchx_cubicml.report.figure import Figure
from torchx_cubicml.report.figures.memory_boundary import memory_boundary
from torchx_cubicml.report.figures.parameter_worth import parameter_worth

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torchx_cubicml.records.trial import Config, Trial, Workload
    from torchx_cubicml.space import SearchSpace

_MOST_LETTERS = 110  # of the other parameters, below the title


def plot_parameter_worth(
    space: SearchSpace, *, workload: Workload, current: Config, trials: Iterable[Trial], seed: int = 0
) -> Figure:
    """Return the figure of the best measured config with another value of each parameter: the loss or the gain of it.

    Args:
        space: see ``suggest``.
        workload: see ``suggest``.
        current: see ``suggest``.
        trials: see ``suggest``.
        seed: of all randomness.

    Raises:
        SpaceError: the space cannot be bound to the workload.
        RecordError: no legal config of the workload was measured, or none has another value.
    """
    study = Study.of(space, workload=workload, current=current, trials=list(trials), seed=seed)
    rows = [
        {
            "parameter": printable(each.name),
            "best": entries_text(each.value, each.entries),
            "value": entries_text(other.value, each.entries),
            "predicted": other.predicted,
            "low": other.low,
            "high": other.high,
            "measured": other.measured,
            "fits": other.probability_to_fit,
        }
        for each in sensitivity(study)
        for other in each.alternatives
    ]
    if not rows:
        raise RecordError(
            f"nothing to plot: none of {study.posterior.n_trials} ended trials of this workload measured a config of "
            "the space with more than one legal value"
        )
    return Figure(parameter_worth(rows, unit=objective_text(study.posterior.space.objective)))


def plot_memory(
    space: SearchSpace,
    *,
    workload: Workload,
    current: Config,
    trials: Iterable[Trial],
    parameters: Sequence[str] = (),
    seed: int = 0,
) -> Figure:
    """Return the figure of what fits in memory: configs that differ from ``current`` in one or two parameters.

    Args:
        space: see ``suggest``.
        workload: see ``suggest``.
        current: the user's own config; all parameters that are not drawn stay as in it.
        trials: see ``suggest``.
        parameters: one or two names of free parameters, the first from left to right; by default the two that change
            the probability to fit most.
        seed: of all randomness.

    Raises:
        SpaceError: the space cannot be bound to the workload, ``current`` is not in it, or a name is not legal.
    """
    study = Study.of(space, workload=workload, current=current, trials=list(trials), seed=seed)
    found = memory_cells(study, parameters)
    x, y = (*found.names, "")[:2]
    other = config_text(found.fixed)
    other = other if len(other) <= _MOST_LETTERS else f"{other[:_MOST_LETTERS]}…"
    return Figure(memory_boundary(found.cells, x=printable(x), y=printable(y), other=other, order=found.order))
