"""The formulas give the accepted numbers for random layouts: a changed constant or sign needs someone's consent.

``RENEW_GOLDEN=1 pytest tests/predictors/roofline/test_accepted_numbers.py`` writes them anew.
"""

from __future__ import annotations

import json
import os
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from torchx_cubicml.predictors.features.columns import Columns
from torchx_cubicml.predictors.features.device_specs import find_hardware, hardware_names
from torchx_cubicml.predictors.roofline.calibration import _log_odds
from torchx_cubicml.predictors.roofline.constants import DEFAULTS
from torchx_cubicml.predictors.roofline.facts import Decoder, Facts
from torchx_cubicml.predictors.roofline.memory import MemoryCalibration, memory_parts
from torchx_cubicml.predictors.roofline.recomputation import activation_bytes
from torchx_cubicml.predictors.roofline.step_time import step_time
from torchx_cubicml.predictors.roofline.training_layout import TrainingLayout

if TYPE_CHECKING:
    from torchx_cubicml.records.values import Value

FILE = Path(__file__).parents[2] / "data" / "formulas.json"
N_LAYOUTS = 40
CHOICES: dict[str, tuple[Value | None, ...]] = {
    "n_layers": (12, 32, 33),
    "d_model": (1024, 4096),
    "seq_len": (1024, 8192),
    "micro_batch_size": (1, 3, 8),
    "nnodes": (1, 4, 16),
    "nproc_per_node": (8,),
    "global_batch_size": (None, 1024),
    "gradient_accumulation_steps": (None, 4),
    "tp_degree": (None, 1, 2, 8),
    "pp_degree": (None, 1, 4),
    "cp_degree": (None, 1, 2),
    "ep_degree": (None, 1, 4),
    "virtual_pp_degree": (None, 2),
    "pp_schedule": (None, "1f1b", "gpipe", "interleaved_1f1b", "zero_bubble", "DualPipeV", "afab"),
    "n_heads": (None, 32),
    "n_kv_heads": (None, 8),
    "d_ff": (None, 11_008),
    "vocab_size": (None, 32_000),
    "n_params": (None, 7_000_000_000),
    "n_experts": (None, 1, 8),
    "n_active_experts": (None, 2),
    "zero_stage": (None, 0, 1, 2, 3),
    "sharding_strategy": (
        None,
        "FULL_SHARD",
        "SHARD_GRAD_OP",
        "HYBRID_SHARD",
        "_HYBRID_SHARD_ZERO2",
        "NO_SHARD",
        "DDP",
    ),
    "dp_shard_degree": (None, 2),
    "dp_replicate_degree": (None, 2),
    "device": (None, "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-40GB", "NVIDIA L4", "AMD Instinct MI300X"),
    "precision": (None, "bf16", "fp8", "fp32", "tf32"),
    "activation_checkpointing": (None, "full", "selective", "none"),
    "attention_kernel": (None, "flash", "eager", "math", "torch", "naive", "plain", "none"),
    "sequence_parallel": (None, True, False),
    "compile": (None, True, False),
}


def rows() -> list[dict[str, Value]]:
    rng = np.random.default_rng(0)
    drawn = [{name: of[int(rng.integers(len(of)))] for name, of in CHOICES.items()} for _ in range(N_LAYOUTS)]
    return [{name: value for name, value in row.items() if value is not None} for row in drawn]


def layouts() -> TrainingLayout:
    return TrainingLayout.of(Facts.from_rows(rows()))


def formulas() -> dict[str, list[float]]:
    layout = layouts()
    step = step_time(layout, DEFAULTS)
    memory = MemoryCalibration.default()
    found = {
        **{f"layout {field.name}": getattr(layout, field.name) for field in fields(layout)},
        **{f"seconds {name}": part for name, part in step.parts(stall_s=0.1).items()},
        "seconds": step.total(),
        **{f"bytes {name}": part for name, part in memory_parts(layout).items()},
        "bytes of activations": activation_bytes(layout),
        "memory pressure": memory.pressure(layout),
        "log odds to fit": memory.log_odds(layout),
        "tokens": layout.tokens_per_step,
        "slow mode": _log_odds(np.arange(8.0), np.array([0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 1.0, 1.0])),
    }
    return {name: np.ravel(np.asarray(values, dtype=np.float64)).tolist() for name, values in found.items()}


def test_encoded_rows_make_the_same_layout() -> None:
    known = rows()
    columns = Columns.from_rows(known)
    decoded = TrainingLayout.of(Decoder(columns, known).facts(columns.encode(known)))
    for field in fields(decoded):
        assert np.array_equal(getattr(decoded, field.name), getattr(layouts(), field.name), equal_nan=True), field.name


def devices() -> dict[str, str]:
    return {name: repr(find_hardware(name)) for name in hardware_names()}


@pytest.mark.parametrize("name", sorted(formulas()))
def test_a_formula_gives_the_accepted_numbers(name: str) -> None:
    found = formulas()
    if os.environ.get("RENEW_GOLDEN"):
        lines = [
            f"{json.dumps(each)}: {json.dumps([float(f'{v:.7g}') for v in found[each]])}" for each in sorted(found)
        ]
        lines.append(f'"devices": {json.dumps(devices(), indent=1)}')
        FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    accepted = json.loads(FILE.read_text())[name]
    assert found[name] == pytest.approx(accepted, rel=1e-5, abs=1e-12, nan_ok=True)


def test_devices_have_the_accepted_numbers() -> None:
    assert devices() == json.loads(FILE.read_text())["devices"]
