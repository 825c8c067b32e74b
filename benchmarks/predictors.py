"""Measures predictors on public runs: rank correlation, regret and coverage on trials that they did not see.

python benchmarks/predictors.py [--seeds 5] [--output benchmarks/results/predictors.txt]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from tables import FSDP_JOBS, H100_JOBS, fsdp_jobs, h100_jobs

from torchx_cubicml.evaluation import grade
from torchx_cubicml.history import History, training_row
from torchx_cubicml.predictors import PREDICTORS, Feasibility

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torchx_cubicml.evaluation import ReportCard
    from torchx_cubicml.trial import Trial

Split: TypeAlias = "tuple[list[Trial], list[Trial]]"

LARGEST_KNOWN = 32  # processes; what is larger is predicted


def split_at_random(trials: Sequence[Trial], known: int | float, seed: int) -> Split:
    """Return ``known`` completed trials (a number, or a share) with failures in proportion, and all others."""
    ran = [trial for trial in trials if trial.measurement is not None]
    failed = [trial for trial in trials if trial.measurement is None]
    rng = np.random.default_rng(seed)
    share = known if isinstance(known, float) else known / len(ran)
    train: list[Trial] = []
    test: list[Trial] = []
    for group in (ran, failed):
        order = rng.permutation(len(group)).tolist()
        cut = round(share * len(group))
        train += [group[index] for index in order[:cut]]
        test += [group[index] for index in order[cut:]]
    return train, test


def split_by_scale(trials: Sequence[Trial], large: int, seed: int) -> Split:
    """Return all trials on few processes and ``large`` completed ones beyond, and all others."""
    train = [trial for trial in trials if int(str(trial.fact("world_size"))) <= LARGEST_KNOWN]
    beyond = [trial for trial in trials if int(str(trial.fact("world_size"))) > LARGEST_KNOWN]
    ran = [index for index, trial in enumerate(beyond) if trial.measurement is not None]
    told = set(np.random.default_rng(seed).permutation(ran)[:large].tolist())
    train += [trial for index, trial in enumerate(beyond) if index in told]
    return train, [trial for index, trial in enumerate(beyond) if index not in told]


def split_by_date(trials: Sequence[Trial], _seed: int) -> Split:
    """Return the trials of the first date, and all later ones."""
    first = min(trial.started_at for trial in trials)
    return [t for t in trials if t.started_at == first], [t for t in trials if t.started_at > first]


LINES: dict[str, Callable[[Sequence[Trial], int], Split]] = {
    "30 random jobs known": lambda trials, seed: split_at_random(trials, 30, seed),
    "100 random jobs known": lambda trials, seed: split_at_random(trials, 100, seed),
    "80 % known": lambda trials, seed: split_at_random(trials, 0.8, seed),
    f"<= {LARGEST_KNOWN} GPUs known": lambda trials, seed: split_by_scale(trials, 0, seed),
    "the same and 10 larger": lambda trials, seed: split_by_scale(trials, 10, seed),
}
FSDP_LINES: dict[str, Callable[[Sequence[Trial], int], Split]] = {
    **{known: LINES[known] for known in list(LINES)[:3]},
    "first date known": split_by_date,
}
PROPOSALS = (1, 3, 5, 10)
FEWEST_IN_CELL = 20  # completed trials of a workload that is left out


def table(trials: Sequence[Trial], lines_of: dict[str, Callable[[Sequence[Trial], int], Split]], *, seeds: int) -> str:
    """Return the table of all predictors on all lines, mean over ``seeds``."""
    lines = [
        f"{'known':24s} {'predictor':12s} {'tau':>6s} {'first proposal':>15s} {'coverage':>9s} {'fit, predict':>13s}"
    ]
    for known, split in lines_of.items():
        for name in PREDICTORS:
            started = time.perf_counter()
            cards = [_card(trials, split, name, known, seed) for seed in range(seeds)]
            seconds = (time.perf_counter() - started) / seeds
            lines.append(
                f"{known:24s} {name:12s} {_mean(cards, 'tau'):6.3f} {1 - _mean(cards, 'regret'):15.3f} "
                f"{_mean(cards, 'coverage'):9.2f} {seconds:11.1f} s"
            )
    return "\n".join(lines)


def cells(trials: Sequence[Trial]) -> str:
    """Return how good the best of the first few proposals is for a workload that is left out, mean over workloads."""
    groups: defaultdict[object, list[Trial]] = defaultdict(list)
    for trial in trials:
        groups[trial.workload["program"], trial.workload["world_size"]].append(trial)
    cells = [group for group in groups.values() if sum(t.measurement is not None for t in group) >= FEWEST_IN_CELL]
    lines = [f"{len(cells)} workloads left out in turn; share of the best known that the best of k proposals reaches"]
    lines.append(f"{'':24s} {'predictor':12s} " + " ".join(f"{f'k = {k}':>7s}" for k in PROPOSALS))
    for name in PREDICTORS:
        shares = np.mean([_shares(trials, cell, name) for cell in cells], axis=0)
        lines.append(f"{'':24s} {name:12s} " + " ".join(f"{share:7.3f}" for share in shares))
    return "\n".join(lines)


def _shares(trials: Sequence[Trial], cell: Sequence[Trial], name: str) -> list[float]:
    left_out = {trial.trial_id for trial in cell}
    known = [trial for trial in trials if trial.trial_id not in left_out]
    history = History.from_trials(known, objective="tokens_per_second")
    rows = [training_row(trial) for trial in cell]
    features = history.columns.encode(rows)
    rng = np.random.default_rng(0)
    predicted = PREDICTORS[name]().fit(history, rng=rng).predict(features).throughput
    score = predicted * Feasibility().fit(history, rng=rng).probability(features, rows)
    speeds = [trial.measurement.tokens_per_second if trial.measurement else None for trial in cell]
    reached = np.array([speed or 0.0 for speed in speeds])[np.argsort(-score)]
    return [float(reached[:k].max() / reached.max()) for k in PROPOSALS]


def cost(trials: Sequence[Trial], *, count: int = 10_000) -> str:
    """Return how long ``count`` trials take to learn from, made by repeating the table."""
    ran = [trial for trial in trials if trial.measurement is not None]
    many = [ran[index % len(ran)] for index in range(count)]
    lines = []
    for name, make in PREDICTORS.items():
        started = time.perf_counter()
        history = History.from_trials(many, objective="tokens_per_second")
        read = time.perf_counter()
        fitted = make().fit(history, rng=np.random.default_rng(0))
        learned = time.perf_counter()
        fitted.predict(history.features)
        scored = time.perf_counter()
        lines.append(
            f"{name}: {count} trials to a table in {read - started:.1f} s, fitted in {learned - read:.1f} s; "
            f"{count / (scored - learned):,.0f} configs scored a second"
        )
    return "\n".join(lines)


def _card(
    trials: Sequence[Trial], split: Callable[[Sequence[Trial], int], Split], name: str, known: str, seed: int
) -> ReportCard:
    train, test = split(trials, seed)
    return grade(train, test, predictor=name, objective="tokens_per_second", split=known, seed=seed)


def _mean(cards: Sequence[ReportCard], name: str) -> float:
    return statistics.fmean(getattr(card, name) for card in cards)


def main() -> int:
    """Print the tables; exit status 1 without the data."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5, help="random splits to average over")
    parser.add_argument("--output", type=Path, default=None, help="file to write besides")
    args = parser.parse_args()
    if not H100_JOBS.exists():
        print(f"{H100_JOBS} is not there: nothing to measure on", file=sys.stderr)
        return 1
    trials = h100_jobs()
    ran = sum(trial.measurement is not None for trial in trials)
    text = "\n".join(
        [
            f"{H100_JOBS.name}: {len(trials)} trials, {ran} completed; whole job, mean of {args.seeds} seeds.",
            "tau: Kendall's, on completed trials outside training. First proposal: share of the best that the held-out",
            "trials of a workload reach, mean over workloads; what failed counts 0. Coverage: of 80 % intervals.",
            "",
            table(trials, LINES, seeds=args.seeds),
            "",
            cells(trials),
            "",
            f"{FSDP_JOBS.name}: 300 completed trials, few configs per workload",
            "",
            table(fsdp_jobs(), FSDP_LINES, seeds=args.seeds),
            "",
            cost(trials),
        ]
    )
    print(text)
    if args.output is not None:
        args.output.parent.mkdir(parents=True, exist_ok=True)
        args.output.write_text(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
