"""Measures what a tune does between launches, and how well it keeps its slots filled with jobs that only sleep.

    python benchmarks/tune.py --output benchmarks/results/tune.txt

Own work is that of the real advisor over stores of growing size, from a result to the next launch; the jobs are
simulated, and take no time. Slots are measured with real processes on this machine, and on a simulated cluster whose
status lags. "All in flight" is the share of time, from the first moment of that to the last search, during which as
many launches were in flight as were asked for; "filled" is the share of slots over the same time. After the last search
the winner is measured again, which waits until it is known.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
import time
from contextlib import chdir
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from lib.stores import fill

from torchx_cubicml.records.iso_time import parse_time
from torchx_cubicml.tuner import Begun, Budget, Ended, Launching, TuneRequest, prepare, tune
from torchx_cubicml.tuner.journal import Journal, NoteKind
from torchx_cubicml.tuner.scheduler.jobs import JobRunner

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from tests.tune.cluster import SimulatedCluster, runner_of  # noqa: E402 - found by the line above
from tests.tune.draws import Draws, prepare_in  # noqa: E402 - likewise

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torchx_cubicml.tuner.proposer import Proposer

GPT = "-j 1x2 --script examples/train_gpt.py -- --batch_size 4 --accumulate 4"
PARALLEL = 4
OWN_BOUND_S, FILLED_BOUND = 5.0, 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Seconds of wall time and of a core."""

    wall_s: float
    cpu_s: float

    @classmethod
    def now(cls) -> Work:
        """Return the clocks."""
        return cls(wall_s=time.perf_counter(), cpu_s=time.process_time())

    def until(self, later: Work) -> Work:
        """Return what passed."""
        return Work(wall_s=later.wall_s - self.wall_s, cpu_s=later.cpu_s - self.cpu_s)


def own_work(store: Path, *, launches: int) -> tuple[Work, list[Work]]:
    """Return what a tune over ``store`` does before its first launch, and between a result and the next launch."""
    request = TuneRequest(
        component="dist.ddp",
        component_args=tuple(GPT.split()),
        space="examples/gpt.toml",
        store=str(store),
        scheduler="local_cwd",
        budget=Budget(launches=launches),
        scratch=str(store.parent / "scratch"),
        fresh=True,
    )
    cluster = SimulatedCluster(seed=1, fates=("done",), late_s=0.0)
    jobs = JobRunner("sim", runner=runner_of(cluster))
    begin, before, between = Work.now(), None, []
    for step in tune(prepare(request), jobs=jobs, clock=cluster):
        now = Work.now()
        if isinstance(step, Begun):
            reading = begin.until(now)
        elif isinstance(step, Ended):
            before = now
        elif isinstance(step, Launching) and before is not None:
            between.append(before.until(now))
    return reading, between


def in_flight(spans: Sequence[tuple[float, float]], *, searches: int) -> tuple[float, float]:
    """Return the shares of time in which all slots were filled, and of slots that were, from begins and ends."""
    begins = sorted(begin for begin, _ in spans)
    first, last = begins[PARALLEL - 1], begins[searches - 1]
    moments = sorted({first, last, *(moment for span in spans for moment in span if first < moment < last)})
    full = filled = 0.0
    for start, end in pairwise(moments):
        count = min(PARALLEL, sum(begin <= start and finish >= end for begin, finish in spans))
        full += (end - start) * (count == PARALLEL)
        filled += (end - start) * count / PARALLEL
    return full / (last - first), filled / (last - first)


def sleeping(folder: Path, *, seconds: float, launches: int, n_trials: int) -> tuple[float, float]:
    """Return ``in_flight`` of real processes that sleep, over a store of ``n_trials`` other trials."""
    fill(folder / "store", n_trials)
    prepared = prepare_in(folder)
    args = f"--batch_size 1 --width 1 --seconds {seconds} --ends {folder}/ends"
    request = TuneRequest(
        component=prepared.request.component,
        component_args=("--script", f"{HERE}/lib/sleeping.py", "--", *args.split()),
        space=prepared.request.space,
        store=str(folder / "store"),
        scheduler="local_cwd",
        budget=Budget(launches=launches),
        parallel=PARALLEL,
        repeats=1,
        scratch=str(folder / "scratch"),
    )
    for _ in tune(prepare(request)):
        pass
    notes = [note for note in Journal(str(folder / "store")).read() if note.kind is NoteKind.SUBMITTED]
    begins = sorted(time.timestamp() for note in notes if (time := parse_time(note.time)) is not None)
    ends = sorted(map(float, (folder / "ends").read_text().split()))
    # Whose end it is makes no difference to counts.
    return in_flight(list(zip(begins, ends, strict=True)), searches=launches - 2 * request.repeats_made)


def slots_filled(
    folder: Path, cluster: SimulatedCluster, *, launches: int, advisor: Proposer | None = None
) -> tuple[float, float, float]:
    """Return ``in_flight`` by what really runs, and the share of time with all in flight by what the cluster tells.

    ``advisor`` is the real one unless another is given.
    """
    prepared = prepare_in(folder)
    request = replace(prepared.request, budget=Budget(launches=launches), parallel=PARALLEL)
    jobs = JobRunner("sim", runner=runner_of(cluster))
    for _ in tune(replace(prepared, request=request), jobs=jobs, clock=cluster, advisor=advisor):
        pass
    spans = [(job.submitted.timestamp(), job.ends.timestamp()) for job in cluster.jobs.values()]
    reported = [(begin, end + cluster.late_s) for begin, end in spans]
    searches = launches - 2 * request.repeats_made
    return *in_flight(spans, searches=searches), in_flight(reported, searches=searches)[0]


def report_own_work(sizes: Iterable[int], launches: int) -> tuple[list[str], float]:
    """Return lines on the tuner's own work, and its longest wall time between launches."""
    lines, longest = [f"own work of a tune of {launches} launches, seconds of wall time (and of a core)"], 0.0
    for n_trials in sizes:
        with tempfile.TemporaryDirectory() as name:
            n_objects = fill(Path(name) / "store", n_trials)
            reading, between = own_work(Path(name) / "store", launches=launches)
        walls, cores = [work.wall_s for work in between], [work.cpu_s for work in between]
        longest = max(longest, *walls)
        lines.append(
            f"  {n_trials:6,} trials in {n_objects:6,} objects: between launches {median(walls):.2f} "
            f"({median(cores):.2f}), at most {max(walls):.2f} ({max(cores):.2f}); "
            f"first reading {reading.wall_s:.1f} ({reading.cpu_s:.1f})"
        )
    return [*lines, ""], longest


def report_slots(arguments: argparse.Namespace) -> tuple[list[str], list[float], list[float]]:
    """Return lines on slots, the shares that were filled, and the shares of time with all in flight of processes."""
    lines, shares, full = [f"{PARALLEL} slots, jobs that only sleep"], [], []
    for n_trials in arguments.beside:
        with tempfile.TemporaryDirectory() as name:
            every, filled = sleeping(
                Path(name), seconds=arguments.seconds, launches=arguments.launches, n_trials=n_trials
            )
        lines.append(
            f"  {arguments.launches} processes of about {arguments.seconds:g} s, {n_trials:6,} trials of others in the "
            f"store: all in flight {every:.1%}, filled {filled:.1%}"
        )
        shares.append(filled)
        full.append(every)
    for late_s in (0.0, 3.0):
        cluster = SimulatedCluster(seed=3, fates=("done",), late_s=late_s)
        with tempfile.TemporaryDirectory() as name:
            every, filled, reported = slots_filled(Path(name), cluster, launches=200, advisor=Draws())
        lines.append(
            f"  200 simulated jobs of 20 to 200 s, ends told {late_s:g} s late: all in flight {every:.1%}, filled "
            f"{filled:.1%}; all in flight by what the cluster tells {reported:.1%}"
        )
        shares.append(filled)
    return [*lines, ""], shares, full


def main() -> int:
    """Measure, print, and write the result where asked; exit status 1 where a bound is broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, nargs="+", default=[1000, 10_000], help="sizes of stores")
    parser.add_argument("--beside", type=int, nargs="+", default=[0, 1000], help="sizes of stores of sleeping jobs")
    parser.add_argument("--launches", type=int, default=16, help="of each tune (default: 16)")
    parser.add_argument("--seconds", type=float, default=30.0, help="that a job sleeps, about (default: 30)")
    parser.add_argument("--output", type=Path, help="file to write the result to, besides printing it")
    arguments = parser.parse_args()
    busy = f"load average {os.getloadavg()[0]:.1f} at the begin"
    slots, shares, full = report_slots(arguments)
    with chdir(HERE.parent):
        work, longest = report_own_work(arguments.trials, arguments.launches)
    held = {
        f"slots filled over {FILLED_BOUND:.0%}": min(shares) > FILLED_BOUND,
        f"all in flight over {FILLED_BOUND:.0%} of the time, of processes": min(full) > FILLED_BOUND,
        f"own work under {OWN_BOUND_S:g} s at each size": longest < OWN_BOUND_S,
    }
    lines = [*slots, *work, *(f"{bound}: {'held' if holds else 'BROKEN'}" for bound, holds in held.items())]
    lines.append(
        f"python {platform.python_version()}, {os.cpu_count()} cores, {busy}, {os.getloadavg()[0]:.1f} at the end"
    )
    text = "\n".join(lines)
    print(text)
    if arguments.output is not None:
        arguments.output.write_text(f"{text}\n")
    return 0 if all(held.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
