"""Measures whether probabilities to fit in memory are true: how many of the configs given 70 % fit, and so on.

python benchmarks/fit_probability.py [--seeds 8] [--first-seed 400] [--workers 2] [--output FILE]

Simulated workloads are those of ``search.py``: layer-wise (black box; sizes and peaks known) and plain (with and
without peaks). Each is launched up to 32 times with configs drawn at random, and every other one up to 12 times with
those that a tune chooses. After some counts of launches, configs that were not launched are predicted: drawn at random,
and the next that the tune suggests. The public table of H100 runs has failures without a told cause, which count as not
fitting: each model on a number of devices is predicted from the rows of four fifths of the others and a few rows of its
own.

Bins are tenths of the probability. Their intervals are bootstrapped over workloads. What a rule decides is told apart.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from lib.plain_spaces import PlainModel
from lib.simulator import Simulator
from lib.tables import h100_jobs

from torchx_cubicml.advisor import suggest
from torchx_cubicml.predictors import CrossWorkloadFeasibility
from torchx_cubicml.predictors.features.history import TrainingTable, config_key, training_row
from torchx_cubicml.predictors.memory.dominance import DominanceRules
from torchx_cubicml.predictors.memory.order import MemoryOrder
from torchx_cubicml.predictors.memory.per_workload import WorkloadFeasibility
from torchx_cubicml.space.encoding import config_at, drawn_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from search import Simulated

    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.records.values import Config

COUNTS, TUNE_COUNTS = (1, 2, 5, 12, 32), (1, 5, 12)  # launches after which configs are predicted
ASKED = 40  # random configs that are predicted each time
BATCH = 5  # launches at once of a tune
FEWEST = 200  # predictions of a bin that is judged
NEAR = 0.05  # error of a bin up to which it is near enough
DRAWS = 2000  # of the bootstrap
FOLDS = 5  # of the workloads of the public table
OWN_ROWS = (0, 3, 10)  # rows of its own that a workload of the public table is predicted from
LAYERED, PLAIN = ("overlap", "wall", "latency"), ("llm", "vision", "renamed", "variables", "batch")


@dataclass(frozen=True, slots=True, kw_only=True)
class Predictions:
    """Predictions of configs of one workload.

    Args:
        source: kind of workload, in words.
        workload: its name, by which predictions depend on one another.
        known: how the launches known were chosen, and how many there are.
        probability: to fit, ``[n]``.
        fits: whether each does, ``[n]``.
        rule: 0.0 or 1.0 where a rule decides, else NaN, ``[n]``.
    """

    source: str
    workload: str
    known: str
    probability: np.ndarray
    fits: np.ndarray
    rule: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedCase:
    """One simulated workload, to be predicted in a process of its own."""

    family: str
    facts: bool
    seed: int
    by_tune: bool

    def __call__(self) -> list[Predictions]:
        """Launch configs, and predict others after some counts of launches."""
        simulated = self._simulated()
        rng = np.random.default_rng([self.seed, self.by_tune])
        bound = simulated.space.bind(workload=simulated.workload, current=simulated.current)
        asked = [config_at(bound, row) for row in drawn_rows(bound, ASKED, rng=rng)]
        drawn = [simulated.current, *(config_at(bound, row) for row in drawn_rows(bound, max(COUNTS), rng=rng))]
        trials: list[Trial] = []
        found = []
        for count in TUNE_COUNTS if self.by_tune else COUNTS:
            while len(trials) < count:
                missing = count - len(trials)
                launched = self._suggested(simulated, trials, missing) if self.by_tune else drawn[len(trials) : count]
                numbers = range(len(trials), len(trials) + len(launched))
                trials += [
                    simulated.launch(each, rng=rng, number=number)
                    for number, each in zip(numbers, launched, strict=True)
                ]
            suggested = self._suggested(simulated, trials, BATCH) if self.by_tune else []
            found += self._predicted(simulated, trials, [*asked, *suggested])
        return found

    def _simulated(self) -> Simulated:
        if self.family in LAYERED:
            return Simulator.draw(self.seed, family=self.family, facts=self.facts)
        return PlainModel(family=self.family, seed=self.seed, facts=self.facts)

    def _suggested(self, simulated: Simulated, trials: Sequence[Trial], count: int) -> list[Config]:
        found = suggest(
            simulated.space,
            workload=simulated.workload,
            current=simulated.current,
            trials=trials,
            count=min(BATCH, count),
            seed=len(trials),
        )
        return [each.config for each in found]

    def _predicted(
        self, simulated: Simulated, trials: Sequence[Trial], configs: Sequence[Config]
    ) -> Iterator[Predictions]:
        space = simulated.space.bind(workload=simulated.workload, current=simulated.current)
        tuned = {item.name: item.choices for item in space.parameters}
        history = TrainingTable.from_trials(trials, objective=space.objective, choices=tuned)
        order = MemoryOrder.of_space(space.parameters, workload=simulated.workload, own=simulated.current)
        model = WorkloadFeasibility(order=order, tuned=tuned).fit(history)
        launched = {config_key(trial.config) for trial in trials}
        left = [config for config in configs if config_key(config) not in launched]
        rows = [{**simulated.workload, **config} for config in left]
        kind = "layer-wise" if self.family in LAYERED else "plain"
        yield Predictions(
            source=f"{kind}, {'peaks' if self.facts else 'no peaks'}",
            workload=f"{self.family} {self.facts} {self.seed}",
            known=f"{'tune' if self.by_tune else 'random'} {len(trials)}",
            probability=model.probability(history.columns.encode(rows), rows),
            fits=np.array([simulated.throughput(config) > 0.0 for config in left]),
            rule=model.dominance_.verdicts(rows),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicCase:
    """A fold of the workloads of the public table, each predicted from the other folds and rows of its own."""

    fold: int

    def __call__(self) -> list[Predictions]:
        """Predict the rows of each workload of the fold."""
        cells: defaultdict[str, list[Trial]] = defaultdict(list)
        for trial in h100_jobs():
            cells[f"{trial.workload['program']} {trial.workload['world_size']}"].append(trial)
        names = sorted(cells)
        shuffled = np.random.default_rng(0).permutation(len(names)).tolist()
        held_out = [names[at] for place, at in enumerate(shuffled) if place % FOLDS == self.fold]
        others = [trial for name in names if name not in held_out for trial in cells[name]]
        rng = np.random.default_rng(self.fold)
        return [
            _predicted(name, others, [cells[name][at] for at in rng.permutation(len(cells[name]))], n_own)
            for name in held_out
            for n_own in OWN_ROWS
            if len(cells[name]) > n_own
        ]


def _predicted(name: str, others: Sequence[Trial], rows: Sequence[Trial], n_own: int) -> Predictions:
    known, asked = [*others, *rows[:n_own]], rows[n_own:]
    order = MemoryOrder.of_names(sorted({each for trial in known for each in (*trial.workload, *trial.config)}))
    history = TrainingTable.from_trials(known, objective="tokens_per_second")
    model = CrossWorkloadFeasibility(order=order).fit(history, rng=np.random.default_rng(0))
    mappings = [training_row(trial) for trial in asked]
    return Predictions(
        source="public table",
        workload=name,
        known=f"own {n_own}",
        probability=model.probability(history.columns.encode(mappings), mappings),
        fits=np.array([trial.measurement is not None for trial in asked]),
        rule=DominanceRules.of_history(history, order).verdicts(mappings),
    )


def report_on(title: str, found: Sequence[Predictions], report: Callable[[str], None]) -> None:
    """Report how true the probabilities are, bin by bin, and how often a rule was wrong."""
    if not found:
        return
    probability, fits, rule = (
        np.concatenate([getattr(each, name) for each in found]) for name in ("probability", "fits", "rule")
    )
    names = [each.workload for each in found for _ in each.fits]
    workloads, number = np.unique(names, return_inverse=True)
    by_rule = np.isfinite(rule)
    wrong_0, wrong_1 = ((rule == value) & (fits != value) for value in (0.0, 1.0))
    report(
        f"{title}: {len(fits)} predictions of {len(workloads)} workloads, {fits.mean():.0%} fit; by a rule "
        f"{by_rule.sum()}: {(rule == 0).sum()} not to fit ({wrong_0.sum()} wrong), {(rule == 1).sum()} to fit "
        f"({wrong_1.sum()} wrong)"
    )
    share = np.clip(probability[~by_rule], 1e-4, 1 - 1e-4)
    true, group = fits[~by_rule].astype(float), number[~by_rule]
    loss = -np.mean(true * np.log(share) + (1 - true) * np.log(1 - share))
    report(f"  log loss {loss:.3f}, Brier score {np.mean((share - true) ** 2):.3f}")
    report(f"  {'probability':12s}{'n':>7s}{'predicted':>11s}{'fit':>7s}{'95 % interval':>16s}")
    for low in range(10):
        chosen = (share >= low / 10) & (share < (low + 1) / 10)
        if chosen.sum():
            report("  " + _bin_line(low, share[chosen], true[chosen], group[chosen]))
    report("")


def _bin_line(low: int, share: np.ndarray, true: np.ndarray, group: np.ndarray) -> str:
    rng = np.random.default_rng(low)
    present = np.unique(group)
    counts, hits, sums = (
        np.array([values[group == each].sum() for each in present]) for values in (np.ones(len(true)), true, share)
    )
    picks = rng.integers(len(present), size=(DRAWS, len(present)))
    error = (sums[picks].sum(axis=1) - hits[picks].sum(axis=1)) / counts[picks].sum(axis=1)
    rates = hits[picks].sum(axis=1) / counts[picks].sum(axis=1)
    least, most = np.quantile(error, [0.025, 0.975])
    near = abs(share.mean() - true.mean()) <= NEAR
    verdict = "" if len(true) < FEWEST else "within 0.05" if near else "within" if least <= 0.0 <= most else "OUTSIDE"
    interval = "{:.2f} to {:.2f}".format(*np.quantile(rates, [0.025, 0.975]))
    return (
        f"{low / 10:.1f} to {(low + 1) / 10:.1f}  {len(true):7d}{share.mean():11.2f}{true.mean():7.2f}{interval:>16s}  "
        f"{verdict}"
    )


def _cases(seeds: range) -> Iterator[Callable[[], list[Predictions]]]:
    for fold in range(FOLDS):
        yield PublicCase(fold=fold)
    for seed in seeds:
        for family in (*LAYERED, *PLAIN):
            for facts in (False, True):  # every other model is tuned, too, which takes most of the time
                for by_tune in (False, True)[: 2 - seed % 2]:
                    yield SimulatedCase(family=family, facts=facts, seed=seed, by_tune=by_tune)


def _run(case: Callable[[], list[Predictions]]) -> list[Predictions]:
    return case()


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=8, help="simulated workloads of each family")
    parser.add_argument("--first-seed", type=int, default=400, help="of the first of them")
    parser.add_argument("--workers", type=int, default=1, help="processes that predict at once")
    parser.add_argument("--output", type=Path, default=None, help="file to write besides")
    args = parser.parse_args()
    lines: list[str] = []

    def report(line: str) -> None:
        print(line, flush=True)
        lines.append(line)

    cases = list(_cases(range(args.first_seed, args.first_seed + args.seeds)))
    with ProcessPoolExecutor(args.workers, mp_context=get_context("spawn")) as pool:
        found = [each for part in pool.map(_run, cases) for each in part]
    report(_HEAD)
    chosen = partial(_chosen, found)
    report_on("public table", chosen(source="public table"), report)
    simulated = [each for each in found if each.source != "public table"]
    report_on("simulated, all", simulated, report)
    for source in sorted({each.source for each in simulated}):
        report_on(source, chosen(source=source), report)
    for how in ("random", "tune"):
        report_on(f"simulated, launches chosen by: {how}", [e for e in simulated if e.known.startswith(how)], report)
    for least, most in ((1, 2), (5, 5), (12, 32)):
        part = [each for each in simulated if least <= int(each.known.rpartition(" ")[2]) <= most]
        report_on(f"simulated, {least} to {most} launches known", part, report)
    if args.output is not None:
        args.output.parent.mkdir(parents=True, exist_ok=True)
        args.output.write_text("\n".join(lines))


def _chosen(found: Sequence[Predictions], *, source: str) -> list[Predictions]:
    return [each for each in found if each.source == source]


_HEAD = """\
How true probabilities to fit in memory are: of the configs given a probability within a tenth, the share that fits,
with its 95 % interval by bootstrap over workloads. A tenth of at least 200 predictions is judged: within 0.05 of the
mean probability, or within the interval of the error. What dominance rules decide is counted apart. Priors were chosen
with simulated models 300 to 335 in view, and how much a failure tells also with 400 on; the public table was not, and
neither were models 1000 on.
"""


if __name__ == "__main__":
    main()
