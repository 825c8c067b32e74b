"""Plots of recorded trials: the launches in their order, and predictions beside what was measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchx_cubicml.errors import RecordError
from torchx_cubicml.plots.round_figures import frontier_figure, heading, objective_text, predicted_figure
from torchx_cubicml.predictors.round_table import tunes_in_rounds
from torchx_cubicml.predictors.tune_rounds import by_workload, rounds_of, table_objective
from torchx_cubicml.records.value_text import config_text
from torchx_cubicml.report.figure import Figure

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torchx_cubicml.predictors.tune_rounds import TuneRounds
    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.records.values import Value


def plot_frontier(
    trials: Iterable[Trial], *, workload: Mapping[str, Value] | None = None, objective: str = ""
) -> Figure:
    """Return the figure of one workload's launches in their order: the best so far, rounds and failures.

    Args:
        trials: of any workloads, such as a ``TrialStore``.
        workload: facts that tell the workload, such as ``{"world_size": 8}``; by default that of most launches.
        objective: name of the throughput; by default the one that most launches were measured in.

    Raises:
        RecordError: no trial is of the workload, or the objective is unknown.
    """
    rounds, note = _chosen(trials, workload, objective)
    return _titled(frontier_figure(rounds), rounds, note)


def plot_predicted(
    trials: Iterable[Trial], *, workload: Mapping[str, Value] | None = None, objective: str = ""
) -> Figure:
    """Return the figure of the throughput predicted for each launch of one workload, against the measured one.

    Args:
        trials: see ``plot_frontier``.
        workload: see ``plot_frontier``.
        objective: see ``plot_frontier``.

    Raises:
        RecordError: as ``plot_frontier``, or no launch was both predicted and measured.
    """
    rounds, note = _chosen(trials, workload, objective)
    figure = predicted_figure(rounds)
    if figure is None:
        raise RecordError(
            f"no trial of {heading(rounds.trials[0])} ({len(rounds.trials)} recorded) has both a predicted and a "
            f"measured throughput in {objective_text(rounds.objective)}; tunes and rewritten launches record them"
        )
    return _titled(figure, rounds, note)


def _chosen(trials: Iterable[Trial], workload: Mapping[str, Value] | None, objective: str) -> tuple[TuneRounds, str]:
    """Return the workload of most launches, with the rounds of its latest tune, and words on what is left out."""
    every = list(trials)
    facts = dict(workload or {})
    alike = [trial for trial in every if all(trial.workload.get(name) == value for name, value in facts.items())]
    if not alike:
        named = f" of the workload {config_text(facts)}" if facts else ""
        raise RecordError(f"none of {len(every)} trials is{named}" if every else "there is no trial to plot")
    group = max(by_workload(alike), key=len)
    tunes = tunes_in_rounds(group)
    rounds = rounds_of(group, tunes, max(1, len(tunes)), objective=objective or table_objective(group))
    others = len(every) - len(group)
    return rounds, f"{others:,} trial{'s' if others != 1 else ''} of other workloads left out" if others else ""


def _titled(figure: dict[str, Any], rounds: TuneRounds, note: str) -> Figure:
    """Return a figure whose title names the program, and what is left out."""
    texts = (heading(rounds.trials[0]), rounds.name, figure["title"].get("subtitle", ""), note)
    return Figure({**figure, "title": {**figure["title"], "subtitle": "; ".join(filter(None, texts))}})
