"""Measures how few launches a search takes on public runs: each workload of the table is a search over its own rows.

python benchmarks/replay.py [--seeds 5] [--cells 12] [--only tpe,gp] [--output benchmarks/results/replay.txt]

Cold: nothing else is known; warm: all other workloads are. A row that failed costs a launch and teaches that it failed,
not why. Told is the share of the fastest row that the config handed over has, one launch at a time, mean over
workloads; the user's own config is a row drawn by chance, which costs a launch in a cold search. Optuna's samplers
begin with that row too, and are given the row nearest to what they ask for that was not launched yet.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from tables import h100_jobs

from torchx_cubicml.advisor import Study
from torchx_cubicml.history import config_key
from torchx_cubicml.predictors import DEFAULT_PREDICTOR, PREDICTORS
from torchx_cubicml.space import Parameter, SearchSpace
from torchx_cubicml.space.expression import parse_expression
from torchx_cubicml.trial import Config, Trial

if TYPE_CHECKING:
    from torchx_cubicml.history import History
    from torchx_cubicml.predictors import Predictor

MARKS = (1, 3, 5, 10, 15, 25, 50)
# The last of the marks that a search is followed to, and its seeds at most: what costs much is followed less far.
LAST = {"tpe": 15, "gp": 15, "ours, cold": 15, "ours, warm": 15}
MOST_SEEDS = {"gp": 1, "ours, cold": 1, "ours, warm": 1}
FEWEST = 20  # completed rows of a workload that is searched
NAMES = ("dp_degree", "pp_degree", "tp_degree", "zero_stage", "micro_batch_size", "gradient_accumulation_steps")
_NUMBERS = frozenset(NAMES) - {"zero_stage"}
ONCE = "once"
_REMEMBERED = 20  # fitted predictors
Propose = Callable[["Cell", Sequence[Trial], Sequence[Trial], int], Config]


class Cell:
    """One workload of the table: its rows are the legal configs."""

    def __init__(self, rows: Sequence[Trial], *, seed: int) -> None:
        batch = rows[0].config["global_batch_size"]
        kept = [row for row in rows if row.config["global_batch_size"] == batch]
        self.rows = {_key(row.config): _bare(row) for row in kept}
        self.workload = {**kept[0].workload, "global_batch_size": batch}
        choices = {name: sorted({int(str(row.config[name])) for row in kept}) for name in NAMES}
        self.space = SearchSpace(
            parameters=tuple(Parameter(name=name, choices=tuple(each)) for name, each in choices.items()),
            constraints=tuple(parse_expression(rule, where="rows") for rule in _rules(kept)),
        ).bind(workload=self.workload, current={})
        self.current = _only(kept[int(np.random.default_rng(seed).integers(len(kept)))].config)
        self.fastest = max(map(_speed, kept))

    def share(self, config: Config) -> float:
        """Return the throughput of a row as a share of the fastest."""
        return _speed(self.rows[_key(config)]) / self.fastest


def _rules(rows: Sequence[Trial]) -> list[str]:
    """Return rules that hold of the configs of ``rows`` alone: which meshes there are, and what each was run with."""
    found: defaultdict[tuple[str, ...], set[int]] = defaultdict(set)
    for row in rows:
        zero, batch, steps = (int(str(row.config[name])) for name in NAMES[3:])
        found[tuple(str(row.config[name]) for name in NAMES[:3])].add((zero * 10_000 + batch) * 10_000 + steps)
    meshes = [int(dp) * 1_000_000 + int(pp) * 1000 + int(tp) for dp, pp, tp in found]
    rules = [f"dp_degree * 1000000 + pp_degree * 1000 + tp_degree in {meshes}"]
    rest = "(zero_stage * 10000 + micro_batch_size) * 10000 + gradient_accumulation_steps"
    for (dp, pp, tp), codes in found.items():
        rules.append(f"dp_degree != {dp} or pp_degree != {pp} or tp_degree != {tp} or {rest} in {sorted(codes)}")
    return rules


def _only(config: Config) -> Config:
    return {name: config[name] for name in NAMES}


def _key(config: Config) -> str:
    return config_key(_only(config))


def _bare(row: Trial) -> Trial:
    workload = {**row.workload, "global_batch_size": row.config["global_batch_size"]}
    return replace(row, workload=workload, config=_only(row.config))


def _speed(trial: Trial) -> float:
    return trial.measurement.tokens_per_second or 0.0 if trial.measurement is not None else 0.0


def propose_random(cell: Cell, known: Sequence[Trial], others: Sequence[Trial], seed: int) -> Config:
    """Return a row not launched yet."""
    launched = {_key(trial.config) for trial in known}
    left = [row.config for key, row in cell.rows.items() if key not in launched]
    return left[int(np.random.default_rng([seed, len(known)]).integers(len(left)))]


class Once:
    """The default predictor, which learns the same table once: other workloads stay as they are through a search."""

    _fitted: ClassVar[dict[bytes, Predictor]] = {}

    def fit(self, history: History, *, rng: np.random.Generator) -> Predictor:
        """Return the predictor, fitted; see ``Predictor``."""
        key = history.features.tobytes() + history.throughput.tobytes()
        if key not in self._fitted:
            if len(self._fitted) > _REMEMBERED:
                self._fitted.clear()
            self._fitted[key] = PREDICTORS[DEFAULT_PREDICTOR]().fit(history, rng=rng)
        return self._fitted[key]


def propose_optuna(cell: Cell, known: Sequence[Trial], others: Sequence[Trial], seed: int, *, sampler: str) -> Config:
    """Return the row nearest to what Optuna's ``sampler`` asks for, among those not launched yet."""
    import optuna
    from optuna.distributions import CategoricalDistribution, IntDistribution
    from optuna.trial import TrialState, create_trial

    if not known:
        return cell.current
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    choices = {item.name: item.choices for item in cell.space.parameters}
    space = {
        name: CategoricalDistribution(each) if name == "zero_stage" else IntDistribution(0, len(each) - 1)
        for name, each in choices.items()
    }
    made = {"tpe": optuna.samplers.TPESampler, "gp": optuna.samplers.GPSampler}[sampler]
    study = optuna.create_study(direction="maximize", sampler=made(seed=seed + len(known)))
    for trial in known:
        at = {name: choices[name].index(int(str(trial.config[name]))) for name in NAMES}
        params = {**at, "zero_stage": trial.config["zero_stage"]}
        study.add_trial(
            create_trial(state=TrialState.COMPLETE, params=params, distributions=space, value=_speed(trial))
        )
    asked = study.ask(space).params
    launched = {_key(trial.config) for trial in known}
    left = [row.config for key, row in cell.rows.items() if key not in launched]

    def distance(config: Config) -> float:
        steps = (abs(choices[name].index(int(str(config[name]))) - asked[name]) for name in NAMES if name in _NUMBERS)
        return float(sum(steps)) + float(config["zero_stage"] != asked["zero_stage"])

    return _only(min(left, key=distance))


def search(cell: Cell, propose: Propose, others: Sequence[Trial], *, marks: Sequence[int], seed: int) -> list[float]:
    """Return the share of the fastest row after each of ``marks``, the row of the highest measurement handed over."""
    known: list[Trial] = []
    for _ in range(marks[-1]):
        known.append(cell.rows[_key(propose(cell, known, others, seed))])
    return [max(map(_speed, known[:mark])) / cell.fastest for mark in marks]


def search_ours(cell: Cell, others: Sequence[Trial], *, marks: Sequence[int], seed: int) -> list[float]:
    """Return the same of the advisor, which hands over the row of highest posterior mean.

    Warm, the user's own config is left for later.
    """
    known: list[Trial] = []
    shares = []
    while True:
        study = Study.of(
            cell.space,
            workload=cell.workload,
            current={} if others and not known else cell.current,
            trials=[*known, *others],
            seed=seed + len(known),
            predictor=ONCE,
        )
        if len(known) in marks:
            measured = study.outlook.measured()
            beliefs = [belief.throughput if belief else 0.0 for belief in study.outlook.beliefs(measured)]
            shares.append(cell.share(measured[int(np.argmax(beliefs))]) if measured else 0.0)
        if len(known) == marks[-1]:
            return shares
        found = study.suggest()
        config = found[0].config if found else propose_random(cell, known, others, seed)
        known.append(cell.rows[_key(config)])


def _followed(name: str, n_seeds: int) -> tuple[list[int], range]:
    """Return the marks and the seeds of a search."""
    marks = [mark for mark in MARKS if mark <= LAST.get(name, MARKS[-1])]
    return marks, range(min(n_seeds, MOST_SEEDS.get(name, n_seeds)))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5, help="searches of each workload at most")
    parser.add_argument("--only", default="", help="searches to make, with commas between; all where empty")
    parser.add_argument("--cells", type=int, default=100, help="workloads at most")
    parser.add_argument("--output", type=Path, default=None, help="file to write besides")
    args = parser.parse_args()
    groups: defaultdict[object, list[Trial]] = defaultdict(list)
    for trial in h100_jobs():
        groups[trial.workload["program"], trial.workload["world_size"]].append(trial)
    large = [key for key, rows in groups.items() if sum(row.measurement is not None for row in rows) >= FEWEST]
    keys = large[:: max(1, -(-len(large) // args.cells))]
    lines = [f"{len(keys)} workloads, each searched with as many seeds as the table says"]
    lines.append(f"{'search':12s}" + "".join(f"{f'{mark} jobs':>9s}" for mark in MARKS) + f"{'seeds':>7s}{'CPU s':>7s}")
    print("\n".join(lines), flush=True)
    PREDICTORS[ONCE] = Once
    searches: dict[str, tuple[Callable[..., list[float]], bool]] = {
        "random": (partial(search, propose=propose_random), False),
        "tpe": (partial(search, propose=partial(propose_optuna, sampler="tpe")), False),
        "ours, cold": (search_ours, False),
        "ours, warm": (search_ours, True),
        "gp": (partial(search, propose=partial(propose_optuna, sampler="gp")), False),
    }
    for name, (launched, warm) in searches.items():
        if args.only and name not in args.only.split(","):
            continue
        started = time.process_time()
        marks, seeds = _followed(name, args.seeds)
        runs = []
        for key in keys:
            others = [_bare(row) for other in groups if other != key for row in groups[other]] if warm else []
            runs += [launched(Cell(groups[key], seed=seed), others=others, marks=marks, seed=seed) for seed in seeds]
        seconds = (time.process_time() - started) / len(runs)
        told = "".join(f"{share:9.3f}" for share in np.mean(runs, axis=0)) + " " * 9 * (len(MARKS) - len(marks))
        lines.append(f"{name:12s}{told}{len(seeds):7d}{seconds:7.0f}")
        print(lines[-1], flush=True)
        if args.output is not None:
            args.output.parent.mkdir(parents=True, exist_ok=True)
            args.output.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
