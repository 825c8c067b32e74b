"""One table: every predictor beside well-known libraries on public runs, on the same splits in the same run.

python benchmarks/predictors.py [--seeds 5] [--paired-seeds 20] [--left-out-seeds 3] [--processes 1] [--cost]
    [--methods NAME ...] [--output FILE]
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from lib.batches import batch
from lib.cost import cost
from lib.methods import JUDGES, LIBRARIES, OURS
from lib.repeats import deviations, share_of_repeat, tau_of_repeat
from lib.splits import FEWEST_IN_CELL, FSDP_LINES, KNOWN_OF_OTHERS, LARGEST_KNOWN, LINES, cells, n_completed
from lib.tables import FSDP_JOBS, H100_JOBS, fsdp_jobs, h100_jobs

from torchx_cubicml.advisor.trial_data import are_facts_seen
from torchx_cubicml.predictors import DEFAULT_PREDICTOR, ENSEMBLE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from lib.methods import Method
    from lib.splits import Split
    from numpy.typing import NDArray

    from torchx_cubicml.records.trial import Trial

METHODS: dict[str, Method] = {**OURS, **LIBRARIES}
PAIRED = (DEFAULT_PREDICTOR, *LIBRARIES)
Found: TypeAlias = "list[tuple[str, str, float]]"
REPEAT = "repeat"
PROPOSALS = (1, 3, 5, 10)
SMALL = f"<= {LARGEST_KNOWN} GPUs known"
SUGGEST = "suggest"  # the batch that the product picks by the default predictor

AIMS = {
    "30 random jobs known: tau": "0.78",
    "100 random jobs known: tau": "0.82",
    "80 % known: tau": "0.89",
    f"{SMALL}: tau": "0.74",
    "the same and 10 larger: tau": "0.77",
    "other workloads known: best of 1": "0.91",
    "other workloads known: best of 3": "0.97",
    "other workloads known: best of 5": "0.99",
    "other workloads known: best of 10": "0.995",
    "fewer GPUs known: best of 1": "0.84",
    "fewer GPUs known: best of 5": "0.96",
    "other models known: best of 1": "0.83",
    "other models known: best of 5": "0.98",
    "other workloads known: AUC": "0.986",
    "80 % known: coverage": ".77-.83",
    f"{SMALL}: coverage": ".75-.85",
}


@dataclass(slots=True)
class Scores:
    """Line of the table -> method -> numbers, each with the unit that it was measured on: a seed, or a workload.

    Args:
        of: the numbers.
        repeats: of each line, what the table reaches as a prediction of itself, measured again.
        overlap: of each line, correlation between splits over that beside it; see ``Job.overlap``.
    """

    of: dict[str, dict[str, list[tuple[str, float]]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )
    repeats: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    overlap: dict[str, float] = field(default_factory=dict)

    def add(self, job: Job, found: Found) -> None:
        """Note the numbers of a job, each with its line and method; the method ``REPEAT`` is the table itself."""
        for line, method, value in found:
            self.overlap[line] = job.overlap
            if method == REPEAT:
                self.repeats[line].append(value)
            else:
                self.of[line][method].append((job.unit, value))

    def means(self, line: str, method: str) -> dict[str, float]:
        """Return unit -> mean over what was measured on it."""
        found: defaultdict[str, list[float]] = defaultdict(list)
        for unit, value in self.of[line].get(method, ()):
            found[unit].append(value)
        return {unit: float(np.mean(values)) for unit, values in found.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One split to learn from and to be asked about.

    Args:
        known: what is known, the first words of its lines.
        train: trials known.
        test: trials asked about.
        seed: of the methods.
        methods: names of those that are asked.
        noise: log deviations of single measurements, ``[n_deviations]``.
        proposals: whether proposals are graded, in place of the order of all that ran.
        unit: seed or workload, which differences are paired by.
    """

    known: str
    train: list[Trial]
    test: list[Trial]
    seed: int
    methods: tuple[str, ...]
    noise: NDArray[np.float64]
    proposals: bool = False
    unit: str = ""

    @property
    def overlap(self) -> float:
        """Correlation rho between two such splits of one table, as rho / (1 - rho); 0 between workloads.

        Nadeau and Bengio (Machine Learning 52, 2003) take the share held out for rho where most jobs are known; where
        few are, it is the share known that two splits have in common.
        """
        if self.proposals:
            return 0.0
        shares = sorted((n_completed(self.train), n_completed(self.test)))
        return shares[0] / shares[1]

    def __call__(self) -> Found:
        """Return what the methods reach."""
        return list(self._proposals() if self.proposals else self._orders())

    def _orders(self) -> Iterator[tuple[str, str, float]]:
        from scipy.stats import kendalltau

        reached = _reached(self.test)
        yield f"{self.known}: tau", REPEAT, tau_of_repeat(reached, self.noise)
        for name in self.methods:
            predicted = METHODS[name](self.train, self.test, self.seed)
            yield f"{self.known}: tau", name, float(kendalltau(predicted.throughput, reached)[0])
            yield f"{self.known}: median error", name, float(np.median(np.abs(predicted.throughput / reached - 1.0)))
            if name in OURS:
                inside = (predicted.quantile(0.1) <= reached) & (reached <= predicted.quantile(0.9))
                yield f"{self.known}: coverage", name, float(inside.mean())

    def _proposals(self) -> Iterator[tuple[str, str, float]]:
        from sklearn.metrics import roc_auc_score

        reached = _reached(self.test)
        for k in PROPOSALS:
            yield f"{self.known}: best of {k}", REPEAT, share_of_repeat(reached, self.noise, k)
        asked: dict[str, NDArray[np.float64]] = {}
        judges = {name: judge for name, judge in JUDGES.items() if name in (*self.methods, "ours")}
        fits = {name: judge(self.train, self.test, self.seed) for name, judge in judges.items()}
        for name in self.methods:
            predicted, runs = METHODS[name](self.train, self.test, self.seed), fits.get(name, fits["ours"])
            order = np.argsort(-predicted.throughput * runs, kind="stable")
            yield from self._best(name, reached[order], reached.max())
            if name in OURS:
                ran, low, high = reached > 0, predicted.quantile(0.1), predicted.quantile(0.9)
                inside = (low <= reached) & (reached <= high)
                yield f"{self.known}: coverage", name, float(inside[ran].mean())
            asked[name] = predicted.throughput
            if 0 < (reached > 0).sum() < len(reached):
                yield f"{self.known}: AUC", name, float(roc_auc_score(reached > 0, runs))
        if asked.keys() >= set(ENSEMBLE):
            ensemble = [asked[name] for name in ENSEMBLE]
            if are_facts_seen(self.test[0].workload, self.train):
                ensemble = [np.exp(np.mean(np.log(ensemble), axis=0))]
            picked = batch(self.test, ensemble, fits["ours"], count=PROPOSALS[-1])
            yield from self._best(SUGGEST, reached[picked], reached.max())

    def _best(self, name: str, tried: NDArray[np.float64], best: float) -> Iterator[tuple[str, str, float]]:
        for k in PROPOSALS:
            yield f"{self.known}: best of {k}", name, float(tried[:k].max() / best)


def random_jobs(
    trials: Sequence[Trial],
    lines: dict[str, Callable[[Sequence[Trial], int], Split]],
    *,
    seeds: int,
    paired_seeds: int,
) -> Iterator[Job]:
    """Yield splits for the order of jobs; for paired differences, the default and the libraries have more seeds."""
    noise = deviations(trials)
    for known, split in lines.items():
        for seed in range(max(seeds, paired_seeds)):
            train, test = split(trials, seed)
            test = [trial for trial in test if trial.measurement is not None]
            methods = tuple(METHODS) if seed < seeds else PAIRED
            yield Job(known=known, train=train, test=test, seed=seed, methods=methods, noise=noise, unit=str(seed))


def left_out_jobs(trials: Sequence[Trial], *, seed: int) -> Iterator[Job]:
    """Yield splits that leave a whole workload out; after the first seed for the default and the libraries alone."""
    noise = deviations(trials)
    for known, is_known in KNOWN_OF_OTHERS.items():
        for cell, members in cells(trials).items():
            train = [trial for trial in trials if is_known(trial, cell)]
            if n_completed(train) >= FEWEST_IN_CELL:
                yield Job(
                    known=known,
                    train=train,
                    test=members,
                    seed=seed,
                    methods=PAIRED if seed else tuple(METHODS),
                    noise=noise,
                    proposals=True,
                    unit=str(cell),
                )


def of_methods(jobs: Iterable[Job], names: Sequence[str]) -> Iterator[Job]:
    """Yield the jobs with those of their methods that are among ``names``."""
    for job in jobs:
        methods = tuple(name for name in job.methods if name in names)
        if methods:
            yield replace(job, methods=methods)


def graded(jobs: Iterable[Job], *, processes: int, scores: Scores | None = None) -> Scores:
    """Return what all jobs show, beside ``scores``; their order does not depend on the number of processes."""
    scores, jobs = scores or Scores(), list(jobs)
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn"), initializer=_quiet) as pool:
        for done, (job, found) in enumerate(zip(jobs, pool.map(Job.__call__, jobs), strict=True), start=1):
            scores.add(job, found)
            print(f"{done}: {found[0][0]}", file=sys.stderr, flush=True)
    return scores


def _quiet() -> None:
    warnings.filterwarnings("ignore", module="sklearn")
    warnings.filterwarnings("ignore", message=".*valid feature names.*")


def _reached(trials: Sequence[Trial]) -> NDArray[np.float64]:
    """Return throughput of the whole job, 0.0 of what failed."""
    speeds = [trial.measurement.tokens_per_second if trial.measurement else None for trial in trials]
    return np.array([speed or 0.0 for speed in speeds], dtype=np.float64)


def table(scores: Scores, *, seeds: int, aims: Mapping[str, str]) -> str:
    """Return means, the aim and the repeat of each line; means over ``seeds`` where a line has seeds."""
    columns = [*OURS, SUGGEST, *LIBRARIES]
    names = [name for name in columns if any(name in line for line in scores.of.values())]
    head = f"{'':36s} {'aim':>8s} {'repeat':>7s} " + " ".join(f"{_short(name):>8s}" for name in names)
    lines = [head]
    for line in scores.of:
        repeat = f"{np.mean(scores.repeats[line]):7.3f}" if line in scores.repeats else f"{'-':>7s}"
        numbers = [_mean(list(scores.means(line, name).values()), line, seeds) for name in names]
        lines.append(f"{line:36s} {aims.get(line, '-'):>8s} {repeat} " + " ".join(numbers))
    return "\n".join(lines)


def _mean(values: Sequence[float], line: str, seeds: int) -> str:
    if not values:
        return f"{'-':>8s}"
    return f"{np.mean(values if _is_left_out(line) else values[:seeds]):8.3f}"


def paired(scores: Scores, ours: str) -> str:
    """Return by how much ``ours`` differs from each library, with the 95 % interval of the mean."""
    lines = [f"{ours:36s} " + " ".join(f"{name:>24s}" for name in LIBRARIES)]
    for line, of in scores.of.items():
        if "coverage" in line or "error" in line or ours not in of:
            continue
        found = [
            _difference(scores.means(line, ours), scores.means(line, name), overlap=scores.overlap[line])
            for name in LIBRARIES
        ]
        lines.append(f"{line:36s} " + " ".join(found))
    return "\n".join(lines)


def _difference(left: Mapping[str, float], right: Mapping[str, float], *, overlap: float) -> str:
    from scipy.stats import t as student

    if left.keys() != right.keys() or len(left) < 2:
        return f"{'-':>24s}"
    gaps = np.array([left[unit] - right[unit] for unit in left])
    half = float(student.ppf(0.975, len(gaps) - 1)) * gaps.std(ddof=1) * np.sqrt(1.0 / len(gaps) + overlap)
    mark = "+" if gaps.mean() > half else "-" if gaps.mean() < -half else " "
    return f"{f'{gaps.mean():+.3f} [{gaps.mean() - half:+.3f}, {gaps.mean() + half:+.3f}] {mark}':>24s}"


def _is_left_out(line: str) -> bool:
    return any(line.startswith(known) for known in KNOWN_OF_OTHERS)


def _short(name: str) -> str:
    return name.replace("sklearn ", "").replace("gaussian_process", "gp").replace("ranking_mlp", "mlp")


def _paired_sections(scores: Scores, paired_seeds: int) -> list[str]:
    return [
        f"Paired differences to each library, mean and 95 % interval by Student's t: over {paired_seeds} splits,",
        "which overlap and so count for fewer (the corrected variance of Nadeau and Bengio, 2003, with the smaller of",
        "the shares known and held out), or over the workloads left out; + and - where it is sure. Which jobs ran on",
        f"{LARGEST_KNOWN} GPUs or fewer does not change from split to split, and ten more hardly change them: there an",
        f"interval tells of the seeds of the methods alone. {SUGGEST} was asked with one seed.",
        "",
        paired(scores, DEFAULT_PREDICTOR),
        "",
        paired(scores, SUGGEST),
        "",
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """Extent of the measurements.

    Args:
        seeds: random splits that all methods are averaged over.
        paired_seeds: random splits behind the paired differences.
        left_out_seeds: seeds for each workload that is left out.
        minutes: no further one of these is begun that would not end within them.
        methods: names of those that are asked.
        processes: that share the splits.
    """

    seeds: int
    paired_seeds: int
    left_out_seeds: int
    minutes: float
    methods: tuple[str, ...]
    processes: int

    def graded(self, jobs: Iterable[Job], scores: Scores | None = None) -> Scores:
        """Return what ``jobs`` show of the methods."""
        return graded(of_methods(jobs, self.methods), processes=self.processes, scores=scores)


def measured(extent: Extent) -> str:
    """Return the whole text."""
    begun = time.monotonic()
    trials, seeds, paired_seeds = h100_jobs(), extent.seeds, extent.paired_seeds
    scores = extent.graded(random_jobs(trials, LINES, seeds=seeds, paired_seeds=paired_seeds))
    fsdp = extent.graded(random_jobs(fsdp_jobs(), FSDP_LINES, seeds=seeds, paired_seeds=seeds))
    before, left_out_seeds = time.monotonic(), extent.left_out_seeds
    for seed in range(left_out_seeds):
        lasted, before = time.monotonic() - before, time.monotonic()
        if seed and before + lasted > begun + 60.0 * extent.minutes:
            left_out_seeds = seed
            break
        extent.graded(left_out_jobs(trials, seed=seed), scores)
    sections = [
        f"{H100_JOBS.name}: {len(trials)} trials, {n_completed(trials)} completed; whole job. The default predictor",
        f"is {DEFAULT_PREDICTOR}. Mean of {seeds} seeds; where whole workloads are left out, mean over all of them, of",
        f"the default and the libraries over {left_out_seeds} seeds of each. tau: Kendall's, on completed trials",
        "outside training. Best of k: highest measured of the first k proposals over the best known of a workload",
        f"(model and number of GPUs), what failed counts 0; {SUGGEST}: the batch that the product picks, by",
        f"{', '.join(ENSEMBLE)}, their mean where others had each fact of the workload, else in turn, and each",
        "job apart from the others. AUC: of the probability to run, mean",
        "within workloads with both outcomes. Coverage: of 80 % intervals. Repeat: the table as a prediction of",
        "itself, measured once more with the noise of repeats (jobs that differ in ZeRO stage only); no upper bound.",
        "Both tables were also used to choose settings.\n",
        table(scores, seeds=seeds, aims=AIMS),
        "",
        *(_paired_sections(scores, paired_seeds) if set(LIBRARIES) & set(extent.methods) else []),
        f"{FSDP_JOBS.name}: 300 completed trials, few configs per workload\n",
        table(fsdp, seeds=seeds, aims={}),
    ]
    return "\n".join([*sections, "", cost(trials)])


def main() -> int:
    """Print the table; exit status 1 without the data."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5, help="random splits to average over")
    parser.add_argument("--paired-seeds", type=int, default=20, help="random splits behind the paired differences")
    parser.add_argument("--left-out-seeds", type=int, default=3, help="seeds for each workload that is left out")
    parser.add_argument("--minutes", type=float, default=600.0, help="after which no further one of these is begun")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS), help="to be asked (all)")
    parser.add_argument("--processes", type=int, default=1, help="that share the splits")
    parser.add_argument("--cost", action="store_true", help="measure time alone, from 100 to 100,000 trials")
    parser.add_argument("--output", type=Path, default=None, help="file to write besides")
    args = parser.parse_args()
    if not H100_JOBS.exists():
        print(f"{H100_JOBS} is not there: nothing to measure on", file=sys.stderr)
        return 1
    _quiet()
    if args.cost:
        text = cost(h100_jobs())
    else:
        text = measured(
            Extent(
                seeds=args.seeds,
                paired_seeds=args.paired_seeds,
                left_out_seeds=args.left_out_seeds,
                minutes=args.minutes,
                methods=tuple(args.methods),
                processes=args.processes,
            )
        )
    print(text)
    if args.output is not None:
        args.output.parent.mkdir(parents=True, exist_ok=True)
        args.output.write_text(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
