"""Plots of a search space as the trials let it be predicted: what each parameter is worth, and what fits in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchx_cubicml.advisor.memory_map import memory_map
from torchx_cubicml.advisor.posterior import ranked
from torchx_cubicml.advisor.sensitivity import sensitivity
from torchx_cubicml.advisor.study import Study
from torchx_cubicml.errors import RecordError
from torchx_cubicml.plots.memory_cells import memory_cells, memory_figure
from torchx_cubicml.plots.worth_rows import worth_rows
from torchx_cubicml.predictors.threads import one_thread
from torchx_cubicml.report.figure import Figure
from torchx_cubicml.report.figures.parameter_worth import parameter_worth

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.records.values import Config, Workload
    from torchx_cubicml.space import SearchSpace


def plot_parameter_worth(
    space: SearchSpace, *, workload: Workload, current: Config, trials: Iterable[Trial], seed: int = 0
) -> Figure:
    """Return the figure of the best measured config over the same with another value of each parameter.

    The other value is that of ``current``; where that is the best one, the slowest other value.

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
    figure = parameter_worth(worth_rows(sensitivity(study)))
    if figure is None:
        raise RecordError(
            f"nothing to plot: none of {study.posterior.n_trials} ended trials of this workload measured a config of "
            "the space with more than one legal value"
        )
    return Figure(figure)


def plot_memory(
    space: SearchSpace, *, workload: Workload, current: Config, trials: Iterable[Trial], seed: int = 0
) -> Figure:
    """Return the figure of what fits in memory: the two parameters that matter most for it, around the best config.

    The best config is the measured one of highest posterior mean; without a measurement it is ``current``.

    Args:
        space: see ``suggest``.
        workload: see ``suggest``.
        current: see ``suggest``.
        trials: see ``suggest``.
        seed: of all randomness.

    Raises:
        SpaceError: the space cannot be bound to the workload.
        RecordError: no parameter is known to have an effect on memory, or the best config is not in the space.
    """
    study = Study.of(space, workload=workload, current=current, trials=list(trials), seed=seed)
    with one_thread():
        trusted = ranked(study.posterior).trusted
    found = memory_map(study, best=trusted[0] if trusted else study.current)
    figure = memory_figure(found, memory_cells(found, own=study.current)) if found is not None else None
    if figure is None:
        raise RecordError(
            f"nothing to plot: {study.posterior.n_trials} ended trials of this workload tell of no parameter with an "
            "effect on memory"
        )
    return Figure(figure)
