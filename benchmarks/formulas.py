"""Compares the step-time and memory formulas with measured parts, and with recorded peaks of public jobs.

python benchmarks/formulas.py [--output benchmarks/results/formulas.txt]

Measured parts: small transformers under FSDP on two CPU processes (gloo), one strategy for all layers or one per layer,
some layers recomputing. Each figure of a config comes from formulas that were calibrated on the steps of all other
configs. A part is measured by itself: computation by the same model without FSDP, and communication as what is left of
the step. Memory is of tensors, without the libraries and without the constant that the formulas reserve for them.
Weights are those held between steps; the formulas count what SHARD_GRAD_OP holds within a step, which is all of them.
Public jobs: 1,700 jobs on H100s with their peaks, which the source gives in GB; they are taken for GiB. The formulas
are used as they are, and with a factor per part that was fitted to the peaks of 100 jobs, to predict the rest.

Error: of ours relative to the measured figure. A part that is next to nothing is compared as a share of the step.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from lib.tables import H100_JOBS, h100_jobs

from torchx_cubicml.predictors.features.history import TrainingTable, training_row
from torchx_cubicml.predictors.roofline import Roofline
from torchx_cubicml.predictors.roofline.computation import COMPUTE_PARTS
from torchx_cubicml.predictors.roofline.facts import Facts
from torchx_cubicml.predictors.roofline.part_factors import part_factors
from torchx_cubicml.predictors.roofline.recomputation import activation_bytes
from torchx_cubicml.predictors.roofline.training_layout import TrainingLayout
from torchx_cubicml.records.trial import Trial

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from torchx_cubicml.records.values import Value

JOB = Path(__file__).parent / "lib" / "measured_parts.py"
WORLD_SIZE = 2
SMALL = {"n_layers": 4, "d_model": 192, "n_heads": 4, "vocab_size": 1000, "seq_len": 128}
DEEP = {"n_layers": 8, "d_model": 96, "n_heads": 4, "vocab_size": 500, "seq_len": 128}
ALTERNATING = ("FULL_SHARD", "NO_SHARD")
RUNS = ("FULL_SHARD", "FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD")
N_KNOWN = 100  # public jobs whose peaks are known

Row = dict[str, "Value"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One figure of one config: by the formulas, and as measured.

    Args:
        source: where it was measured.
        name: what it is.
        ours: by the formulas.
        measured: as measured.
        scale: what the error is relative to.
    """

    source: str
    name: str
    ours: float
    measured: float
    scale: float

    @property
    def error(self) -> float:
        """Relative error."""
        return (self.ours - self.measured) / self.scale


def configs() -> list[Row]:
    """Return the configs that are measured."""
    found: list[Row] = []
    for model in (SMALL, DEEP):
        n_layers = model["n_layers"]
        some = ("full", "none") * (n_layers // 2)
        plans: list[tuple[Value, Value, int, int]] = [
            ("FULL_SHARD", "none", 2, 1),
            ("SHARD_GRAD_OP", "none", 2, 2),
            ("NO_SHARD", "none", 2, 2),
            ("FULL_SHARD", "full", 8, 1),
            ("NO_SHARD", "none", 8, 1),
            (ALTERNATING * (n_layers // 2), "none", 4, 1),
            (tuple(chain(*([each] * (n_layers // 4) for each in RUNS))), some, 4, 1),
        ]
        found += [
            {
                **model,
                "sharding_strategy": strategy,
                "activation_checkpointing": recomputed,
                "micro_batch_size": micro,
                "gradient_accumulation_steps": rounds,
                "world_size": WORLD_SIZE,
                "d_ff": 4 * model["d_model"],
                "device": "cpu",
                "precision": "fp32",
                "attention_kernel": "sdpa_flash",
            }
            for strategy, recomputed, micro, rounds in plans
        ]
    return found


def measured_parts(rows: Sequence[Row]) -> list[dict[str, dict[str, float]]]:
    """Return the seconds and bytes of each config, measured on real processes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "configs.json"
        path.write_text(json.dumps(rows))
        launcher = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(WORLD_SIZE))
        done = subprocess.run(
            [*launcher, str(JOB), str(path)], check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def trial_of(row: Row, step_s: float) -> Trial:
    """Return a config with its measured step as a trial."""
    tokens = row["micro_batch_size"] * row["gradient_accumulation_steps"] * WORLD_SIZE * row["seq_len"]
    return Trial.completed(workload=row, config={}, tokens_per_second=tokens / step_s)


def compared_parts(rows: Sequence[Row], measured: Sequence[Mapping[str, Mapping[str, float]]]) -> Iterator[Figure]:
    """Yield the figures of each config, by formulas calibrated on the steps of the others."""
    trials = [trial_of(row, each["seconds"]["step"]) for row, each in zip(rows, measured, strict=True)]
    for at, (row, each) in enumerate(zip(rows, measured, strict=True)):
        history = TrainingTable.from_trials([*trials[:at], *trials[at + 1 :]], objective="tokens_per_second")
        roofline = Roofline().fit(history, rng=np.random.default_rng(0))
        parts, seconds = roofline.explain(row), each["seconds"]
        compute = sum(parts[name] for name in COMPUTE_PARTS)
        of_time = {
            "step": sum(parts.values()),
            "compute": compute,
            "optimizer": parts["optimizer"],
            "communication": sum(parts.values()) - compute - parts["optimizer"],
        }
        source = "one strategy" if isinstance(row["sharding_strategy"], str) else "per layer"
        for name, ours in of_time.items():
            scale = seconds[name] if name in {"step", "compute"} else seconds["step"]
            yield Figure(source=source, name=f"{name}, s", ours=ours, measured=seconds[name], scale=scale)
        memory = {name: float(size[0]) for name, size in roofline.memory([row]).items()}
        layout = TrainingLayout.of(Facts.from_rows([row]))
        of_memory = {
            **{name: memory[name] for name in ("weights", "gradients", "optimizer")},
            "activations": float((activation_bytes(layout) * layout.layers)[0]),
            "peak": sum(memory.values()) - memory["reserved"],
        }
        for name, ours in of_memory.items():
            bytes_measured = each["bytes"][name]
            yield Figure(
                source=source,
                name=f"{name}, MB",
                ours=ours / 1e6,
                measured=bytes_measured / 1e6,
                scale=bytes_measured / 1e6,
            )


def compared_peaks() -> Iterator[Figure]:
    """Yield the peaks of public jobs, by the formulas as they are and with fitted factors."""
    import csv

    with H100_JOBS.open(newline="") as file:
        peaks = [row["peak_memory_gb"] for row in csv.DictReader(file) if row["slow_twin_suspect"] not in {"1", "1.0"}]
    trials = [trial for trial in h100_jobs() if trial.measurement is not None]
    known = [(trial, float(peaks[int(trial.trial_id[4:])] or "nan")) for trial in trials]
    known = [(trial, peak) for trial, peak in known if np.isfinite(peak) and peak > 0.0]
    rows = [training_row(trial) for trial, _ in known]
    parts = np.column_stack(list(Roofline().memory(rows).values())) / 2**30
    measured = np.array([peak for _, peak in known])
    chosen = np.random.default_rng(0).permutation(len(measured))
    factors = part_factors(parts[chosen[:N_KNOWN]], measured[chosen[:N_KNOWN]])
    for at in chosen[N_KNOWN:].tolist():
        stage = f"ZeRO {rows[at]['zero_stage']}"
        for name, ours in (("defaults", parts[at].sum()), ("fitted factors", parts[at] @ factors)):
            yield Figure(
                source=f"H100 jobs, {stage}",
                name=f"peak, {name}, GiB",
                ours=float(ours),
                measured=float(measured[at]),
                scale=float(measured[at]),
            )


def lines_of(figures: Sequence[Figure]) -> list[str]:
    """Return a line per source and figure: medians, and the errors."""
    head = f"{'source':20s}{'figure':28s}{'n':>5s}{'ours':>10s}{'measured':>10s}{'bias':>8s}{'error':>8s}{'90 %':>8s}"
    lines = [head]
    for source, name in dict.fromkeys((each.source, each.name) for each in figures):
        group = [each for each in figures if (each.source, each.name) == (source, name)]
        errors = np.array([each.error for each in group])
        ours, measured = (np.median([getattr(each, what) for each in group]) for what in ("ours", "measured"))
        numbers = (np.median(errors), np.median(np.abs(errors)), np.quantile(np.abs(errors), 0.9))
        shown = "".join(f"{100 * number:7.0f}%" for number in numbers)
        lines.append(f"{source:20s}{name:28s}{len(group):5d}{ours:10.3g}{measured:10.3g}{shown}")
    return lines


def main() -> None:
    """Measure and compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=None, help="file to write the result to")
    arguments = parser.parse_args()
    rows, load_before = configs(), os.getloadavg()[0]
    figures = [*compared_parts(rows, measured_parts(rows)), *(compared_peaks() if H100_JOBS.exists() else ())]
    notes = [
        *__doc__.split("\n\n")[2:],
        "ours, measured: medians over the configs or jobs. bias: median of the errors. error, 90 %: median of their",
        "sizes, and the size that nine in ten do not exceed.",
        "",
    ]
    load = f"{os.cpu_count()} cores, load average {load_before:.1f} before and {os.getloadavg()[0]:.1f} after"
    text = "\n".join(["\n".join(notes).strip(), "", *lines_of(figures), "", load]) + "\n"
    print(text)
    if arguments.output is not None:
        arguments.output.write_text(text)


if __name__ == "__main__":
    main()
