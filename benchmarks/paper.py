"""The paper's recipe on simulated layer-wise FSDP: a hundred random jobs, then three rounds of predictor and REINFORCE.

python benchmarks/paper.py [--seeds 5] [--layers 24] [--output benchmarks/results/paper.txt] [--draw paper.svg]

After CubicML (arXiv 2409.04585), whose figure 2 shows three things that are looked for here: random search saturates,
each round jumps, and within a round, whose jobs are launched in the order of their prediction, throughput falls. For
ranking networks, a job out of memory stands below all others; what boosting predicts of those that fit is
multiplied by the probability to fit. ``tune:ranking_mlp`` is the recipe as the options of ``torchx cubicml tune`` run
it, with that probability for the ranking networks, too.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from lib.simulator import FAMILIES, Simulator

from torchx_cubicml.advisor import ProposalMethod, Study
from torchx_cubicml.predictors import PREDICTORS, CrossWorkloadFeasibility
from torchx_cubicml.predictors.features.history import TrainingTable
from torchx_cubicml.predictors.features.rows import VectorColumns
from torchx_cubicml.predictors.threads import one_thread
from torchx_cubicml.searchers.reinforce import Reinforce
from torchx_cubicml.space.encoding import config_at, vectors_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.records.values import Config, Workload
    from torchx_cubicml.space import SearchSpace

RANDOM_JOBS = 100
ROUNDS = 3
JOBS_A_ROUND = 33
TUNE = "tune:"  # the recipe by the options of ``torchx cubicml tune``
_FAILED = 0.1  # throughput of a job that did not fit, as a share of the slowest that did: it only has to rank below


def propose(
    space: SearchSpace,
    workload: Workload,
    trials: Sequence[Trial],
    *,
    count: int,
    rng: np.random.Generator,
    predictor: str = "ranking_mlp",
) -> list[Config]:
    """Return what the paper's recipe launches next, best prediction first; a random batch before ``RANDOM_JOBS``.

    Args:
        space: bound to the workload.
        workload: facts.
        trials: of this workload so far.
        count: how many.
        rng: the only source of randomness.
        predictor: name of the method.
    """
    if len(trials) < RANDOM_JOBS:
        return space.sample(min(count, RANDOM_JOBS - len(trials)), rng=rng)
    return propose_round(space, workload, trials, count=count, rng=rng, predictor=predictor)


def propose_round(
    space: SearchSpace,
    workload: Workload,
    trials: Sequence[Trial],
    *,
    count: int,
    rng: np.random.Generator,
    predictor: str = "ranking_mlp",
) -> list[Config]:
    """Return the jobs of a round, best prediction first; one of ``trials`` at least was measured. See ``propose``."""
    with one_thread():
        score = _Score(space, workload, trials, predictor=predictor, rng=rng)
        # A search for each proposal: their tops differ more than many tops of few.
        return Reinforce(searches=count, batch=24, steps=60).search(space, score, count=count, rng=rng)


def propose_as_tune(
    simulator: Simulator, trials: Sequence[Trial], *, predictor: str, seed: int, number: int
) -> list[Config]:
    """Return the jobs of a round as ``tune --start random --predictor NAME --searcher reinforce --acquisition mean``.

    Args:
        simulator: of the model.
        trials: of it so far.
        predictor: name of the method.
        seed: of the tune.
        number: of the round; 0 for the random jobs.
    """
    method = ProposalMethod(acquisition="mean", searcher="reinforce", predictor=predictor, random_launches=RANDOM_JOBS)
    space = simulator.space.bind(workload=simulator.workload, current={})
    (own,) = space.sample(1, rng=np.random.default_rng(seed))
    study = Study.of(
        simulator.space,
        workload=simulator.workload,
        current=own,
        trials=trials,
        seed=seed + number,
        predictor=predictor,
    )
    if number == 0:
        return [each.config for each in study.designs(count=RANDOM_JOBS, method=method)]
    found = study.search_by_predictor(count=JOBS_A_ROUND, method=method, round_number=number)
    return [each.config for each in found]


class _Score:
    """Throughput that the predictor expects of configs; ``-inf`` for those that were launched already."""

    def __init__(
        self,
        space: SearchSpace,
        workload: Workload,
        trials: Sequence[Trial],
        *,
        predictor: str,
        rng: np.random.Generator,
    ) -> None:
        history = TrainingTable.from_trials(trials, objective=space.objective)
        self._feasibility = None if predictor == "ranking_mlp" else CrossWorkloadFeasibility().fit(history, rng=rng)
        if self._feasibility is None:
            below = _FAILED * float(np.nanmin(history.throughput))
            history = replace(history, throughput=np.where(history.feasible, history.throughput, below))
        self._space, self._workload = space, workload
        self._columns = VectorColumns(space, history.columns, facts=workload)
        self._predictor = PREDICTORS[predictor]().fit(history, rng=rng)
        self._launched = {row.tobytes() for row in vectors_of(space, [trial.config for trial in trials])}

    def __call__(self, configs: Sequence[Config]) -> NDArray[np.float64]:
        return self.of_vectors(vectors_of(self._space, configs))

    def of_vectors(self, vectors: NDArray[np.intp]) -> NDArray[np.float64]:
        features = self._columns.encode(vectors)
        expected = self._predictor.predict(features).throughput
        if self._feasibility is not None:
            rows = [{**self._workload, **config_at(self._space, vector)} for vector in vectors]
            expected = expected * self._feasibility.probability(features, rows)
        known = np.array([row.tobytes() in self._launched for row in vectors], dtype=np.bool_)
        return np.where(known, -np.inf, expected)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One search: noise-free throughput of its jobs in the order of their launch, as shares of the optimum.

    Args:
        shares: 0.0 where memory ran out, ``[n_jobs]``.
        measured: the same with noise.
        seconds: of the processor that a round's proposals took, mean.
    """

    shares: NDArray[np.float64]
    measured: NDArray[np.float64]
    seconds: float

    def best(self, jobs: int) -> float:
        """Return the share reached by the config of the highest measurement among the first ``jobs``."""
        return float(self.shares[int(np.argmax(self.measured[:jobs]))])

    def round(self, number: int) -> NDArray[np.float64]:
        """Return the measurements of one round, 1 to ``ROUNDS``, in the order of their launch; 0 the random jobs."""
        if number == 0:
            return self.measured[:RANDOM_JOBS]
        start = RANDOM_JOBS + (number - 1) * JOBS_A_ROUND
        return self.measured[start : start + JOBS_A_ROUND]


def run(simulator: Simulator, method: str, *, optimum: float, seed: int) -> Run:
    """Return a search of ``RANDOM_JOBS`` and ``ROUNDS`` by a predictor, or of as many random jobs."""
    rng = np.random.default_rng(seed)
    space = simulator.space.bind(workload=simulator.workload, current={})
    trials: list[Trial] = []
    seconds = []
    for number in range(ROUNDS + 1):
        started = time.process_time()
        count = JOBS_A_ROUND if number else RANDOM_JOBS
        if method == "random":
            configs = space.sample(count, rng=rng)
        elif method.startswith(TUNE):
            configs = propose_as_tune(simulator, trials, predictor=method.removeprefix(TUNE), seed=seed, number=number)
        else:
            configs = propose(space, simulator.workload, trials, count=count, rng=rng, predictor=method)
        seconds += [time.process_time() - started] if number else []
        trials += [
            simulator.launch(config, rng=rng, number=len(trials) + place) for place, config in enumerate(configs)
        ]
    speeds = [trial.measurement.samples_per_second if trial.measurement else None for trial in trials]
    return Run(
        shares=np.array([simulator.throughput(trial.config) for trial in trials]) / optimum,
        measured=np.array([speed or 0.0 for speed in speeds]) / optimum,
        seconds=statistics.fmean(seconds),
    )


def falls(measured: NDArray[np.float64]) -> float:
    """Return Kendall's tau of the order of launch and the measurement; -1 where every job is slower than the last."""
    from scipy.stats import kendalltau

    if len(measured) < 3:
        return 0.0
    tau = float(kendalltau(np.arange(len(measured)), measured).statistic)
    return tau if np.isfinite(tau) else 0.0


METHODS = ("random", "ranking_mlp", "boosting", f"{TUNE}ranking_mlp")
_MARKS = (25, 50, RANDOM_JOBS, *(RANDOM_JOBS + JOBS_A_ROUND * (number + 1) for number in range(ROUNDS)))


def table(runs: dict[tuple[str, str], list[Run]]) -> str:
    """Return the orderings as a table, mean over runs.

    Args:
        runs: family and method -> the runs.
    """
    lines = [
        f"{'family':9s}{'method':18s}" + "".join(f"{mark:>7d}" for mark in _MARKS) + "   jobs; best measured so far",
    ]
    lines += [
        f"{family:9s}{method:18s}" + "".join(f"{_mean([run.best(mark) for run in group]):7.3f}" for mark in _MARKS)
        for (family, method), group in runs.items()
    ]
    lines += [
        "",
        f"{'family':9s}{'method':18s}{'':8s}random round 1 round 2 round 3",
    ]
    for (family, method), group in runs.items():
        if method == "random":
            continue
        measures = {
            "median": lambda values: float(np.median(values)),
            "fits": lambda values: float(np.mean(values > 0)),
            "tau": falls,
            "tau, fit": lambda values: falls(values[values > 0]),
        }
        for name, measure in measures.items():
            cells = [_mean([measure(run.round(number)) for run in group]) for number in range(ROUNDS + 1)]
            lines.append(f"{family:9s}{method:18s}{name:8s}" + "".join(f"{cell:7.2f}" for cell in cells))
        lines.append(f"{family:9s}{method:18s}a round takes {_mean([run.seconds for run in group]):.1f} s of one core")
    for method in dict.fromkeys(method for _, method in runs):
        lines += [
            "",
            f"{method}, all families:",
            *orderings([run for (_, by), g in runs.items() if by == method for run in g]),
        ]
    return "\n".join(lines)


def orderings(group: Sequence[Run]) -> list[str]:
    """Return what the runs of one method show of the paper's orderings, with standard errors over runs."""
    steps = [RANDOM_JOBS // 4, RANDOM_JOBS // 2, *_MARKS[2:]]
    lines = [
        f"  best measured, {here} jobs to {then}: {_mean_text([run.best(then) - run.best(here) for run in group])}"
        for here, then in pairwise(steps)
    ]
    for number in range(1, ROUNDS + 1):
        jumps = [float(np.median(run.round(number)) - np.median(run.round(number - 1))) for run in group]
        lines.append(f"  median of round {number} over that before: {_mean_text(jumps)}")
    taus = [falls(run.round(number)) for run in group for number in range(1, ROUNDS + 1)]
    lines.append(f"  tau of launch order and measurement within a round: {_mean_text(taus)}")
    return lines


def _mean_text(values: Sequence[float]) -> str:
    error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else float("nan")
    up = sum(value > 0 for value in values)
    return f"{_mean(values):+.3f} +- {error:.3f}, above 0 in {up} of {len(values)}"


def draw(runs: dict[tuple[str, str], list[Run]], path: Path) -> None:
    """Draw every job of the first run of each family by the order of its launch, as the paper's figure 2 does."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams.update({"svg.hashsalt": "paper", "svg.fonttype": "none", "font.size": 8})
    from matplotlib import pyplot as plt

    methods = list(dict.fromkeys(method for _, method in runs if method != "random"))
    if not methods:
        return
    size = (11, 1 + 2.3 * len(methods))
    figure, axes = plt.subplots(len(methods), len(FAMILIES), figsize=size, sharex=True, sharey=True, squeeze=False)
    for row, method in zip(axes, methods, strict=True):
        for axis, family in zip(row, FAMILIES, strict=True):
            first = runs[family, method][0]
            for number in range(ROUNDS + 1):
                values = first.round(number)
                start = 0 if number == 0 else RANDOM_JOBS + (number - 1) * JOBS_A_ROUND
                place = start + np.arange(len(values))
                axis.scatter(place, values, s=7, label="random" if number == 0 else f"round {number}")
            axis.plot(np.maximum.accumulate(first.measured), color="0.6", linewidth=0.8, zorder=0)
            axis.set_title(f"{family}, {method}")
    axes[0][0].legend(loc="lower right", fontsize=6)
    figure.supxlabel("job, in the order of launch (0: out of memory)")
    figure.supylabel("measured throughput / strong optimum")
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def _mean(values: Sequence[float]) -> float:
    return statistics.fmean(values)


def main() -> None:
    """Print the table and draw the figure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5, help="simulated models of each family")
    parser.add_argument("--first-seed", type=int, default=0, help="of the first of them")
    parser.add_argument("--layers", type=int, default=24, help="layers of each")
    parser.add_argument("--methods", default=",".join(METHODS), help="predictors, and random for none")
    parser.add_argument("--output", type=Path, default=None, help="file to write besides")
    parser.add_argument("--draw", type=Path, default=None, help="SVG file to draw")
    args = parser.parse_args()
    simulators = {
        (family, seed): Simulator.draw(seed, n_layers=args.layers, family=family)
        for family in FAMILIES
        for seed in range(args.first_seed, args.first_seed + args.seeds)
    }
    optima = {which: simulator.optimum() for which, simulator in simulators.items()}
    runs: dict[tuple[str, str], list[Run]] = {}
    for method in args.methods.split(","):
        for (family, seed), simulator in simulators.items():
            found = run(simulator, method, optimum=optima[family, seed], seed=seed)
            runs.setdefault((family, method), []).append(found)
        _report(runs, args)  # what is done so far, for those who wait


def _report(runs: dict[tuple[str, str], list[Run]], args: argparse.Namespace) -> None:
    text = "\n".join(
        [
            f"{RANDOM_JOBS} random jobs, then {ROUNDS} rounds of {JOBS_A_ROUND} by predictor and REINFORCE; "
            f"{args.layers} layers, {args.seeds} simulated models of each family (seeds from {args.first_seed}).",
            "Throughput as a share of a strong optimum. Best: of the highest measurement, without noise.",
            "Tau: Kendall's, of the order of launch within a round and the measurement (negative: it falls, as in the",
            "paper; the random jobs have no order), with out of memory as nothing, and among those that fit.",
            "",
            table({which: runs[which] for which in sorted(runs, key=lambda which: FAMILIES.index(which[0]))}),
        ]
    )
    print(text, flush=True)
    if args.output is not None:
        args.output.parent.mkdir(parents=True, exist_ok=True)
        args.output.write_text(text + "\n")
    if args.draw is not None:
        draw(runs, args.draw)


if __name__ == "__main__":
    main()
