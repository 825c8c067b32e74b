"""Public tables of measured jobs as trials; the files lie beside the repository and are never copied into it."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TYPE_CHECKING

from lib.priors import leave_out
from torchx_cubicml.records.measurement import Measurement
from torchx_cubicml.records.trial import State, Trial

if TYPE_CHECKING:
    import argparse

    from torchx_cubicml.records.values import Config, Workload

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
H100_JOBS = DATA / "nanotron_ultrascale.csv"
FSDP_JOBS = DATA / "llm_foundry_mpt.csv"
PLAIN_TABLES = ("dedispersion_a100", "storm_sol", "dune", "gemm_rtx3090")
"""Spaces without layers, each measured in full."""

_WORKLOAD = ("n_params", "n_layers", "d_model", "n_heads", "d_ff", "vocab_size", "seq_len")
_NAMES = {
    "dp": "dp_degree",
    "pp": "pp_degree",
    "tp": "tp_degree",
    "zero_stage": "zero_stage",
    "micro_batch_size": "micro_batch_size",
    "grad_accum": "gradient_accumulation_steps",
    "global_batch_size": "global_batch_size",
}


def add_tables(parser: argparse.ArgumentParser) -> None:
    """Declare the paths of both tables of language-model trainings."""
    parser.add_argument("--nanotron", type=Path, default=H100_JOBS, help="table of the ultra-scale playbook (CSV)")
    parser.add_argument("--foundry", type=Path, default=FSDP_JOBS, help="table of llm-foundry (CSV)")


def h100_jobs(path: Path = H100_JOBS) -> list[Trial]:
    """Return ``h100_trials``, and let predictors use a public prior that was learned without them."""
    leave_out("nanotron")
    return h100_trials(path)


def h100_trials(path: Path) -> list[Trial]:
    """Return the rows as trials of whole-job throughput; those flagged as a slow twin are left out.

    A failed row does not say why, so it is of unknown cause. Where one config both failed and completed, the file's
    own notes say to use the completed row.
    """
    with path.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["slow_twin_suspect"] not in {"1", "1.0"}]
    trials = [_trial(number, row) for number, row in enumerate(rows)]
    completed = {_asked(trial) for trial in trials if trial.measurement is not None}
    return [trial for trial in trials if trial.measurement is not None or _asked(trial) not in completed]


def _asked(trial: Trial) -> tuple[tuple[str, object], ...]:
    return tuple(sorted({**trial.workload, **trial.config}.items()))


def _trial(number: int, row: dict[str, str]) -> Trial:
    workload: Workload = {
        "program": row["model"],
        "world_size": int(row["n_gpus"]),
        "device": row["gpu_type"],
        **{name: int(row[name]) for name in _WORKLOAD},
    }
    config: Config = {name: int(row[column]) for column, name in _NAMES.items()}
    ran = row["status"] == "ok"
    speed = float(row["tokens_per_sec_per_gpu"]) * int(row["n_gpus"]) if ran else None
    return Trial(
        trial_id=f"row-{number:05d}",
        workload=workload,
        config=config,
        state=State.COMPLETED if ran else State.UNKNOWN,
        measurement=Measurement(tokens_per_second=speed) if speed is not None else None,
    )


def fsdp_jobs(path: Path = FSDP_JOBS) -> list[Trial]:
    """Return ``fsdp_trials``, and let predictors use a public prior that was learned without them."""
    leave_out("llm-foundry")
    return fsdp_trials(path)


def fsdp_trials(path: Path) -> list[Trial]:
    """Return the rows as trials of whole-job throughput, begun on the date on which they were first published."""
    with path.open(newline="") as file:
        return [_fsdp_trial(number, row) for number, row in enumerate(csv.DictReader(file))]


def _fsdp_trial(number: int, row: dict[str, str]) -> Trial:
    facts = ("n_params", "n_layers", "d_model", "n_heads", "vocab_size", "seq_len", "global_batch_size")
    world_size = int(row["n_gpus"])
    return Trial(
        trial_id=f"row-{number:05d}",
        workload={
            "program": row["model"],
            "world_size": world_size,
            "device": row["gpu_type"],
            **{name: int(row[name]) for name in facts},
        },
        config={
            "micro_batch_size": int(row["micro_batch_size"]),
            "gradient_accumulation_steps": int(row["grad_accum"]),
            "sharding_strategy": row["sharding_strategy"],
            "activation_checkpointing": "full" if row["activation_checkpointing"] == "True" else "none",
            "precision": row["precision"],
        },
        state=State.COMPLETED,
        measurement=Measurement(tokens_per_second=float(row["tokens_per_sec_per_gpu"]) * world_size),
        started_at=row["first_seen_date"],
    )


def plain_rows(name: str) -> list[tuple[Config, float | None]]:
    """Return each config of a table of ``PLAIN_TABLES`` with its throughput; ``None`` where it failed."""
    with (DATA / f"plain_{name}.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    parameters = [column for column in rows[0] if column not in {"status", "throughput"}]
    return [
        ({each: float(row[each]) for each in parameters}, float(row["throughput"]) if row["status"] == "ok" else None)
        for row in rows
    ]
