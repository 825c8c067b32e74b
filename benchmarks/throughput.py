"""Compares recorded throughput with the true throughput of real trainings.

    python benchmarks/throughput.py --output benchmarks/results/throughput.txt
    python benchmarks/throughput.py --quick
    python benchmarks/throughput.py --simulate 2000

Every training of ``trainings.py`` is launched for real by ``cubicrun`` on one process or two and trains a tiny network
(``scheduled.py``). It answers two questions. For the steps that the record counts, is the throughput that of the
script's own clock? And how often does the record's 90 % interval hold the long-run rate of the training, which the
generator knows? ``--simulate`` answers the second question for the estimator alone, on thousands of drawn runs without
a process.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import numpy as np
from lib.trainings import APART, FAMILIES, draw

from torchx_cubicml.settings import child_environment
from torchx_cubicml.store import TrialStore

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeAlias

    from lib.trainings import Schedule

    from torchx_cubicml.records.measurement import Measurement

    Name: TypeAlias = tuple[str, int, int]  # family, seed, number

SCRIPT = Path(__file__).resolve().parent / "lib" / "scheduled.py"
QUANTILE = 1.645  # of the normal distribution, on both sides of which a tenth is left together
WITHOUT_INTERVAL = 0.02  # what is taken for the relative error of a record or an estimate that states none
WITHIN, AT_MOST, SHARE_WITHIN = 0.05, 0.15, 0.95
COVERAGE = 0.85, 0.95
OVERRUN = 0.005  # by which a schedule may be missed before the rate in the long run was not the one drawn
PER_FAMILY, PER_FAMILY_APART, QUICK = 40, 15, 1
TIMEOUT_S = 120.0
PATTERNS = {
    "log_rates": r"step (?P<step>\d+) .*speed (?P<samples_per_second>[\d.]+)",
    "log_times": r"step (?P<step>\d+) .*time (?P<step_time_ms>[\d.]+) ms, batch (?P<{unit}>[\d.]+)",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One record, or one estimate, beside the truth.

    Args:
        name: family, seed and number, by which the training can be run again.
        family: that it is drawn from.
        fault: what is wrong with the record; empty where there is one that can be judged.
        off: by which part the recorded throughput is more than the realised one; ``None`` where nothing was recorded.
        beyond: by which part it is more than the rate in the long run.
        error: standard error of its logarithm as it is stated, or ``WITHOUT_INTERVAL``.
        has_interval: whether it is stated.
        is_late: whether the machine kept the counted steps from lasting as long as was drawn.
        is_steady: as recorded.
        may_include_evaluation: likewise.
        steps: counted.
        words: what the training was.
    """

    name: str
    family: str
    fault: str = ""
    off: float | None = None
    beyond: float | None = None
    error: float = WITHOUT_INTERVAL
    has_interval: bool = False
    is_late: bool = False
    is_steady: bool | None = None
    may_include_evaluation: bool | None = None
    steps: int = 0
    words: str = ""

    @property
    def is_right(self) -> bool:
        """True if the record is within the bound of what was realised."""
        return not self.fault and self.off is not None and abs(self.off) <= WITHIN

    @property
    def holds(self) -> bool:
        """True if the interval holds the rate in the long run."""
        return self.beyond is not None and abs(math.log1p(self.beyond)) <= QUANTILE * self.error


def estimate(durations_s: Sequence[float], work: Sequence[int]) -> tuple[float, float | None] | None:
    """Return the rate that the recorder makes of steps and its standard error; ``None`` for too few.

    The one place where the recorder's estimator is called.
    """
    from torchx_cubicml.recorder.steps.blocks import Block
    from torchx_cubicml.recorder.steps.steady_state import steady_state

    pairs = zip(durations_s, work, strict=True)
    state = steady_state([Block(seconds=seconds, samples=amount, outside_s=0.0) for seconds, amount in pairs])
    if state is None or state.samples_per_second is None:
        return None
    return state.samples_per_second, getattr(state, "relative_error", None)


def drawn(family: str, seed: int, number: int) -> Schedule:
    """Return the training of this name; the same one at each call."""
    return draw(family, np.random.default_rng((seed, zlib.crc32(family.encode()), number)))


def simulated(name: Name) -> Verdict:
    """Return what the estimator says of a run that is only drawn."""
    schedule = drawn(*name)
    found = estimate(schedule.seconds[1:], schedule.work()[1:])  # nobody sees the beginning of the first step
    verdict = Verdict(name=_spelled(name), family=schedule.family, words=_described(schedule))
    if found is None:
        return _with(verdict, fault="no estimate")
    rate, error = found
    return _with(verdict, beyond=rate / schedule.rate - 1, **_interval(error))


def launched(name: Name, folder: Path) -> Verdict:
    """Return what is recorded of a training that is run for real."""
    schedule = drawn(*name)
    verdict = Verdict(name=_spelled(name), family=schedule.family, words=_described(schedule))
    place = folder / verdict.name.replace(":", "-")
    fault = launch(place, {"own": schedule.as_json()}, options_of(schedule, place), processes=schedule.processes)
    if fault:
        return _with(verdict, fault=fault)
    trials = list(TrialStore(str(place / "store")))
    measurement = trials[0].measurement if len(trials) == 1 else None
    if measurement is None:
        warned = [line for line in (place / "own.txt").read_text().splitlines() if "warning:" in line]
        return _with(verdict, fault=f"no measurement of {len(trials)} trials {' '.join(warned)}")
    return apply_rules(verdict, schedule, measurement, json.loads((place / "own.json").read_text()))


def options_of(schedule: Schedule, place: Path) -> list[str]:
    """Return the options of cubicrun, and write the space file where log lines are the source."""
    place.mkdir(parents=True)
    if schedule.source not in PATTERNS:
        return []
    space = place / "space.toml"
    pattern = PATTERNS[schedule.source].replace("{unit}", schedule.unit)
    space.write_text(
        f"[parameters.loader]\nchoices = ['own', 'other']\nflag = '--loader'\n[log]\npattern = '{pattern}'\n"
    )
    return ["--cubicml-space", str(space)]


def launch(
    place: Path, schedules: dict[str, str], options: Sequence[str] = (), *, processes: int = 1, loader: str = "own"
) -> str:
    """Run a training by cubicrun, recorded in ``place/store``, and return why it failed; empty where it did not.

    Args:
        place: an existing folder; the log and what is printed go there, too, named after the loader.
        schedules: name -> JSON.
        options: of cubicrun, besides; ``--cubicml-mode`` is ``record`` without any.
        processes: of the job.
        loader: name of the schedule that is asked for.
    """
    (place / "schedules.json").write_text(f"{{{', '.join(f'{json.dumps(k)}: {v}' for k, v in schedules.items())}}}")
    mode = [] if "--cubicml-mode" in options else ["--cubicml-mode", "record"]
    command = [
        *(sys.executable, "-m", "torchx_cubicml.cubicrun", *options, *mode, "--cubicml-store", str(place / "store")),
        *("--standalone", "--nproc_per_node", str(processes), str(SCRIPT)),
        *("--schedules", str(place / "schedules.json"), "--log", str(place / f"{loader}.json"), "--loader", loader),
    ]
    environment = child_environment({"OMP_NUM_THREADS": "1", "TORCHX_CUBICML_CACHE": "off"})
    with (place / f"{loader}.txt").open("w") as output:
        running = subprocess.Popen(command, cwd=place, env=environment, stdout=output, stderr=output)
        try:
            status = running.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            running.terminate()  # torchrun ends its processes, which are in sessions of their own
            running.wait()
            return f"it took more than {TIMEOUT_S:g} s"
    return f"exit status {status}" if status else ""


def apply_rules(verdict: Verdict, schedule: Schedule, record: Measurement, log: Sequence[Sequence[object]]) -> Verdict:
    """Return the verdict on a record."""
    verdict = _with(
        verdict,
        is_steady=record.is_steady,
        may_include_evaluation=record.may_include_evaluation,
        steps=record.steps_counted,
        **_interval(record.relative_error),
    )
    window = counted_window(log, warmup=record.warmup_steps, counted=record.steps_counted)
    if window is None:
        return _with(verdict, fault=f"{record.warmup_steps} + {record.steps_counted} steps are not those of the run")
    rates = dict(zip(("samples", "tokens"), realised(log, *window), strict=True))
    recorded = {"samples": record.samples_per_second, "tokens": record.tokens_per_second}
    if recorded[schedule.unit] is None:
        return _with(verdict, fault=f"no {schedule.unit} recorded")
    offs = [rate / rates[unit] - 1 for unit, rate in recorded.items() if rate is not None and rates[unit]]
    return _with(
        verdict,
        is_late=_is_late(schedule, log, *window),
        off=max(offs, key=abs),
        beyond=(recorded[schedule.unit] or 0.0) / (schedule.rate * schedule.processes) - 1,
    )


def counted_window(log: Sequence[Sequence[object]], *, warmup: int, counted: int) -> tuple[float, float] | None:
    """Return the moments between which the counted steps lie; ``None`` where the steps do not add up to the run's.

    What is counted are steps of the first optimizer, steps of all optimizers, or lines of the log.
    """
    begin = next(event[1] for event in log if event[0] == "begin")
    kinds: list[Callable[[Sequence[object]], bool]] = [
        lambda event: event[0] == "line",
        lambda event: event[0] == "step" and event[2] == 0,
        lambda event: event[0] == "step",
    ]
    for kind in kinds:
        ends = [float(str(event[1])) for event in (("begin", begin), *filter(kind, log))]
        if len(ends) - 1 == warmup + counted:
            return ends[warmup], ends[-1]
    return None


def realised(log: Sequence[Sequence[object]], start: float, end: float) -> tuple[float, float]:
    """Return samples and tokens per second of the whole job between two moments, evaluation and saving left out."""
    works = [event for event in log if event[0] == "work" and start <= event[1] < end]
    seconds = _trained_s(log, start, end)
    return sum(event[2] for event in works) / seconds, sum(event[3] for event in works) / seconds


def _trained_s(log: Sequence[Sequence[object]], start: float, end: float) -> float:
    seconds, reached = end - start, start
    for begin, finish in sorted((event[1], event[2]) for event in log if event[0] in {"evaluation", "save"}):
        seconds -= max(min(finish, end) - max(begin, reached), 0.0)  # what was saved within an evaluation counts once
        reached = max(reached, finish)
    return seconds


def _is_late(schedule: Schedule, log: Sequence[Sequence[object]], start: float, end: float) -> bool:
    """Return whether the steps between two moments took longer than they were to, or made up for what came before."""
    leads = {0, 1} if schedule.style == "alternating" else {0}
    ends = [event[1] for event in log if event[0] == "step" and event[2] in leads]
    planned = sum(seconds for seconds, ended in zip(schedule.seconds, ends, strict=True) if start < ended <= end)
    return abs(_trained_s(log, start, end) / planned - 1) > OVERRUN


def _interval(error: float | None) -> dict[str, object]:
    return {"error": WITHOUT_INTERVAL if error is None else error, "has_interval": error is not None}


def _with(verdict: Verdict, **changes: object) -> Verdict:
    return Verdict(**{**asdict(verdict), **changes})


def _spelled(name: Name) -> str:
    return ":".join(map(str, name))


def _described(schedule: Schedule) -> str:
    kinds = sorted({pause.kind for pause in schedule.pauses})
    words = [schedule.style, schedule.source, *kinds, f"{schedule.processes} processes"]
    return f"{len(schedule.seconds)} steps of {1000 * np.mean(schedule.seconds):.1f} ms, {', '.join(words)}"


def share(verdicts: Sequence[Verdict], test: Callable[[Verdict], bool]) -> str:
    """Return the percentage that passes, with its binomial standard error."""
    if not verdicts:
        return f"{'-':>14s}"
    part = sum(map(test, verdicts)) / len(verdicts)
    return f"{100 * part:6.1f} +- {100 * math.sqrt(part * (1 - part) / len(verdicts)):4.1f}"


def row(name: str, verdicts: Sequence[Verdict], *, is_launched: bool) -> str:
    """Return a line of the table."""
    judged = [each for each in verdicts if each.beyond is not None]
    in_time = [each for each in judged if not each.is_late]
    widths = [2 * math.sinh(QUANTILE * each.error) for each in judged]
    text = f"  {name:16s}{len(verdicts):6d}"
    if is_launched:
        offs = sorted(abs(each.off) for each in verdicts if each.off is not None)
        largest = f"{100 * offs[-1]:8.2f}" if offs else f"{'-':>8s}"
        text += f"{sum(bool(each.fault) for each in verdicts):8d}{share(verdicts, lambda each: each.is_right)}{largest}"
    text += f"{len(in_time):9d}{share(in_time, lambda each: each.holds)}"
    text += f"{100 * median(widths):9.1f}" if widths else f"{'-':>9s}"
    text += f"{100 * median(abs(each.beyond or 0.0) for each in judged):9.2f}" if judged else f"{'-':>9s}"
    return text + f"{sum(not each.has_interval for each in judged):8d}"


def table(verdicts: Sequence[Verdict], *, is_launched: bool) -> list[str]:
    """Return the rows of the families, of all that are stationary, and of those that stand apart."""
    parts = {name: [each for each in verdicts if each.family == name] for name in FAMILIES}
    stationary = [each for each in verdicts if each.family not in APART]
    head = f"  {'family':16s}{'runs':>6s}"
    if is_launched:
        head += f"{'no rec.':>8s}{'within 5 %':>14s}{'worst':>8s}"
    head += f"{'in time':>9s}{'interval holds':>15s}{'width':>8s}{'median':>9s}{'no int.':>8s}"
    rows = [row(name, part, is_launched=is_launched) for name, part in parts.items() if part and name not in APART]
    rows.append(row("all of these", stationary, is_launched=is_launched))
    return [head, *rows, *(row(name, parts[name], is_launched=is_launched) for name in APART if parts[name])]


def launched_text(verdicts: Sequence[Verdict]) -> tuple[list[str], bool]:
    """Return what real trainings show, and whether the bounds hold."""
    right = sum(each.is_right for each in verdicts) / len(verdicts)
    worst = max((abs(each.off) for each in verdicts if each.off is not None), default=math.inf)
    wrong = sorted(
        (each for each in verdicts if not each.is_right), key=lambda each: (each.fault, -abs(each.off or 0.0))
    )
    said = [each for each in verdicts if each.is_steady is not None]
    lines = [
        f"Recorded throughput of {len(verdicts)} real trainings beside what they know from the inside; per cent",
        "  within 5 %, worst: of the throughput of the very steps that the record counts, by the script's own clock",
        "  interval holds: the record's 90 % interval holds the rate in the long run, of runs whose schedule was kept",
        "  width: of that interval, median; median: distance from that rate; no int.: records without an interval of",
        f"  their own, for which a standard error of {100 * WITHOUT_INTERVAL:g} % is taken",
        *table(verdicts, is_launched=True),
        "",
        f"  within {100 * WITHIN:g} %: {100 * right:.1f} in 100, wanted {100 * SHARE_WITHIN:g}; "
        f"worst {100 * worst:.1f} %, wanted {100 * AT_MOST:g} at most",
        *(
            f"  recorded as steady, {word}: {sum(bool(each.is_steady) for each in part)} of {len(part)}"
            for word, part in (
                ("stationary families", [each for each in said if each.family not in APART]),
                ("drift", [each for each in said if each.family == "drift"]),
            )
            if part
        ),
        f"  may include evaluation, as recorded: {sum(bool(each.may_include_evaluation) for each in verdicts)}",
        *(["", "  not within the bound:"] if wrong else []),
        *(f"    {each.name:26s}{each.fault or f'{100 * (each.off or 0):+.1f} %':9s} {each.words}" for each in wrong),
    ]
    return lines, right >= SHARE_WITHIN and worst <= AT_MOST


def out_of_bounds(verdicts: Sequence[Verdict]) -> list[str]:
    """Return the families whose coverage is beyond the bounds by more than two binomial standard errors."""
    found = []
    for name in FAMILIES:
        part = [each for each in verdicts if each.family == name and each.beyond is not None and not each.is_late]
        held = sum(each.holds for each in part) / max(len(part), 1)
        slack = 2 * math.sqrt(0.9 * 0.1 / max(len(part), 1))
        if part and name not in APART and not COVERAGE[0] - slack <= held <= COVERAGE[1] + slack:
            found.append(name)
    return found


def simulated_text(verdicts: Sequence[Verdict]) -> list[str]:
    """Return what drawn runs show."""
    return [
        f"Coverage by the recorder's estimator alone, over {len(verdicts)} drawn runs; per cent",
        *table(verdicts, is_launched=False),
    ]


def run_all(names: Sequence[Name], folder: Path, jobs: int) -> list[Verdict]:
    """Return the verdicts on trainings that are run, ``jobs`` at a time."""
    found = []
    with ThreadPoolExecutor(jobs) as pool:
        for number, verdict in enumerate(pool.map(partial(launched, folder=folder), names), start=1):
            found.append(verdict)
            said = verdict.fault or f"off by {100 * (verdict.off or 0):+.2f} %"
            print(f"{number}/{len(names)} {verdict.name} {said}", file=sys.stderr, flush=True)
    return found


def parsed() -> argparse.Namespace:
    """Return the arguments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--trainings", type=int, help=f"real ones, in all (default: {PER_FAMILY} of each stationary family)"
    )
    parser.add_argument("--quick", action="store_true", help=f"only {QUICK} of each family")
    parser.add_argument("--simulate", type=int, default=0, metavar="N", help="drawn runs of each family in their place")
    parser.add_argument("--family", choices=[*FAMILIES], action="append", help="only this one; can be repeated")
    parser.add_argument("--number", type=int, help="only the training of this number")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2, help="trainings at a time (default: 2)")
    parser.add_argument("--keep", type=Path, help="empty folder to keep schedules, logs and stores in")
    parser.add_argument("--output", type=Path, help="file to write the result to, besides printing it")
    return parser.parse_args()


def names_of(args: argparse.Namespace) -> list[Name]:
    """Return the names of the trainings that are asked for, of the families in turn."""
    families = args.family or [*FAMILIES]
    if args.number is not None:
        return [(family, args.seed, args.number) for family in families]
    if args.trainings:
        return [(families[index % len(families)], args.seed, index // len(families)) for index in range(args.trainings)]
    counts = {
        family: args.simulate or (QUICK if args.quick else PER_FAMILY_APART if family in APART else PER_FAMILY)
        for family in families
    }
    return [
        (family, args.seed, number)
        for number in range(max(counts.values()))
        for family in families
        if number < counts[family]
    ]


def main() -> int:
    """Measure, print, and write the result where asked; exit status 1 where a bound is broken."""
    args, before = parsed(), os.getloadavg()[0]
    names = names_of(args)
    if args.simulate:
        verdicts, holds = [*map(simulated, names)], True
        lines = simulated_text(verdicts)
    else:
        with tempfile.TemporaryDirectory() as folder:
            verdicts = run_all(names, args.keep or Path(folder), args.jobs)
        lines, holds = launched_text(verdicts)
    beyond = out_of_bounds(verdicts)
    lines += [
        f"  coverage of {100 * COVERAGE[0]:g} to {100 * COVERAGE[1]:g} in 100, two standard errors granted: "
        f"{'broken by ' + ', '.join(beyond) if beyond else 'held'}",
        "",
        f"python {platform.python_version()}, torch {version('torch')}, {platform.system()} {platform.machine()}, "
        f"{os.cpu_count()} cores, seed {args.seed}, load average {before:.1f} before, {os.getloadavg()[0]:.1f} after",
    ]
    text = "\n".join(lines)
    print(text)
    if args.output is not None:
        args.output.parent.mkdir(parents=True, exist_ok=True)
        args.output.write_text(f"{text}\n")
    return 0 if holds and not beyond else 1


if __name__ == "__main__":
    sys.exit(main())
