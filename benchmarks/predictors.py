"""One table: every predictor beside well-known libraries on public runs, on the same splits in the same run.

python benchmarks/predictors.py [--seeds 5] [--paired-seeds 20] [--cost] [--output benchmarks/results/predictors.txt]
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from ceilings import deviations, share_ceiling, tau_ceiling
from methods import LIBRARIES, OBJECTIVE, OURS
from splits import FEWEST_IN_CELL, FSDP_LINES, KNOWN_OF_OTHERS, LARGEST_KNOWN, LINES, cells, n_completed
from tables import FSDP_JOBS, H100_JOBS, fsdp_jobs, h100_jobs

from torchx_cubicml.history import History
from torchx_cubicml.predictors import DEFAULT_PREDICTOR, PREDICTORS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from methods import Method, Told
    from numpy.typing import NDArray
    from splits import Split

    from torchx_cubicml.trial import Trial

METHODS: dict[str, Method] = {**OURS, **LIBRARIES}
PROPOSALS = (1, 3, 5, 10)
SMALL = f"<= {LARGEST_KNOWN} GPUs known"
COUNTS = (100, 1_000, 10_000, 100_000)
_T_95 = {4: 2.776, 19: 2.093, 20: 2.086, 22: 2.074}  # two-sided 95 % of Student's t by degrees of freedom

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
    """Line of the table -> method -> one number per seed, or per workload left out."""

    of: dict[str, dict[str, list[float]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))
    ceilings: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def add(self, line: str, method: str, value: float) -> None:
        """Note one number."""
        self.of[line][method].append(value)


def random_lines(
    scores: Scores,
    trials: Sequence[Trial],
    lines: dict[str, Callable[[Sequence[Trial], int], Split]],
    *,
    seeds: int,
    paired_seeds: int,
) -> None:
    """Fill in rank correlations and coverage; the default and the libraries on more seeds, for paired differences."""
    noise = deviations(trials)
    for known, split in lines.items():
        for seed in range(max(seeds, paired_seeds)):
            train, test = split(trials, seed)
            test = [trial for trial in test if trial.measurement is not None]
            reached = _reached(test)
            scores.ceilings[f"{known}: tau"].append(tau_ceiling(reached, noise))
            for name, method in METHODS.items():
                if seed < seeds or name == DEFAULT_PREDICTOR or name in LIBRARIES:
                    _grade(scores, (known, name), method(train, test, seed), reached)
        _tell_progress(scores, known, seeds=seeds)


def _grade(scores: Scores, where: tuple[str, str], told: Told, reached: NDArray[np.float64]) -> None:
    from scipy.stats import kendalltau

    known, name = where
    scores.add(f"{known}: tau", name, float(kendalltau(told.throughput, reached)[0]))
    scores.add(f"{known}: median error", name, float(np.median(np.abs(told.throughput / reached - 1.0))))
    if told.low is not None and told.high is not None:
        inside = (told.low <= reached) & (reached <= told.high)
        scores.add(f"{known}: coverage", name, float(inside.mean()))


def left_out_lines(scores: Scores, trials: Sequence[Trial]) -> None:
    """Fill in what the first proposals for a workload reach of its best, and how well failures are told."""
    from sklearn.metrics import roc_auc_score

    noise = deviations(trials)
    for known, is_known in KNOWN_OF_OTHERS.items():
        for cell, members in cells(trials).items():
            train = [trial for trial in trials if is_known(trial, cell)]
            if n_completed(train) < FEWEST_IN_CELL:
                continue
            reached = _reached(members)
            for k in PROPOSALS:
                scores.ceilings[f"{known}: best of {k}"].append(share_ceiling(reached, noise, k))
            for name, method in METHODS.items():
                told = method(train, members, 0)
                for k, share in zip(PROPOSALS, _shares(told, reached), strict=True):
                    scores.add(f"{known}: best of {k}", name, share)
                if 0 < (reached > 0).sum() < len(reached):
                    scores.add(f"{known}: AUC", name, float(roc_auc_score(reached > 0, told.fits)))
        _tell_progress(scores, known, seeds=1)


def _tell_progress(scores: Scores, known: str, *, seeds: int) -> None:
    done = Scores()
    done.of.update({line: of for line, of in scores.of.items() if line.startswith(known)})
    done.ceilings.update(scores.ceilings)
    print(table(done, seeds=seeds), file=sys.stderr, flush=True)


def _shares(told: Told, reached: NDArray[np.float64]) -> list[float]:
    tried = reached[np.argsort(-told.throughput * told.fits, kind="stable")]
    return [float(tried[:k].max() / reached.max()) for k in PROPOSALS]


def _reached(trials: Sequence[Trial]) -> NDArray[np.float64]:
    """Return throughput of the whole job, 0.0 of what failed."""
    speeds = [trial.measurement.tokens_per_second if trial.measurement else None for trial in trials]
    return np.array([speed or 0.0 for speed in speeds], dtype=np.float64)


def table(scores: Scores, *, seeds: int) -> str:
    """Return means, the aim and the ceiling of each line; means over ``seeds`` where a line has seeds."""
    names = [name for name in METHODS if any(name in line for line in scores.of.values())]
    head = f"{'':36s} {'aim':>8s} {'ceiling':>7s} " + " ".join(f"{_short(name):>8s}" for name in names)
    lines = [head]
    for line, of in scores.of.items():
        ceiling = f"{np.mean(scores.ceilings[line]):7.3f}" if line in scores.ceilings else f"{'-':>7s}"
        numbers = [_mean(of.get(name, []), line, seeds) for name in names]
        lines.append(f"{line:36s} {AIMS.get(line, '-'):>8s} {ceiling} " + " ".join(numbers))
    return "\n".join(lines)


def _mean(values: Sequence[float], line: str, seeds: int) -> str:
    if not values:
        return f"{'-':>8s}"
    return f"{np.mean(values if _is_left_out(line) else values[:seeds]):8.3f}"


def paired(scores: Scores) -> str:
    """Return by how much the default differs from each library, with the 95 % interval of the mean."""
    lines = [f"{'':36s} " + " ".join(f"{name:>24s}" for name in LIBRARIES)]
    for line, of in scores.of.items():
        if "coverage" in line or "error" in line or DEFAULT_PREDICTOR not in of:
            continue
        found = [_difference(of[DEFAULT_PREDICTOR], of.get(name, [])) for name in LIBRARIES]
        lines.append(f"{line:36s} " + " ".join(found))
    return "\n".join(lines)


def _difference(left: Sequence[float], right: Sequence[float]) -> str:
    if len(right) != len(left) or len(left) < 2:
        return f"{'-':>24s}"
    gaps = np.array(left) - np.array(right)
    half = _T_95.get(len(gaps) - 1, 2.0) * gaps.std(ddof=1) / np.sqrt(len(gaps))
    mark = "+" if gaps.mean() > half else "-" if gaps.mean() < -half else " "
    return f"{f'{gaps.mean():+.3f} [{gaps.mean() - half:+.3f}, {gaps.mean() + half:+.3f}] {mark}':>24s}"


def _is_left_out(line: str) -> bool:
    return any(line.startswith(known) for known in KNOWN_OF_OTHERS)


def _short(name: str) -> str:
    return name.replace("sklearn ", "").replace("gaussian_process", "gp").replace("ranking_mlp", "mlp")


def cost(trials: Sequence[Trial], *, counts: Sequence[int] = COUNTS) -> str:
    """Return how long the predictors take to learn from tables of some sizes, made by repeating this one.

    Processor seconds: the predictors keep to one thread, and what else the machine does is not counted.
    """
    ran = [trial for trial in trials if trial.measurement is not None]
    lines = [
        "processor seconds, on one core",
        f"{'trials':>8s} {'predictor':12s} {'to a table':>11s} {'fitted in':>10s} {'configs a second':>17s}",
    ]
    for count in counts:
        many = [ran[index % len(ran)] for index in range(count)]
        started = time.process_time()
        history = History.from_trials(many, objective=OBJECTIVE)
        read = time.process_time() - started
        asked = np.vstack([history.features] * max(20_000 // count, 1))
        for name in (DEFAULT_PREDICTOR, "boosting", "roofline"):
            started = time.process_time()
            fitted = PREDICTORS[name]().fit(history, rng=np.random.default_rng(0))
            learned = time.process_time()
            fitted.predict(asked)
            speed = len(asked) / (time.process_time() - learned)
            lines.append(f"{count:8d} {name:12s} {read:9.2f} s {learned - started:8.2f} s {speed:17,.0f}")
    return "\n".join(lines)


def measured(*, seeds: int, paired_seeds: int, with_cost: bool) -> str:
    """Return the whole text."""
    trials = h100_jobs()
    scores, fsdp = Scores(), Scores()
    random_lines(scores, trials, LINES, seeds=seeds, paired_seeds=paired_seeds)
    left_out_lines(scores, trials)
    random_lines(fsdp, fsdp_jobs(), FSDP_LINES, seeds=seeds, paired_seeds=seeds)
    sections = [
        f"{H100_JOBS.name}: {len(trials)} trials, {n_completed(trials)} completed; whole job. The default predictor is",
        f"{DEFAULT_PREDICTOR}. Mean of {seeds} seeds; one seed over all workloads where whole workloads are left out.",
        "tau: Kendall's, on completed trials outside training. Best of k: highest measured of the first k proposals",
        "over the best known of a workload (model and number of GPUs), what failed counts 0. AUC: of the probability",
        "to run, mean within workloads with both outcomes. Coverage: of 80 % intervals. Ceiling: a perfect model under",
        "the noise of repeats alone (jobs that differ in ZeRO stage only).",
        "",
        table(scores, seeds=seeds),
        "",
        f"Paired difference of {DEFAULT_PREDICTOR} to each library, mean and 95 % interval: over {paired_seeds} seeds,",
        "or over the workloads left out; + and - where it is sure.",
        "",
        paired(scores),
        "",
        f"{FSDP_JOBS.name}: 300 completed trials, few configs per workload",
        "",
        table(fsdp, seeds=seeds),
    ]
    return "\n".join([*sections, *(["", cost(trials)] if with_cost else [])])


def main() -> int:
    """Print the table; exit status 1 without the data."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5, help="random splits to average over")
    parser.add_argument("--paired-seeds", type=int, default=20, help="random splits behind the paired differences")
    parser.add_argument("--cost", action="store_true", help="measure time alone, from 100 to 100,000 trials")
    parser.add_argument("--output", type=Path, default=None, help="file to write besides")
    args = parser.parse_args()
    if not H100_JOBS.exists():
        print(f"{H100_JOBS} is not there: nothing to measure on", file=sys.stderr)
        return 1
    warnings.filterwarnings("ignore", module="sklearn")
    warnings.filterwarnings("ignore", message=".*valid feature names.*")
    text = (
        cost(h100_jobs()) if args.cost else measured(seeds=args.seeds, paired_seeds=args.paired_seeds, with_cost=True)
    )
    print(text)
    if args.output is not None:
        args.output.parent.mkdir(parents=True, exist_ok=True)
        args.output.write_text(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
