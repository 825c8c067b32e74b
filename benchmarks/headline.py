"""Measures the headline figures of the engine, and compares two versions of it, case by case.

python benchmarks/headline.py --output after.json [--workers 2]     measures this version
python benchmarks/headline.py --compare before.json after.json      prints a table

The figures: Kendall's tau of the default predictor on splits of two public tables; the first proposals for a workload
that is left out; the share of the best throughput that searches reach after so many launches, on real runs, simulated
trainings and tables of plain parameters (``lib/cases.py``). A figure is worse where the whole 95 % t-interval of its
paired difference is below zero. The costs of a launch and of a step are those of ``dry_run.py`` and ``recorder.py``.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from lib.cases import cases, mean_interval

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from lib.cases import Case, Figures

_LEFT_OUT = "300 jobs, 80 % known"  # of all lines, the nearest to the best possible score
SEEDS = {"order": 4, "proposals": 1, "replay": 2, "layers": 6, "plain": 5, "tables": 5}
FIGURES = {
    "order": ("tau",),
    "proposals": ("best of 1", "best of 3"),
    "replay": ("after 5", "after 15"),
    "layers": ("after 8", "after 25"),
    "plain": ("after 8", "after 24"),
    "tables": ("after 8", "after 32"),
}
Measured: TypeAlias = "dict[str, dict[str, float]]"  # figure -> unit -> mean over the cases of the unit


def all_cases(families: Sequence[str], seeds: int | None) -> Iterator[Case]:
    """Yield the cases of some families, as many seeds of each as ``SEEDS`` says if ``seeds`` is ``None``."""
    for family in families:
        yield from (case for case in cases([family], seeds=seeds or SEEDS[family]) if case.line != _LEFT_OUT)


def measure(case: Case) -> Figures:
    """Return the figures of one case."""
    warnings.filterwarnings("ignore")
    return case.measure()


def measured(families: Sequence[str], *, seeds: int | None, workers: int) -> Measured:
    """Return the headline figures of all units of some families."""
    chosen = list(all_cases(families, seeds))
    values: defaultdict[str, defaultdict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        for case, figures in zip(chosen, pool.map(measure, chosen), strict=True):
            line = f", {case.line}" if case.family == "order" else ""
            for figure in figures.keys() & set(FIGURES[case.family]):
                values[f"{case.family}{line}: {figure}"][case.unit].append(figures[figure])
    return {name: {unit: float(np.mean(each)) for unit, each in units.items()} for name, units in values.items()}


def table(before: Mapping[str, Mapping[str, float]], after: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
    """Yield a row for each figure: before, after, and the paired difference with its 95 % interval."""
    yield f"{'figure':56s}{'before':>8s}{'after':>8s}{'difference':>12s}  95 % interval      units"
    for name in sorted(before.keys() & after.keys(), key=list(after).index):
        units = sorted(before[name].keys() & after[name].keys())
        mean, low, high = mean_interval([after[name][unit] - before[name][unit] for unit in units])
        means = [float(np.mean([of[name][unit] for unit in units])) for of in (before, after)]
        verdict = "  worse" if high < 0.0 else "  better" if low > 0.0 else ""
        yield (
            f"{name:56s}{means[0]:8.4f}{means[1]:8.4f}{mean:+12.4f}  "
            f"{f'({low:+.4f} to {high:+.4f})':20s}{len(units):5d}{verdict}"
        )


def main() -> None:
    """Measure or compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, help="JSON file to write the figures of this version to")
    parser.add_argument("--compare", type=Path, nargs=2, metavar=("BEFORE", "AFTER"), help="JSON files to compare")
    parser.add_argument("--families", nargs="+", choices=list(SEEDS), default=list(SEEDS), help="those to measure")
    parser.add_argument("--seeds", type=int, help="of each family, in place of its own number")
    parser.add_argument("--workers", type=int, default=1, help="processes that measure at once")
    args = parser.parse_args()
    if args.output is not None:
        found = measured(args.families, seeds=args.seeds, workers=args.workers)
        args.output.write_text(json.dumps(found, indent=1, sort_keys=False) + "\n")
    if args.compare is not None:
        before, after = (json.loads(path.read_text()) for path in args.compare)
        print("\n".join(table(before, after)))


if __name__ == "__main__":
    main()
