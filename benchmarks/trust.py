"""Public trials beside a few own ones: does the prediction of own launches gain if public trials count less?

python benchmarks/trust.py [--seeds 10] [--nanotron FILE] [--foundry FILE] [--output benchmarks/results/trust.txt]

A store holds a few own trials of a table and many public ones; the default predictor is asked about other own jobs.
machine: public trials are those of the other table, another cluster. offset: those of the same table, all 0.7 times as
fast. junk: the same, and one in ten is wrong: tokens of one device instead of all, or a thousand times too many.
alike: trials of all levels count alike. own only: public trials are left out. less: public trials carry a log error
of 0.3 besides their own, as if each were measured that badly. category: the trust level is a column, as in
the product.
Error: mean size of the log error over own jobs; tau: Kendall's. Mean over seeds with its 95 % interval; below, of
the difference from alike on the same seeds.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from lib.tables import add_tables, fsdp_jobs, h100_jobs
from scipy.stats import kendalltau

from torchx_cubicml.predictors import DEFAULT_PREDICTOR, PREDICTORS
from torchx_cubicml.predictors.features.history import TrainingTable, training_row
from torchx_cubicml.predictors.features.rows import encode_rows
from torchx_cubicml.records.provenance import Trust

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torchx_cubicml.records.trial import Trial

METHODS = ("alike", "own only", "less", "category")
N_OWN, N_PUBLIC, MOST_ASKED = (5,), 100, 150
SLOWER, JUNK, LESS = 0.7, 0.1, 0.3


def scaled(trial: Trial, factor: float) -> Trial:
    """Return a trial with ``factor`` times its throughput."""
    measurement = trial.measurement
    speed = measurement.tokens_per_second * factor
    return replace(trial, measurement=replace(measurement, tokens_per_second=speed))


def public_trials(kind: str, same: Sequence[Trial], other: Sequence[Trial], seed: int) -> list[Trial]:
    """Return the public trials of a scenario."""
    rng = np.random.default_rng(seed)
    source = other if kind == "machine" else same
    chosen = [source[at] for at in rng.permutation(len(source))[:N_PUBLIC]]
    if kind != "machine":
        chosen = [scaled(trial, SLOWER) for trial in chosen]
    if kind == "junk":
        wrong = rng.permutation(len(chosen))[: round(JUNK * len(chosen))].tolist()
        for number, at in enumerate(wrong):
            world = float(str(chosen[at].fact("world_size")))
            chosen[at] = scaled(chosen[at], 1.0 / world if number % 2 else 1000.0)
    return [replace(trial, trust=Trust.PUBLIC, trial_id=f"public-{trial.trial_id}") for trial in chosen]


def predicted(own: Sequence[Trial], public: Sequence[Trial], asked: Sequence[Trial], method: str) -> np.ndarray:
    """Return predicted log throughputs of ``asked``."""
    trials = [*own, *(() if method == "own only" else public)]
    if method == "less":
        trials = [less_certain(trial) for trial in trials]
    if method != "category":
        trials = [replace(trial, trust=Trust.OWN) for trial in trials]
    history = TrainingTable.from_trials(trials, objective="tokens_per_second")
    predictor = PREDICTORS[DEFAULT_PREDICTOR]().fit(history, rng=np.random.default_rng(0))
    return predictor.predict(encode_rows(history.columns, [training_row(trial) for trial in asked])).logarithm


def less_certain(trial: Trial) -> Trial:
    """Return a public trial with a larger error of its throughput."""
    if trial.trust is Trust.OWN:
        return trial
    error = float(np.hypot(trial.measurement.uncertainty, LESS))
    return replace(trial, measurement=replace(trial.measurement, relative_error=error))


def scores(
    kind: str, same: Sequence[Trial], other: Sequence[Trial], n_own: int, seed: int
) -> Iterator[tuple[str, float, float]]:
    """Yield method, error and tau of one seed."""
    order = np.random.default_rng(1000 + seed).permutation(len(same)).tolist()
    own = [same[at] for at in order[:n_own]]
    asked = [same[at] for at in order[n_own : n_own + MOST_ASKED]]
    rest = [same[at] for at in order[n_own + MOST_ASKED :]]
    public = public_trials(kind, rest, other, seed)
    true = np.log([trial.measurement.tokens_per_second for trial in asked])
    for method in METHODS:
        found = predicted(own, public, asked, method)
        yield method, float(np.mean(np.abs(found - true))), float(kendalltau(found, true).statistic)


def lines_of(tables: dict[str, list[Trial]], seeds: int) -> Iterator[str]:
    """Yield a block per table, scenario and number of own trials."""
    yield f"{'':44s}" + "".join(f"{method:>18s}" for method in METHODS)
    for name, same in tables.items():
        (other,) = (trials for key, trials in tables.items() if key != name)
        for kind in ("junk", "offset", "machine"):
            for n_own in N_OWN:
                runs = [list(scores(kind, same, other, n_own, seed)) for seed in range(seeds)]
                for index, what in ((1, "error"), (2, "tau")):
                    values = np.array([[found[index] for found in run] for run in runs])
                    label = f"{name}, {kind}, {n_own} own: {what}"
                    yield f"{label:44s}" + "".join(_mean(column) for column in values.T)
                    yield f"{'':44s}" + "".join(_mean(column, sign="+") for column in (values - values[:, :1]).T)


def _mean(values: np.ndarray, sign: str = "") -> str:
    half = 1.96 * float(np.std(values, ddof=1)) / len(values) ** 0.5
    return f"{float(np.mean(values)):{sign}.3f} +- {half:.3f}".rjust(18)


def main() -> int:
    """Measure and print; exit status 1 without the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=10, help="random splits")
    add_tables(parser)
    parser.add_argument("--output", type=Path, default=None, help="file to write the result to")
    args = parser.parse_args()
    if not args.nanotron.exists():
        print(f"{args.nanotron} is not there: nothing to measure on", file=sys.stderr)
        return 1
    warnings.filterwarnings("ignore")
    tables = {
        "nanotron": [trial for trial in h100_jobs(args.nanotron) if trial.measurement is not None],
        "llm-foundry": fsdp_jobs(args.foundry),
    }
    lines = __doc__.split("\n\n")[2:]
    print("\n".join(lines))
    for line in lines_of(tables, args.seeds):
        print(line, flush=True)
        lines.append(line)
    if args.output is not None:
        args.output.write_text("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
