"""Compares the formulas of recommenders with real steps under TorchRec's plans, beside a predictor without formulas.

python benchmarks/recommender_formulas.py [--python PYTHON] [--output benchmarks/results/recommender_formulas.txt]

Three small recommenders with tables of unlike sizes run on 2 and on 4 CPU processes (gloo) under plans that TorchRec
carries out: those of its own planner, one sharding for all tables, and random ones per table. Rounds of a few steps
visit all plans of a model in turn; the throughput of a plan is that of its median step.
Other models: the plans of a model are predicted from the plans of the two other models on as many processes.
Few of its own: they are predicted from 4 random plans of the same model, 10 times.
Defaults: the formulas before any calibration. Again: the even steps of each plan as a prediction of the odd ones, which
is what the noise of this run lets any method reach.

tau: Kendall's tau over the plans of a model, mean over the models. error: median size of the log error, in percent.
loss: by how much the plan that is predicted fastest is slower than the fastest one, mean over the models.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from scipy.stats import kendalltau

from torchx_cubicml.predictors import PREDICTORS
from torchx_cubicml.predictors.features.history import TrainingTable, training_row
from torchx_cubicml.predictors.roofline import Roofline
from torchx_cubicml.records.trial import Trial

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

JOB = Path(__file__).parent / "lib" / "recommender_runs.py"
WORLD_SIZES = (2, 4)
METHODS = ("roofline", "greybox", "boosting")
N_MIXED = 7  # random plans of each model
N_KNOWN, REPEATS = 4, 10
MOST_REPLICATED = 2_000_000  # numbers of a table up to which random plans may replicate it: the largest take seconds
WIDE = 256  # width from which TorchRec cuts a table by columns without being told how

# name, samples of one process; rows, width and pooling of each table
MODELS: tuple[tuple[str, int, tuple[tuple[int, int, int], ...]], ...] = (
    ("ads", 256, ((100_000, 64, 2), (400_000, 16, 1), (20_000, 32, 30), (200, 8, 1), (50_000, 256, 4), (24, 4, 1))),
    ("shop", 128, ((300_000, 32, 1), (150_000, 64, 10), (1000, 16, 1), (40_000, 256, 2), (5000, 32, 50))),
    ("news", 512, ((500_000, 16, 1), (30_000, 64, 20), (30_000, 64, 20), (500, 8, 1), (100, 8, 1), (250_000, 32, 3))),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One plan of a model as measured.

    Args:
        model: its name.
        trial: facts, plan and throughput.
        halves: seconds of the even and of the odd steps, medians.
    """

    model: str
    trial: Trial
    halves: tuple[float, float]

    @property
    def seconds(self) -> float:
        """Seconds of the median step."""
        facts, measurement = self.trial.workload, self.trial.measurement
        samples = float(facts["micro_batch_size"]) * float(facts["world_size"])  # type: ignore[arg-type]
        return samples / (measurement.samples_per_second if measurement and measurement.samples_per_second else np.nan)


def plans_of(tables: Sequence[tuple[int, int, int]], *, seed: int) -> list[list[str]]:
    """Return the shardings of each plan of a model, table by table."""
    rng = np.random.default_rng(seed)
    plans = [[word] * len(tables) for word in ("planner", "table_wise", "row_wise")]
    for _ in range(N_MIXED):
        plan = []
        for rows, width, _pooling in tables:
            words = ["table_wise", "row_wise", *(["column_wise"] if width >= WIDE else [])]
            words += ["data_parallel"] if rows * width <= MOST_REPLICATED else []
            plan.append(str(rng.choice(words)))
        plans.append(plan)
    return plans


def measured(python: str, world_size: int) -> list[Run]:
    """Return the plans of all models, measured on real processes."""
    models = [
        {
            "name": name,
            "batch": batch,
            "tables": [{"rows": rows, "dim": width, "pooling": pooling} for rows, width, pooling in tables],
            "plans": plans_of(tables, seed=seed),
        }
        for seed, (name, batch, tables) in enumerate(MODELS)
    ]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "models.json"
        path.write_text(json.dumps(models))
        launcher = (python, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(world_size))
        done = subprocess.run(
            [*launcher, str(JOB), str(path)], check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return [run_of(line["model"], line["sharding"], line["seconds"], world_size) for line in lines]


def run_of(name: str, sharding: Sequence[str], seconds: Sequence[float], world_size: int) -> Run:
    """Return a measured plan with the facts that a record of it holds."""
    batch, tables = next(each[1:] for each in MODELS if each[0] == name)
    rows, dims, pooling = zip(*tables, strict=True)
    facts = {
        "embedding_rows": rows,
        "embedding_dims": dims,
        "embedding_pooling": tuple(map(float, pooling)),
        "micro_batch_size": batch,
        "world_size": world_size,
        "nproc_per_node": world_size,
        "device": "cpu",
    }
    speed = batch * world_size / float(np.median(seconds))
    trial = Trial.completed(workload=facts, config={"embedding_sharding": tuple(sharding)}, samples_per_second=speed)
    return Run(model=name, trial=trial, halves=(float(np.median(seconds[::2])), float(np.median(seconds[1::2]))))


def predicted(method: str, known: Sequence[Run], asked: Sequence[Run]) -> NDArray[np.float64]:
    """Return the logarithms of the throughput of ``asked``, predicted from ``known``."""
    rows = [training_row(run.trial) for run in asked]
    if method == "defaults":
        return np.asarray(np.log(Roofline().recommenders_.samples_per_second(rows)))
    history = TrainingTable.from_trials([run.trial for run in known], objective="samples_per_second")
    predictor = PREDICTORS[method]().fit(history, rng=np.random.default_rng(0))
    return predictor.predict(history.columns.encode(rows)).logarithm


def truth(runs: Sequence[Run]) -> NDArray[np.float64]:
    """Return the logarithms of the measured throughput of ``runs``."""
    return np.log([run.trial.measurement.samples_per_second for run in runs if run.trial.measurement])


def scores(prediction: NDArray[np.float64], asked: Sequence[Run]) -> tuple[float, float, float]:
    """Return tau, error and loss of a prediction of the plans of one model."""
    measured_log = truth(asked)
    tau = float(kendalltau(prediction, measured_log)[0])
    loss = float(np.expm1(measured_log.max() - measured_log[int(np.argmax(prediction))]))
    return np.nan_to_num(tau), float(np.median(np.abs(prediction - measured_log))), loss


def compared(runs: Sequence[Run]) -> Iterator[tuple[str, str, tuple[float, float, float]]]:
    """Yield question, method and scores, for each model and repeat."""
    for name in dict.fromkeys(run.model for run in runs):
        own, others = ([run for run in runs if (run.model == name) is is_own] for is_own in (True, False))
        for method in ("defaults", *METHODS):
            yield "other models", method, scores(predicted(method, others, own), own)
        halves = np.array([run.halves for run in own])
        yield (
            "again",
            "noise",
            (float(kendalltau(*halves.T)[0]), float(np.median(np.abs(np.diff(np.log(halves))))), 0.0),
        )
        for seed in range(REPEATS):
            order = np.random.default_rng(seed).permutation(len(own)).tolist()
            known, asked = ([own[at] for at in part] for part in (order[:N_KNOWN], order[N_KNOWN:]))
            for method in METHODS:
                yield "few of its own", method, scores(predicted(method, known, asked), asked)


def lines_of(runs: Sequence[Run], world_size: int) -> list[str]:
    """Return the lines of one number of processes."""
    found = list(compared(runs))
    lines = [f"{world_size} processes", f"  {'predicted from':16s}{'by':12s}{'tau':>7s}{'error':>8s}{'loss':>8s}"]
    for question, method in dict.fromkeys((each[0], each[1]) for each in found):
        mean = np.mean([each[2] for each in found if each[:2] == (question, method)], axis=0)
        loss = "" if method == "noise" else f"{100 * mean[2]:7.0f}%"
        lines.append(f"  {question:16s}{method:12s}{mean[0]:7.2f}{100 * mean[1]:7.0f}%{loss}")
    lines.append("  milliseconds of the median step, plan by plan (planner, table-wise, row-wise, then random ones)")
    for name in dict.fromkeys(run.model for run in runs):
        steps = " ".join(f"{1000 * run.seconds:.0f}" for run in runs if run.model == name)
        lines.append(f"  {name:6s}{steps}")
    return [*lines, ""]


def main() -> None:
    """Measure and compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", default=sys.executable, help="interpreter that has torch and torchrec")
    parser.add_argument("--beside", default="", help="what else runs on the machine, for the result")
    parser.add_argument("--output", type=Path, default=None, help="file to write the result to")
    arguments = parser.parse_args()
    load_before, lines = os.getloadavg()[0], []
    for world_size in WORLD_SIZES:
        lines += lines_of(measured(arguments.python, world_size), world_size)
    load = f"{os.cpu_count()} cores, load average {load_before:.1f} before and {os.getloadavg()[0]:.1f} after"
    beside = [f"beside it: {arguments.beside}"] if arguments.beside else []
    text = "\n".join(["\n\n".join(__doc__.strip().split("\n\n")[2:]), "", *lines, load, *beside]) + "\n"
    print(text)
    if arguments.output is not None:
        arguments.output.write_text(text)


if __name__ == "__main__":
    main()
