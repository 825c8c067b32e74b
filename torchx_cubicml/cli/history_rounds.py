"""Action ``torchx cubicml history rounds``: prints the frontier and the rank correlation of each round of a tune."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from torchx_cubicml.cli.base import most_measured_objective, print_json, store_url, wide_console
from torchx_cubicml.errors import StoreError
from torchx_cubicml.records.cost import PER_DEVICE_HOUR
from torchx_cubicml.records.redaction import mask, printable
from torchx_cubicml.records.suggestion import promised_objective, promised_round
from torchx_cubicml.records.trial import OBJECTIVES
from torchx_cubicml.records.workload import is_same_workload

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from torchx_cubicml.predictors.round_table import RoundTable
    from torchx_cubicml.records.trial import Trial


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare nothing: the store and the output format are those of every action."""


def run(args: argparse.Namespace) -> int:
    """Print one table per workload that was tuned in rounds."""
    from torchx_cubicml.predictors.round_table import round_table
    from torchx_cubicml.store.presence import read_recorded

    url = store_url(args)
    groups = _tuned_in_rounds(read_recorded(url)[0])
    if not groups:
        raise StoreError(f"store {mask(url)} has no rounds: `tune --predictor NAME --rounds` records them")
    objectives = [_objective(group) for group in groups]
    tables = [round_table(group, objective=objective) for group, objective in zip(groups, objectives, strict=True)]
    if args.json:
        print_json(
            [
                {"workload": dict(group[0].workload), "objective": objective, **table.to_json()}
                for group, objective, table in zip(groups, objectives, tables, strict=True)
            ]
        )
        return 0
    for group, objective, table in zip(groups, objectives, tables, strict=True):
        _print(str(group[0].workload.get("program", "")), objective, table)
    return 0


def _tuned_in_rounds(trials: Sequence[Trial]) -> list[list[Trial]]:
    """Return the trials of each workload that has a round."""
    groups: list[list[Trial]] = []
    for trial in trials:
        if promised_round(trial.suggestion) is not None and not any(trial in group for group in groups):
            groups.append([other for other in trials if is_same_workload(other, trial.workload)])
    return groups


def _objective(trials: Sequence[Trial]) -> str:
    """Return the unit of the table: the last round's, if it is per device hour; else the throughput most trials have.

    The price of a device hour is not recorded, so an objective per currency is not shown.
    """
    rounds = [trial for trial in trials if promised_round(trial.suggestion) is not None]
    latest = max(rounds, key=lambda trial: trial.started_at)
    objective = promised_objective(latest.suggestion)
    return objective if objective in PER_DEVICE_HOUR else most_measured_objective(trials)


def _print(program: str, objective: str, table: RoundTable) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    of_job = " of the whole job" if objective in OBJECTIVES else ""
    title = f"Rounds of {printable(program)}, {objective.replace('_', ' ')}{of_job}"
    shown = Table(title=title, title_justify="left", box=SIMPLE_HEAD, show_edge=False)
    shown.add_column("round", no_wrap=True)
    for heading in ("launches", "measured", "median", "best", "best so far", "Kendall's tau"):
        shown.add_column(heading, justify="right", no_wrap=True)
    for each in table.rounds:
        rates = (f"{rate:,.4g}" if rate is not None else "" for rate in (each.median, each.best, each.best_so_far))
        cells = (str(each.number or "first"), str(each.launches), str(each.measured), *rates, _tau_text(each.tau))
        shown.add_row(*map(Text, cells))
    wide_console().print(shown)
    if table.tau is not None:
        sys.stdout.write(f"Kendall's tau between predicted and measured over all rounds: {table.tau:.2f}\n")


def _tau_text(tau: float | None) -> str:
    return f"{tau:.2f}" if tau is not None else ""
