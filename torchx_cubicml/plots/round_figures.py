"""Figures of ``history rounds --out``: the launches of a workload as rows, and the figures made of them."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Any

from torchx_cubicml.predictors.round_table import numbered
from torchx_cubicml.records.objective_units import OBJECTIVES
from torchx_cubicml.records.redaction import printable
from torchx_cubicml.records.suggestion import promised_throughput
from torchx_cubicml.records.value_text import config_text
from torchx_cubicml.report.drawn_points import MOST_DRAWN
from torchx_cubicml.report.figures.frontier import frontier
from torchx_cubicml.report.figures.predicted_measured import predicted_measured
from torchx_cubicml.report.figures.rank_correlation import ALL, rank_correlation
from torchx_cubicml.report.sections.figures_page import Section

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchx_cubicml.predictors.round_table import RoundTable
    from torchx_cubicml.predictors.tune_rounds import TuneRounds
    from torchx_cubicml.records.trial import Trial

_MOST_PREDICTED = 1e15  # per second; no axis holds more beside a measurement
_MOST_LETTERS = 160  # of a config beside a point


def section(rounds: TuneRounds) -> Section:
    """Return the figures of one workload, or of one of its tunes; of many launches, a sample is drawn."""
    by_launch = (figure(rounds, most=MOST_DRAWN) for figure in (frontier_figure, predicted_figure))
    figures = (*by_launch, rank_correlation(_tau_rows(rounds.table)))
    return Section(
        heading=", ".join(filter(None, (heading(rounds.trials[0]), rounds.name))),
        note=facts_text(rounds.trials[0], rounds.objective),
        figures=tuple(figure for figure in figures if figure is not None),
    )


def frontier_figure(rounds: TuneRounds, *, most: int = sys.maxsize) -> dict[str, Any]:
    """Return the figure of at most ``most`` launches in their order, with the best so far of all."""
    launches, order = _launches(rounds)
    rows = [_launch_row(number, trial, rounds.objective) for number, trial in launches]
    return frontier(rows, unit=objective_text(rounds.objective), order=order, most=most)


def predicted_figure(rounds: TuneRounds, *, most: int = sys.maxsize) -> dict[str, Any] | None:
    """Return the figure of predicted against measured throughput of at most ``most`` launches.

    ``None`` where no launch has both.
    """
    launches, _ = _launches(rounds)
    taus: dict[int | None, float | None] = {each.number: each.tau for each in rounds.table.rounds}
    rows = _predicted_rows(launches, rounds.objective)
    return predicted_measured(rows, unit=objective_text(rounds.objective), taus=taus, most=most)


def _launches(rounds: TuneRounds) -> tuple[list[tuple[int | None, Trial]], str]:
    """Return the ended launches in their order, each with its round, and the order in words."""
    numbers = {id(trial): number for number, trial in numbered(rounds.trials, tune=rounds.tune)}
    ended = [trial for trial in rounds.trials if trial.state.ended or trial.throughput(rounds.objective) is not None]
    is_dated = sum(bool(trial.started_at) for trial in ended) > 1
    ordered = sorted(ended, key=lambda trial: (trial.started_at, trial.trial_id)) if is_dated else ended
    order = "in the order of their start" if is_dated else "in the order of the store"
    return [(numbers[id(trial)] if rounds.n_tunes else None, trial) for trial in ordered], order


def heading(trial: Trial) -> str:
    """Return the program of a trial, for a heading."""
    return printable(str(trial.workload.get("program") or "a program without a name"))


def objective_text(objective: str) -> str:
    """Return an objective in words.

    >>> objective_text("tokens_per_second"), objective_text("tokens_per_device_hour")
    ('tokens per second of the whole job', 'tokens per device hour')
    """
    return f"{objective.replace('_', ' ')}{' of the whole job' if objective in OBJECTIVES else ''}"


def facts_text(trial: Trial, objective: str) -> str:
    """Return the facts of a workload, for a note below its heading."""
    facts = {name: value for name, value in trial.workload.items() if name not in {"program", "project"}}
    steps = "Optimizer steps count: launches whose steps do different work do not compare."
    return " ".join(filter(None, (config_text(facts), steps if objective == "steps_per_second" else "")))


def _launch_row(number: int | None, trial: Trial, objective: str) -> dict[str, Any]:
    rate = trial.throughput(objective)
    is_silent = rate is None and str(trial.state) == "completed"
    return {
        "throughput": rate,
        "outcome": "completed without a measurement" if is_silent else str(trial.state).replace("_", " "),
        "round": number,
        "config": partial(_short_text, trial),
    }


def _predicted_rows(launches: Sequence[tuple[int | None, Trial]], objective: str) -> list[dict[str, Any]]:
    """Return a row for each launch of a round that was predicted and measured; without rounds, for each such launch."""
    has_rounds = any(number for number, _ in launches)
    return [
        {
            "predicted": predicted,
            "measured": measured,
            "round": number or None,
            "config": partial(_short_text, trial),
        }
        for number, trial in launches
        if (number or not has_rounds)
        and (predicted := promised_throughput(trial.suggestion, objective)) is not None
        and predicted <= _MOST_PREDICTED
        and (measured := trial.throughput(objective)) is not None
    ]


def _tau_rows(table: RoundTable) -> list[dict[str, Any]]:
    rounds = [each for each in table.rounds if each.number]
    rows: list[dict[str, Any]] = [{"round": each.number, "tau": each.tau, "launches": each.ranked} for each in rounds]
    return [*rows, {"round": ALL, "tau": table.tau, "launches": table.ranked}] if len(rounds) > 1 else rows


def _short_text(trial: Trial) -> str:
    text = config_text(trial.config)
    return text if len(text) <= _MOST_LETTERS else f"{text[: _MOST_LETTERS - 1]}…"
