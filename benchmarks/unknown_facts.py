"""Predicts tables of jobs of which a fact is not told, and prints the constants that the formulas then learn.

python benchmarks/unknown_facts.py [--seeds 3] [--output FILE] [--figures FILE]
python benchmarks/unknown_facts.py --compare BEFORE AFTER     compares the figures of two versions, case by case

The ZeRO stage and the vocabulary are taken out of public tables. No public table here tells the kernel of attention.
Its jobs are simulated by the formulas themselves, with constants drawn from their priors and 10 % noise. So they show
what an unknown kernel does to the formulas, and not that the formulas are true.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from headline import table
from lib.methods import OBJECTIVE
from lib.splits import FSDP_LINES, LINES
from lib.tables import fsdp_jobs, h100_jobs

from torchx_cubicml.predictors.features.history import TrainingTable, training_row
from torchx_cubicml.predictors.greybox import Greybox
from torchx_cubicml.predictors.roofline.constants import DEFAULTS, PRIORS
from torchx_cubicml.predictors.roofline.facts import Facts
from torchx_cubicml.predictors.roofline.step_time import step_time
from torchx_cubicml.predictors.roofline.training_layout import TrainingLayout
from torchx_cubicml.records.trial import Trial

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from lib.splits import Split

    from torchx_cubicml.predictors import Predictor

Figures: TypeAlias = "dict[str, dict[str, float]]"  # figure -> unit -> value, larger is better
Constants: TypeAlias = "dict[str, list[float]]"  # name -> value of each fit

SHARES = ("link_tp", "link_dp", "network_tp", "network_dp", "pp_bandwidth", "gemm_efficiency", "memory_bandwidth")
"""Constants that are shares of a number in a data sheet."""
NOISE = 0.1  # log standard deviation of one simulated measurement
N_SIMULATED = 240
SPREAD = 0.5  # of the planted constants, in standard deviations of their priors


def simulated_jobs(kernels: Sequence[str], seed: int) -> list[Trial]:
    """Return made-up jobs of transformers on A100s whose throughput is that of the formulas, with noise."""
    rng = np.random.default_rng([seed, len(kernels), 20])
    planted = {
        name: value * float(np.exp(SPREAD * PRIORS[name][1] * rng.normal())) if name in _PLANTED else value
        for name, value in DEFAULTS.items()
    }
    rows: list[dict[str, object]] = []
    while len(rows) < N_SIMULATED:
        layers, width = ((24, 2048), (32, 4096), (40, 5120))[int(rng.integers(3))]
        tp, pp = 2 ** int(rng.integers(4)), 2 ** int(rng.integers(3))
        row = {
            "n_layers": layers,
            "d_model": width,
            "n_heads": width // 128,
            "vocab_size": 50_304,
            "seq_len": 2 ** int(rng.integers(11, 14)),
            "micro_batch_size": 2 ** int(rng.integers(4)),
            "gradient_accumulation_steps": 2 ** int(rng.integers(2, 6)),
            "world_size": 2 ** int(rng.integers(3, 8)),
            "tp_degree": tp,
            "pp_degree": pp,
            "zero_stage": 1,
            "device": "NVIDIA A100-SXM4-80GB",
            "attention_kernel": str(rng.choice(list(kernels))),
        }
        if tp * pp <= int(row["world_size"]):
            rows.append(row)
    layout = TrainingLayout.of(Facts.from_rows(rows))
    speeds = layout.tokens_per_step / step_time(layout, planted).total() * np.exp(rng.normal(0.0, NOISE, len(rows)))
    return [
        replace(
            Trial.completed(
                workload={"program": "simulated", "world_size": row["world_size"], "device": row["device"]},
                config={name: value for name, value in row.items() if name not in {"world_size", "device"}},
                tokens_per_second=speed,
            ),
            trial_id=f"row-{number:05d}",
        )
        for number, (row, speed) in enumerate(zip(rows, speeds.tolist(), strict=True))
    ]


_PLANTED = frozenset(
    {"gemm_efficiency", "half_tokens", "half_width", "launch_s", "micro_batch_s", "link_tp", "link_tp_latency_s"}
    | {"network_tp", "network_tp_latency_s", "pp_bandwidth", "pp_latency_s", "link_dp", "network_dp", "dp_latency_s"}
    | {"memory_bandwidth", "step_s", "plain_attention"}
)


def without(trials: Sequence[Trial], *names: str) -> list[Trial]:
    """Return trials that do not tell some facts."""
    return [
        replace(
            trial,
            workload={name: value for name, value in trial.workload.items() if name not in names},
            config={name: value for name, value in trial.config.items() if name not in names},
        )
        for trial in trials
    ]


_PUBLIC = {
    "3200 jobs": (h100_jobs, LINES, ("zero_stage", "vocab_size")),
    "300 jobs": (fsdp_jobs, FSDP_LINES, ("sharding_strategy", "vocab_size")),
}
_KERNELS = {"flash": ("flash",), "plain": ("math",), "flash and plain": ("flash", "math")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One table of jobs.

    Args:
        table: its name.
        told: which fact is left out.
        trials: without that fact.
        lines: splits of the table.
        seed: of the splits and of the predictors.
    """

    table: str
    told: str
    trials: list[Trial]
    lines: Mapping[str, Callable[[Sequence[Trial], int], Split]]
    seed: int


def cases(seeds: int) -> Iterator[Case]:
    """Yield each table as it is, and without one fact."""
    for seed in range(seeds):
        tables = [(name, read(), lines, facts) for name, (read, lines, facts) in _PUBLIC.items()]
        tables += [
            (f"simulated, {name}", simulated_jobs(kernels, seed), LINES, ("attention_kernel",))
            for name, kernels in _KERNELS.items()
        ]
        for name, trials, lines, facts in tables:
            yield Case(table=name, told="all told", trials=trials, lines=lines, seed=seed)
            for fact in facts:
                yield Case(table=name, told=f"no {fact}", trials=without(trials, fact), lines=lines, seed=seed)


def measured(seeds: int) -> tuple[Figures, dict[str, Constants]]:
    """Return the figures, and the constants fitted on each table."""
    figures: defaultdict[str, dict[str, float]] = defaultdict(dict)
    constants: defaultdict[str, defaultdict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for case in cases(seeds):
        for known, split in case.lines.items():
            train, test = split(case.trials, case.seed)
            test = [trial for trial in test if trial.measurement is not None]
            history = TrainingTable.from_trials(train, objective=OBJECTIVE)
            fitted = Greybox().fit(history, rng=np.random.default_rng(case.seed))
            for method, predictor in (("roofline", fitted.without_trees()), ("greybox", fitted)):
                name = f"{case.table}, {case.told}, {known}, {method}"
                for figure, value in _graded(predictor, history, test).items():
                    figures[f"{name}: {figure}"][str(case.seed)] = value
            for constant, value in fitted.roofline_.calibration_.constants.items():
                constants[f"{case.table}, {case.told}"][constant].append(float(value))
    return figures, constants


def _graded(predictor: Predictor, history: TrainingTable, test: Sequence[Trial]) -> dict[str, float]:
    from scipy.stats import kendalltau

    reached = np.log([trial.measurement.tokens_per_second for trial in test if trial.measurement is not None])
    predicted = predictor.predict(history.columns.encode([training_row(trial) for trial in test])).logarithm
    errors = predicted - reached
    return {"tau": float(kendalltau(predicted, reached)[0]), "-RMSE": -float(np.sqrt(np.mean(errors**2)))}


def described(figures: Figures, constants: dict[str, Constants]) -> Iterator[str]:
    """Yield the lines of the result file."""
    yield f"{'figure, mean over the seeds':78s}{'tau':>8s}{'RMSE of log':>14s}"
    for name in figures:
        case, _, figure = name.rpartition(": ")
        if figure == "tau":
            error = -np.mean(list(figures[f"{case}: -RMSE"].values()))
            yield f"{case:78s}{np.mean(list(figures[name].values())):8.3f}{error:14.3f}"
    yield ""
    yield "Constants fitted by the formulas: median over splits and seeds (lowest to highest)."
    for name, found in constants.items():
        yield name
        for constant in (*SHARES, *(each for each in found if each in DEFAULTS and "unknown" in each)):
            values = np.array(found[constant])
            yield f"    {constant:28s}{np.median(values):10.3g}  ({values.min():.3g} to {values.max():.3g})"


def main() -> None:
    """Measure or compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--output", type=Path, help="file to write the tables to")
    parser.add_argument("--figures", type=Path, help="JSON file to write the figures to")
    parser.add_argument("--compare", type=Path, nargs=2, metavar=("BEFORE", "AFTER"), help="JSON files to compare")
    args = parser.parse_args()
    warnings.filterwarnings("ignore")
    if args.compare is not None:
        before, after = (json.loads(path.read_text())["figures"] for path in args.compare)
        print("\n".join(table(before, after)))
        return
    figures, constants = measured(args.seeds)
    text = "\n".join(described(figures, constants)) + "\n"
    print(text, end="")
    if args.output is not None:
        args.output.write_text(text)
    if args.figures is not None:
        args.figures.write_text(json.dumps({"figures": figures, "constants": constants}, indent=1) + "\n")


if __name__ == "__main__":
    main()
