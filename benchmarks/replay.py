"""Measures how few launches a search takes on public runs: each workload of the table is a search over its own rows.

python benchmarks/replay.py [--seeds 5] [--costly-seeds 5] [--costly-last 25] [--workers 2] [--cells 12]
    [--only 'tpe;gp'] [--output results/replay.txt]

Cold searches know nothing else; warm searches know all other workloads. A row that failed costs one launch, of unknown
cause. The figure is the share of the fastest row that the best config found has, after each launch, as a mean over
workloads. The user's own config is a random row, which costs a launch in a cold search.

Optuna's samplers begin with that row, too. Failures are broken constraints for them. Each of their proposals becomes
the nearest row that was not launched yet. The paper's recipe begins with a hundred random launches, about as many as a
workload has rows. So it is scaled to the last mark: a third of the launches is random, then come three rounds of
ranking networks and REINFORCE.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib.metadata import version
from itertools import groupby
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from lib.repeats import deviations, share_of_repeat
from lib.tables import h100_jobs

from torchx_cubicml.advisor import Study
from torchx_cubicml.advisor.posterior import ranked
from torchx_cubicml.predictors.features.history import config_key
from torchx_cubicml.records.trial import Trial
from torchx_cubicml.records.values import Config
from torchx_cubicml.space import Parameter, SearchSpace
from torchx_cubicml.space.expression import MAX_SOURCE, parse_expression

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from optuna.trial import FrozenTrial

MARKS = (1, 3, 5, 10, 15, 25, 50)
PAPER = "paper, scaled"
FIRST = 5  # jobs of ours with which a rival begins, where it is given them
COSTLY = (
    "ours, cold",
    "ours, warm",
    "gp",
    "gp, first",
)  # which may be followed less far than the others, with fewer seeds
FEWEST = 20  # completed rows of a workload that is searched
NAMES = ("dp_degree", "pp_degree", "tp_degree", "zero_stage", "micro_batch_size", "gradient_accumulation_steps")
_NUMBERS = frozenset(NAMES) - {"zero_stage"}
# The paper's recipe, scaled: as large a part of the launches is random, and the rest are as many rounds.
_RANDOM_SHARE, _ROUNDS = 1 / 3, 3
Key: TypeAlias = "tuple[str, int]"
Propose = Callable[["Cell", Sequence[Trial], int], list[Config]]


class Cell:
    """One workload of the table: its rows are the legal configs."""

    def __init__(self, rows: Sequence[Trial]) -> None:
        batch = rows[0].config["global_batch_size"]
        kept = [row for row in rows if row.config["global_batch_size"] == batch]
        self.rows = {_key(row.config): _bare(row) for row in kept}
        self.workload = {**kept[0].workload, "global_batch_size": batch}
        choices = {name: sorted({int(str(row.config[name])) for row in kept}) for name in NAMES}
        self.space = SearchSpace(
            parameters=tuple(Parameter(name=name, choices=tuple(each)) for name, each in choices.items()),
            constraints=tuple(parse_expression(rule, where="rows") for rule in _rules(kept)),
        ).bind(workload=self.workload, current={})
        self.fastest = max(map(_speed, kept))

    def current(self, seed: int) -> Config:
        """Return the user's own config, drawn by chance."""
        configs = [row.config for row in self.rows.values()]
        return configs[int(self.rng(seed).integers(len(configs)))]

    def rng(self, *seeds: int) -> np.random.Generator:
        """Return a source of randomness that is no other workload's."""
        return np.random.default_rng([zlib.crc32(repr(self.workload).encode()), 1, *seeds])

    def left(self, known: Sequence[Trial]) -> list[Config]:
        """Return the rows that are not among those ``known``."""
        launched = {_key(trial.config) for trial in known}
        return [row.config for key, row in self.rows.items() if key not in launched]

    def row(self, config: Config) -> Trial:
        """Return the row of a config."""
        return self.rows[_key(config)]

    def share(self, config: Config) -> float:
        """Return the throughput of a row as a share of the fastest."""
        return _speed(self.row(config)) / self.fastest


def _rules(rows: Sequence[Trial]) -> list[str]:
    """Return rules that hold of the configs of ``rows`` alone: which meshes there are, and what each was run with."""
    found: defaultdict[tuple[str, ...], set[int]] = defaultdict(set)
    for row in rows:
        zero, batch, steps = (int(str(row.config[name])) for name in NAMES[3:])
        found[tuple(str(row.config[name]) for name in NAMES[:3])].add((zero * 10_000 + batch) * 10_000 + steps)
    meshes = [int(dp) * 1_000_000 + int(pp) * 1000 + int(tp) for dp, pp, tp in found]
    rules = [f"dp_degree * 1000000 + pp_degree * 1000 + tp_degree in {meshes}"]
    rest = "(zero_stage * 10000 + micro_batch_size) * 10000 + gradient_accumulation_steps"
    each = [
        f"(dp_degree != {dp} or pp_degree != {pp} or tp_degree != {tp} or {rest} in {sorted(codes)})"
        for (dp, pp, tp), codes in found.items()
    ]
    # As few as their length allows: each is read again and again.
    return rules + [" and ".join(part) for part in _joined(each)]


def _joined(rules: Sequence[str]) -> Iterator[list[str]]:
    """Yield runs of rules that are legal as one."""
    run: list[str] = []
    for rule in rules:
        if run and len(" and ".join([*run, rule])) > MAX_SOURCE:
            yield run
            run = []
        run.append(rule)
    yield run


def _only(config: Config) -> Config:
    return {name: config[name] for name in NAMES}


def _key(config: Config) -> str:
    return config_key(_only(config))


def _bare(row: Trial) -> Trial:
    workload = {**row.workload, "global_batch_size": row.config["global_batch_size"]}
    return replace(row, workload=workload, config=_only(row.config))


def _speed(trial: Trial) -> float:
    return trial.measurement.tokens_per_second or 0.0 if trial.measurement is not None else 0.0


def propose_random(cell: Cell, known: Sequence[Trial], seed: int) -> list[Config]:
    """Return a row not launched yet."""
    left = cell.left(known)
    return [left[int(cell.rng(seed, len(known)).integers(len(left)))]]


def propose_paper(cell: Cell, known: Sequence[Trial], seed: int) -> list[Config]:
    """Return a round of the paper's recipe, scaled to the last mark; a random row before the first."""
    from paper import propose_round

    first = round(_RANDOM_SHARE * MARKS[-1])
    if len(known) < first or not any(trial.measurement is not None for trial in known):
        return propose_random(cell, known, seed)
    rng, count = cell.rng(seed, len(known)), (MARKS[-1] - first) // _ROUNDS
    found = propose_round(cell.space, cell.workload, known, count=count, rng=rng)
    missing = min(count - len(found), len(cell.rows) - len(known) - len(found))
    taken = [*known, *(cell.rows[_key(config)] for config in found)]
    for _ in range(missing):  # where the searches end on few configs, a round is filled by chance
        found += propose_random(cell, taken, seed)
        taken.append(cell.rows[_key(found[-1])])
    return found


def propose_ours(cell: Cell, known: Sequence[Trial], seed: int) -> Config:
    """Return the advisor's next row in a cold search."""
    return _proposed(cell, _study(cell, known, seed, ()), known, seed)


def _study(cell: Cell, known: Sequence[Trial], seed: int, others: Sequence[Trial]) -> Study:
    return Study.of(
        cell.space,
        workload=cell.workload,
        current={} if others and not known else cell.current(seed),
        trials=[*known, *others],
        seed=1000 * seed + len(known),
    )


def _proposed(cell: Cell, study: Study, known: Sequence[Trial], seed: int) -> Config:
    found = study.suggest()
    return found[0].config if found else propose_random(cell, known, seed)[0]


def propose_optuna(cell: Cell, known: Sequence[Trial], seed: int, *, sampler: str, first: int = 0) -> list[Config]:
    """Return the row nearest to what Optuna's ``sampler`` asks for, among those not launched yet.

    A row that failed has a throughput of zero and a broken constraint. The first ``first`` rows are the advisor's.
    """
    import optuna
    from optuna.distributions import CategoricalDistribution, IntDistribution
    from optuna.trial import TrialState, create_trial

    if len(known) < first:
        return [propose_ours(cell, known, seed)]
    if not known:
        return [cell.current(seed)]
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    choices = {item.name: item.choices for item in cell.space.parameters}
    space = {
        name: CategoricalDistribution(each) if name == "zero_stage" else IntDistribution(0, len(each) - 1)
        for name, each in choices.items()
    }
    made = {"tpe": optuna.samplers.TPESampler, "gp": optuna.samplers.GPSampler}[sampler]
    asking = made(seed=1000 * seed + len(known), constraints_func=_constraints)
    study = optuna.create_study(direction="maximize", sampler=asking)
    for trial in known:
        at = {name: choices[name].index(int(str(trial.config[name]))) for name in NAMES}
        frozen = create_trial(
            state=TrialState.COMPLETE,
            params={**at, "zero_stage": trial.config["zero_stage"]},
            distributions=space,
            value=_speed(trial),
            system_attrs={"constraints": [-1.0 if trial.measurement is not None else 1.0]},
        )
        study.add_trial(frozen)
    asked = study.ask(space).params

    def distance(config: Config) -> float:
        steps = (abs(choices[name].index(int(str(config[name]))) - asked[name]) for name in NAMES if name in _NUMBERS)
        return float(sum(steps)) + float(config["zero_stage"] != asked["zero_stage"])

    return [min(cell.left(known), key=distance)]


def _constraints(trial: FrozenTrial) -> tuple[float, ...]:
    return tuple(trial.system_attrs.get("constraints", (-1.0,)))


def search(cell: Cell, others: Sequence[Trial], seed: int, *, marks: Sequence[int], propose: Propose) -> list[float]:
    """Return the share of the fastest row after each of ``marks``, the row of the highest measurement handed over."""
    del others
    known: list[Trial] = []
    last = min(marks[-1], len(cell.rows))
    while len(known) < last:
        known += [cell.rows[_key(config)] for config in propose(cell, known, seed)]
    return [max(map(_speed, known[:mark])) / cell.fastest for mark in marks]


def search_ours(cell: Cell, others: Sequence[Trial], seed: int, *, marks: Sequence[int]) -> list[float]:
    """Return the same of the advisor, which hands over the row of highest posterior mean."""
    known: list[Trial] = []
    shares: list[float] = []
    last = min(marks[-1], len(cell.rows))
    while True:
        study = _study(cell, known, seed, others)
        if len(known) in marks or len(known) == last:
            shares.append(handed_over(cell, study))
        if len(known) == last:
            return shares + shares[-1:] * (len(marks) - len(shares))
        known.append(cell.rows[_key(_proposed(cell, study, known, seed))])


def handed_over(cell: Cell, study: Study) -> float:
    """Return the share of the row of highest posterior mean among those whose measurement is not doubted."""
    measured = ranked(study.posterior).trusted
    return cell.share(measured[0]) if measured else 0.0


SEARCHES: dict[str, tuple[Callable[..., list[float]], bool]] = {
    "random": (partial(search, propose=propose_random), False),
    "tpe": (partial(search, propose=partial(propose_optuna, sampler="tpe")), False),
    PAPER: (partial(search, propose=propose_paper), False),
    "tpe, first": (partial(search, propose=partial(propose_optuna, sampler="tpe", first=FIRST)), False),
    "ours, cold": (search_ours, False),
    "gp": (partial(search, propose=partial(propose_optuna, sampler="gp")), False),
    "gp, first": (partial(search, propose=partial(propose_optuna, sampler="gp", first=FIRST)), False),
    "ours, warm": (search_ours, True),
}
"""Searches by name; True for those that know all other workloads."""


@cache
def _groups() -> dict[Key, list[Trial]]:
    groups: defaultdict[Key, list[Trial]] = defaultdict(list)
    for trial in h100_jobs():
        groups[str(trial.workload["program"]), int(str(trial.workload["world_size"]))].append(trial)
    return groups


def rows_of(key: Key) -> list[Trial]:
    """Return the rows of one workload."""
    return _groups()[key]


def others_of(key: Key) -> list[Trial]:
    """Return the rows of all other workloads."""
    groups = _groups()
    return [_bare(row) for other in groups if other != key for row in groups[other]]


def keys_of_cells(most: int) -> list[Key]:
    """Return the workloads that are searched, ``most`` of them or all."""
    large = [key for key, rows in _groups().items() if sum(row.measurement is not None for row in rows) >= FEWEST]
    return large[:: max(1, -(-len(large) // most))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The searches of one workload by one method.

    Args:
        name: of ``SEARCHES``.
        key: of the workload.
        n_seeds: of the searches.
        marks: launches after which they are judged.
    """

    name: str
    key: Key
    n_seeds: int
    marks: tuple[int, ...]

    def __call__(self) -> tuple[NDArray[np.float64], float]:
        """Return the shares reached, ``[n_seeds, n_marks]``, and the seconds of a processor that a search took."""
        launched, warm = SEARCHES[self.name]
        others = others_of(self.key) if warm else []
        started = time.process_time()
        cell = Cell(rows_of(self.key))
        shares = np.array([launched(cell, others, seed, marks=self.marks) for seed in range(self.n_seeds)])
        return shares, (time.process_time() - started) / self.n_seeds


def _quiet() -> None:
    warnings.filterwarnings("ignore")  # Optuna's, of what is experimental


def jobs_of(names: Sequence[str], keys: Sequence[Key], args: argparse.Namespace) -> Iterator[Job]:
    """Yield all searches, method by method."""
    for name in names:
        n_seeds = args.costly_seeds if name in COSTLY else args.seeds
        last = args.costly_last if name in COSTLY else MARKS[-1]
        marks = tuple(mark for mark in MARKS if mark <= last)
        yield from (Job(name=name, key=key, n_seeds=n_seeds, marks=marks) for key in keys)


def lines_of(jobs: Sequence[Job], *, workers: int) -> Iterator[str]:
    """Yield the lines of each method: means over workloads and seeds, and their standard errors over seeds."""
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_quiet) as pool:
        found = pool.map(Job.__call__, jobs)
        for name, group in groupby(jobs, key=lambda job: job.name):
            each = []
            for job in group:
                each.append(next(found))
                message = f"{name}: {job.key[0]} on {job.key[1]} took {each[-1][1]:.1f} s a search"
                print(message, file=sys.stderr, flush=True)
            means = np.mean([shares for shares, _ in each], axis=0)
            gap = " " * 9 * (len(MARKS) - means.shape[1])
            seconds = f"{gap}{len(means):7d}{np.mean([seconds for _, seconds in each]):8.1f}"
            yield f"{name:14s}" + "".join(f"{share:9.3f}" for share in means.mean(axis=0)) + seconds
            if len(means) > 1:
                errors = means.std(axis=0, ddof=1) / np.sqrt(len(means))
                yield f"{'':14s}" + "".join(f"{f'+-{error:.3f}':>9s}" for error in errors)


def _repeat(keys: Sequence[Key]) -> str:
    noise = deviations(h100_jobs())
    reached = [np.array([_speed(row) for row in Cell(_groups()[key]).rows.values()]) for key in keys]
    shares = [np.mean([share_of_repeat(each, noise, mark) for each in reached]) for mark in MARKS]
    return f"{'true order':14s}" + "".join(f"{share:9.3f}" for share in shares)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5, help="searches of each workload")
    parser.add_argument("--costly-seeds", type=int, default=5, help="the same of what takes long")
    parser.add_argument("--costly-last", type=int, choices=MARKS, default=25, help="last launch of what takes long")
    parser.add_argument("--workers", type=int, default=1, help="processes that search at once")
    parser.add_argument("--only", default=";".join(SEARCHES), help="searches to make, with semicolons between")
    parser.add_argument("--cells", type=int, default=100, help="workloads at most")
    parser.add_argument("--output", type=Path, default=None, help="file to write besides")
    args = parser.parse_args()
    keys = keys_of_cells(args.cells)
    n_rows = [len(Cell(_groups()[key]).rows) for key in keys]
    lines: list[str] = []

    def report(line: str) -> None:
        print(line, flush=True)
        lines.append(line)
        if args.output is not None:
            args.output.parent.mkdir(parents=True, exist_ok=True)
            args.output.write_text("\n".join(lines) + "\n")

    report(_HEAD.format(n=len(keys), fewest=min(n_rows), most=max(n_rows)))
    report(f"{'jobs':14s}" + "".join(f"{mark:9d}" for mark in MARKS) + f"{'seeds':>7s}{'CPU s':>8s}")
    report(f"{'workloads':14s}" + "".join(f"{sum(mark <= n for n in n_rows):9d}" for mark in MARKS))
    report(_repeat(keys))
    for line in lines_of([*jobs_of(args.only.split(";"), keys, args)], workers=args.workers):
        report(line)
    report(f"Optuna {version('optuna')}")


_HEAD = """\
{n} workloads of {fewest} to {most} rows; share of the fastest row that is handed over after so many jobs, one at a
time, mean over workloads and seeds, with the standard error over seeds. Workloads: of as many rows.
These runs were also used to choose settings. True order: the best of so many jobs in the order of the table, all
measured once more with the noise of repeats (jobs that differ in ZeRO stage alone). It is no upper bound: searches are
judged by the table itself. First: the first five jobs are those of ours, cold. A failed row costs a job. Optuna's
samplers are told of failures as broken constraints. Paper, scaled: 17 random jobs, then three rounds of 11 by ranking
networks and REINFORCE; its own hundred random jobs would be the line of random search to the end. Warm: all other
workloads are known. CPU s: a whole search.
"""


if __name__ == "__main__":
    main()
