"""Measures what the word ``cubicml`` costs: dry runs with and without it in turn, over stores of growing size.

    python benchmarks/dry_run.py --rounds 9 --output benchmarks/results/dry_run.txt

Each dry run is a process of its own, as a user starts it. Those of a round follow each other, so that all see the same
machine; every other round runs backwards. A launch of the store is seven objects, as the recorder writes them.
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from itertools import count
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from lib.stores import add_launch, fill

from torchx_cubicml.settings import child_environment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
INNER = ["dist.ddp", "-j", "1x2", "--script", "examples/train_gpt.py", "--", "--batch_size", "4", "--accumulate", "4"]
RECORD_BOUND, CACHED_BOUND, REFIT_BOUND = 1.5, 1.32, 6.3  # of the wall time without us; machines differ in speed
_MOST_COLD = 8  # launches until a store is known

ALONE, RECORD = "dist.ddp alone", "recorded, nothing read"
CACHED, ELSEWHERE, REFIT = "suggestion cached", "a launch elsewhere since", "an own launch since: refit"


class Cost(NamedTuple):
    """Of one process: wall time, and time of a core."""

    wall_s: float
    cpu_s: float


class Bench:
    """One store, its cache, and the dry runs over it."""

    def __init__(self, folder: Path, n_trials: int) -> None:
        self.store, self.cache = folder / "store", folder / "cache"
        self.n_objects = fill(self.store, n_trials)
        self._numbers = count(n_trials)
        self._rng = np.random.default_rng(0)
        self.cold_s = [*self._until_rewritten()]

    def dry_run(self, *ours: str) -> tuple[Cost, str]:
        """Return what ``torchx run --dryrun`` costs, and its stderr."""
        command = [str(Path(sys.executable).with_name("torchx")), "run", "--dryrun", "-s", "local_cwd", *ours, *INNER]
        environment = child_environment({"TORCHX_CUBICML_CACHE": str(self.cache)})
        started, busy = time.perf_counter(), _busy_s()
        done = subprocess.run(command, cwd=self.store, env=environment, check=True, capture_output=True, text=True)
        return Cost(time.perf_counter() - started, _busy_s() - busy), done.stderr

    def rewritten(self) -> Cost:
        """Return what one costs that is rewritten."""
        cost, stderr = self.dry_run(*self._ours())
        if "arguments rewritten" not in stderr:
            raise SystemExit(f"not rewritten:\n{stderr}")
        return cost

    def kinds(self) -> dict[str, Callable[[], Cost]]:
        """Return what is measured in each round; the last leaves a store that is known."""
        return {
            ALONE: lambda: self.dry_run()[0],
            RECORD: lambda: self.dry_run("cubicml", "--mode", "record", "--store", str(self.store))[0],
            CACHED: self.rewritten,
            ELSEWHERE: lambda: self._after_a_launch(own=False),
            REFIT: lambda: self._after_a_launch(own=True),
        }

    def _after_a_launch(self, *, own: bool) -> Cost:
        add_launch(self.store, next(self._numbers), self._rng, own=own)
        return self.rewritten()

    def _until_rewritten(self) -> Iterator[float]:
        for _ in range(_MOST_COLD):
            cost, stderr = self.dry_run(*self._ours())
            yield cost.wall_s
            if "arguments rewritten" in stderr:
                time.sleep(4)  # the times of change of folders count from three seconds on
                self.rewritten()
                return
        raise SystemExit(f"not rewritten in {_MOST_COLD} launches:\n{stderr}")

    def _ours(self) -> list[str]:
        return ["cubicml", "--space", str(EXAMPLES / "gpt.toml"), "--store", str(self.store)]


def _busy_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure(n_trials: int, rounds: int) -> tuple[Bench, dict[str, list[Cost]]]:
    """Return what every dry run over one store costs, by kind."""
    with tempfile.TemporaryDirectory() as name:
        bench = Bench(Path(name), n_trials)
        kinds = bench.kinds()
        costs: dict[str, list[Cost]] = {kind: [] for kind in kinds}
        for number in range(rounds):
            for kind in sorted(kinds, reverse=bool(number % 2)):
                costs[kind].append(kinds[kind]())
                if kind in (ELSEWHERE, REFIT):
                    bench.rewritten()  # takes in that the folder has settled, or is young
    return bench, costs


def report(n_trials: int, bench: Bench, costs: dict[str, list[Cost]]) -> list[str]:
    """Return the result over one store as lines of text."""
    alone, busy = (1000 * median(values) for values in zip(*costs[ALONE], strict=True))
    cold = ", ".join(f"{value:.1f}" for value in bench.cold_s)
    lines = [
        f"{n_trials:,} trials in {bench.n_objects:,} objects; wall s of the first launches until rewritten: {cold}",
        f"  {'':<28} {'wall ms':>8} {'(min to max)':<16} {'ratio':>6} {'added':>6}   {'CPU ms':>6} {'added':>6}",
    ]
    for kind, values in costs.items():
        walls = sorted(1000 * cost.wall_s for cost in values)
        wall, cpu = median(walls), 1000 * median(cost.cpu_s for cost in values)
        spread = f"({walls[0]:.0f} to {walls[-1]:.0f})"
        of_wall = f"{wall:8.0f} {spread:<16} {wall / alone:6.2f} {wall - alone:6.0f}"
        lines.append(f"  {kind:<28} {of_wall}   {cpu:6.0f} {cpu - busy:6.0f}")
    return [*lines, ""]


def bounds_held(costs: Mapping[str, Sequence[Cost]]) -> dict[str, bool]:
    """Return for each bound whether it holds over one store."""
    alone, record, cached, refit = (
        median(cost.wall_s for cost in costs[kind]) for kind in (ALONE, RECORD, CACHED, REFIT)
    )
    return {
        f"recorded at most {RECORD_BOUND} times": record < RECORD_BOUND * alone,
        f"cached at most {CACHED_BOUND} times": cached < CACHED_BOUND * alone,
        f"a refit at most {REFIT_BOUND} times": refit < REFIT_BOUND * alone,
    }


def main() -> int:
    """Measure, print, and write the result where asked; exit status 1 where a bound is broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9, help="dry runs of each kind (default: 9)")
    parser.add_argument("--trials", type=int, nargs="+", default=[100, 1000, 10_000], help="sizes of stores")
    parser.add_argument("--output", type=Path, help="file to write the result to, besides printing it")
    arguments = parser.parse_args()
    load_before = os.getloadavg()[0]
    held: dict[tuple[str, int], bool] = {}
    lines = [f"{arguments.rounds} rounds of `torchx run --dryrun -s local_cwd ...`, medians", ""]
    for n_trials in arguments.trials:
        bench, costs = measure(n_trials, arguments.rounds)
        lines += report(n_trials, bench, costs)
        held |= {(bound, n_trials): holds for bound, holds in bounds_held(costs).items()}
    for bound in dict.fromkeys(bound for bound, _ in held):
        broken = [f"{size:,}" for (name, size), holds in held.items() if name == bound and not holds]
        lines.append(f"{bound}: {'BROKEN at ' + ', '.join(broken) if broken else 'held at each size'}")
    load = f"load {load_before:.1f} before and {os.getloadavg()[0]:.1f} after"
    lines.append(f"python {platform.python_version()}, torchx {version('torchx')}, {os.cpu_count()} cores, {load}")
    text = "\n".join(lines)
    print(text)
    if arguments.output is not None:
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        arguments.output.write_text(f"{text}\n")
    return 0 if all(held.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
