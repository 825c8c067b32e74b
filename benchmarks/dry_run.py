"""Measures what the word ``cubicml`` costs: dry runs with and without it in turn, and the ratio of their medians.

    python benchmarks/dry_run.py --pairs 15 --output benchmarks/results/dry_run.txt

Each dry run is a process of its own, as a user starts it. The two of a pair follow each other, so that both see the
same machine; which of them goes first alternates.
"""

from __future__ import annotations

import argparse
import platform
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from statistics import median

BOUND = 1.5  # a launch must feel the same
INNER = ["dist.ddp", "-j", "1x2", "--script", "examples/train_gpt.py", "--", "--batch_size", "4", "--accumulate", "4"]


def dry_run_s(words: list[str], folder: Path) -> float:
    """Return the wall seconds of ``torchx run --dryrun`` in ``folder``."""
    command = [str(Path(sys.executable).with_name("torchx")), "run", "--dryrun", "-s", "local_cwd", *words]
    started = time.perf_counter()
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return time.perf_counter() - started


def measure(pairs: int) -> dict[str, list[float]]:
    """Return the seconds of every dry run, by kind."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        kinds = {
            "dist.ddp alone": INNER,
            "cubicml --mode record dist.ddp": ["cubicml", "--mode", "record", "--store", f"{folder}/store", *INNER],
        }
        for words in kinds.values():
            dry_run_s(words, folder)  # fills the caches of the file system
        seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
        for number in range(pairs):
            for kind in sorted(kinds, reverse=bool(number % 2)):
                seconds[kind].append(dry_run_s(kinds[kind], folder))
    return seconds


def report(seconds: dict[str, list[float]]) -> str:
    """Return the result as text."""
    alone, ours = seconds.values()
    of_pairs = sorted(b / a for a, b in zip(alone, ours, strict=True))
    lines = [f"{len(alone)} pairs of `torchx run --dryrun -s local_cwd ...`, wall ms, median (min to max)", ""]
    lines += [
        f"  {kind:<32} {1000 * median(values):6.0f}  ({1000 * min(values):.0f} to {1000 * max(values):.0f})"
        for kind, values in seconds.items()
    ]
    lines += [
        "",
        f"  ratio of the medians {median(ours) / median(alone):.2f}, bound {BOUND}",
        f"  ratio within a pair  {median(of_pairs):.2f} ({of_pairs[0]:.2f} to {of_pairs[-1]:.2f})",
        "",
        f"python {platform.python_version()}, torchx {version('torchx')}, {platform.system()} {platform.machine()}",
    ]
    return "\n".join(lines)


def main() -> int:
    """Measure, print, and write the result where asked; exit status 1 where the bound is broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=15, help="pairs of dry runs (default: 15)")
    parser.add_argument("--output", type=Path, help="file to write the result to, besides printing it")
    arguments = parser.parse_args()
    seconds = measure(arguments.pairs)
    text = report(seconds)
    print(text)
    if arguments.output is not None:
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        arguments.output.write_text(f"{text}\n")
    alone, ours = seconds.values()
    return 0 if median(ours) < BOUND * median(alone) else 1


if __name__ == "__main__":
    sys.exit(main())
