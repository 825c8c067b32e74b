"""Action ``torchx cubicml history frontier``: prints the frontier of two objectives of each program of a store."""

from __future__ import annotations

import sys
from collections import defaultdict
from typing import TYPE_CHECKING

from torchx_cubicml.cli.base import print_json, store_url
from torchx_cubicml.cli.progress_bar import read_store
from torchx_cubicml.cli.terminal import open_console, say
from torchx_cubicml.errors import StoreError
from torchx_cubicml.records.objective_units import PER_DEVICE_HOUR, PER_JOULE, RATES, counted_rate
from torchx_cubicml.records.redaction import mask, printable

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator

    from torchx_cubicml.advisor.pareto_front import Frontier
    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.records.values import Workload

_DEFAULT = "tokens_per_second,tokens_per_device_hour"
_LEGAL = (*RATES, *PER_DEVICE_HOUR, *PER_JOULE)
_SIZES = frozenset({"world_size", "nnodes", "nproc_per_node"})  # they separate workloads, but here they are compared


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare ``--objectives``."""
    text = f"two of {', '.join(_LEGAL)}, with a comma between (default: {_DEFAULT}; per currency: `suggest --frontier`)"
    parser.add_argument("--objectives", default=_DEFAULT, metavar="A,B", help=text)


def run(args: argparse.Namespace) -> int:
    """Print one table per program and workload; launches that differ in their number of processes are compared."""
    from torchx_cubicml.cli.frontier_table import frontier_lines, print_frontier

    console, objectives, url = open_console(), _objectives(args.objectives), store_url(args)
    trials, warnings = read_store(url, is_json=args.json)
    for warning in warnings:
        print(f"torchx-cubicml: {warning}", file=sys.stderr)  # noqa: T201 - the command line's own output
    frontiers = list(_frontiers(trials, objectives))
    if args.json:
        print_json([{"workload": workload, **frontier.to_json()} for workload, frontier in frontiers])
        return 0
    if not frontiers:
        raise StoreError(f"no trial of store {mask(url)} has both {' and '.join(objectives)}")
    for workload, frontier in frontiers:
        console.print(f"{printable(str(workload.get('program', '')))}:", soft_wrap=True)
        print_frontier(console, frontier)
        for line in [*frontier_lines(frontier), ""]:
            say(console, line)
    return 0


def _objectives(text: str) -> tuple[str, str]:
    names = text.split(",")
    if len(names) != 2 or len({*names}) != 2 or not {*names} <= {*_LEGAL} or len({*map(counted_rate, names)}) != 1:
        raise StoreError(f"--objectives must be two of {', '.join(_LEGAL)} that count the same work, got {text!r:.80}")
    return names[0], names[1]


def _frontiers(trials: Iterable[Trial], objectives: tuple[str, str]) -> Iterator[tuple[Workload, Frontier]]:
    from torchx_cubicml.advisor.pareto_front import frontier_of, measured_points
    from torchx_cubicml.predictors.measurement_error import repeat_noise

    for group in _groups(trials):
        points = measured_points(group, objectives, noise=repeat_noise(group, objective=objectives[0]))
        if points:
            workload = {name: value for name, value in group[0].workload.items() if name not in _SIZES}
            yield workload, frontier_of(points, objectives)


def _groups(trials: Iterable[Trial]) -> list[list[Trial]]:
    """Return the trials of each workload, whatever its number of processes; that number becomes part of the config.

    A launch without a space file has the config that was observed: two of them are repeats only if they look alike.
    """
    from dataclasses import replace

    from torchx_cubicml.cli.observed_config import observed_config
    from torchx_cubicml.predictors.features.history import config_key

    groups: defaultdict[str, list[Trial]] = defaultdict(list)
    for trial in trials:
        key = config_key({name: value for name, value in trial.workload.items() if name not in _SIZES})
        sizes = {name: value for name in sorted(_SIZES) if (value := trial.fact(name)) is not None}
        groups[key].append(replace(trial, config={**(trial.config or observed_config(trial)), **sizes}))
    return list(groups.values())
