"""Tunes the sharding of real recommenders by TorchRec, and compares the result with TorchRec's own planner.

PATH=$PWD/.venv-torchrec/bin:$PATH python benchmarks/recommender.py [--output benchmarks/results/recommender.txt]
(`make test-torchrec` makes that environment.)

Each case is a model with tables of very unlike rows, widths and poolings, trained on 2 or 4 CPU processes (gloo). The
planner gets this machine's bandwidths, measured just before, and the tables' poolings. `torchx cubicml tune` starts
from the planner's plan and sets one sharding per table through the hook `torchrec`. The plan that it hands over is then
measured against the planner's in interleaved pairs, by the clock of the script and not by our recorder, through the
script's own flag and not through our hook. The plans with one sharding for all tables are measured in between, so that
a faster plan that the tune missed would show.

Ratios are of samples per second, ours over the planner's: the median of the pairs, and its 90 % interval by bootstrap.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parent.parent
JOB = ROOT / "benchmarks" / "lib" / "recommender_job.py"
BANDWIDTHS = ROOT / "benchmarks" / "lib" / "bandwidths_job.py"
CHOICES = ("planner", "table_wise", "row_wise", "column_wise", "data_parallel")
PLANNER = "planner"
RANKS = (2, 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One model on a number of processes.

    Args:
        tables: rows, width and pooling of each table.
        ranks: processes.
        arguments: of the script, but for the sharding.
    """

    tables: tuple[tuple[int, int, int], ...]
    ranks: int
    arguments: tuple[str, ...]


def drawn_tables(rng: np.random.Generator) -> tuple[tuple[int, int, int], ...]:
    """Return tables of unlike sizes: rows 10^3 to 10^6, widths 8 to 128, poolings 1 to 50."""
    return tuple(
        (
            int(10 ** rng.uniform(3.0, 6.0)),
            int(2 ** rng.integers(3, 8)),
            int(np.exp(rng.uniform(0.0, np.log(50.0)))),
        )
        for _ in range(int(rng.integers(4, 7)))
    )


def torchrun(ranks: int, script: Path, *arguments: str) -> dict[str, object]:
    """Return what a script prints as JSON on so many processes."""
    launcher = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(ranks))
    done = subprocess.run(
        [*launcher, str(script), *arguments], check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    return next(json.loads(line) for line in done.stdout.splitlines() if line.startswith("{"))


def bandwidths(ranks: int) -> dict[str, object]:
    """Return the bandwidths of this machine with so many processes, in GB per second."""
    return torchrun(ranks, BANDWIDTHS)


def tuned(case: Case, folder: Path, launches: int) -> tuple[list[str], dict[str, object]]:
    """Return the sharding of each table that a tune hands over, and the tune's result."""
    space = folder / "recommender.toml"
    quoted = ", ".join(f'"{word}"' for word in CHOICES)
    space.write_text(
        f'objective = "samples_per_second"\n\n[parameters.embedding_sharding]\nchoices = [{quoted}]\n'
        f'per_table = {len(case.tables)}\ndefault = "{PLANNER}"\nhook = "torchrec"\n'
    )
    done = subprocess.run(
        [
            *("torchx", "cubicml", "tune", "--space", str(space), "--store", str(folder / "store"), "--json"),
            *("--budget", f"{launches} launches", "-s", "local_cwd", "--yes", "--"),
            *("dist.ddp", "-j", f"1x{case.ranks}", "--script", str(JOB), "--", *case.arguments),
        ],
        check=False,
        capture_output=True,
        text=True,
        cwd=folder,
    )
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    result = json.loads(done.stdout)
    best = result["best"]["config"]["embedding_sharding"]
    return (list(best) if isinstance(best, list) else [str(best)] * len(case.tables)), result


def measured(case: Case, words: Sequence[str]) -> tuple[float, list[str]]:
    """Return samples per second of the job by the script's own clock, and the plan that it ran."""
    report = torchrun(case.ranks, JOB, *case.arguments, "--sharding", ",".join(words))
    seconds, plan = report["seconds"], report["plan"]
    assert isinstance(seconds, list)
    assert isinstance(plan, dict)
    batch = int(case.arguments[case.arguments.index("--batch-size") + 1]) * case.ranks
    return batch * len(seconds) / sum(seconds), [plan[f"t{at}"] for at in range(len(case.tables))]


def interval(ratios: NDArray[np.float64]) -> tuple[float, float, float]:
    """Return the median of paired ratios with its 90 % bootstrap interval."""
    rng = np.random.default_rng(0)
    medians = np.median(rng.choice(ratios, (4000, len(ratios))), axis=1)
    low, high = np.quantile(medians, [0.05, 0.95])
    return float(np.median(ratios)), float(low), float(high)


def short(words: Sequence[str]) -> str:
    """Return a plan by the initials of its words."""
    return " ".join("".join(part[0] for part in word.split("_")) if "_" in word else word for word in words)


def compared(case: Case, launches: int, pairs: int) -> list[str]:
    """Return the lines of a case."""
    with tempfile.TemporaryDirectory() as name:
        ours, result = tuned(case, Path(name), launches)
    comparison = result["comparison"]
    assert isinstance(comparison, dict)
    plans = {"handed over": ours, **{f"all {word}": [word] * len(case.tables) for word in CHOICES[1:]}}
    ratios: dict[str, list[float]] = {name: [] for name in plans}
    for _ in range(pairs):
        planner, plan = measured(case, [PLANNER] * len(case.tables))
        for name, words in plans.items():
            try:
                ratios[name].append(measured(case, words)[0] / planner)
            except subprocess.CalledProcessError:  # the planner does not allow the sharding for a table
                continue
    lines = [
        "",
        f"{case.ranks} processes, tables " + ", ".join(":".join(map(str, table)) for table in case.tables),
        f"  planner's plan {short(plan)}; handed over {short(ours)}; "
        f"the tune says {comparison['gain']:.2f} ({comparison['gain_low']:.2f} to {comparison['gain_high']:.2f})",
    ]
    for name, values in ratios.items():
        if values:
            middle, low, high = interval(np.array(values))
            lines.append(f"  {name:20} {middle:6.3f}  ({low:.3f} to {high:.3f}), {len(values)} pairs")
    return lines


def main() -> None:
    """Tune and compare, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--models", type=int, default=3)
    parser.add_argument("--launches", type=int, default=12)
    parser.add_argument("--pairs", type=int, default=4)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--seed", type=int, default=0, help="of the tables that are drawn")
    options = parser.parse_args()
    rng, begin = np.random.default_rng(options.seed), time.time()
    lines = [
        *(__doc__ or "").splitlines()[:1],
        "",
        *(__doc__ or "").splitlines()[5:],
        f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the start",
    ]
    for _ in range(options.models):
        tables = drawn_tables(rng)
        for ranks in RANKS:
            speeds = bandwidths(ranks)
            arguments = (
                *("--tables", ",".join(":".join(map(str, table)) for table in tables)),
                *("--batch-size", "256", "--steps", str(options.steps)),
                *("--memory-gb-per-second", f"{speeds['memory']:.2f}", "--link-gb-per-second", f"{speeds['link']:.3f}"),
            )
            case = Case(tables=tables, ranks=ranks, arguments=arguments)
            found = compared(case, options.launches, options.pairs)
            lines += [*found, f"  bandwidths: memory {speeds['memory']:.2f}, link {speeds['link']:.3f} GB per second"]
            print(*found, sep="\n", flush=True)
    lines += ["", f"{(time.time() - begin) / 60:.0f} minutes, load {os.getloadavg()[0]:.1f} at the end"]
    print("\n".join(lines))
    if options.output:
        options.output.write_text("\n".join(lines).strip() + "\n")


if __name__ == "__main__":
    main()
