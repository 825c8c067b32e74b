"""Recommenders whose tables TorchRec shards, launched for real: what is recorded is what they did."""

from __future__ import annotations

import json
import random
from statistics import fmean
from typing import TYPE_CHECKING, Any

import pytest

from tests.integrations.recorded_launch import facts, launched, needs
from torchx_cubicml.records.trial import State

if TYPE_CHECKING:
    from pathlib import Path

    from torchx_cubicml.records.trial import Trial

pytestmark = [pytest.mark.launch, needs("torchrec", "fbgemm_gpu", target="test-torchrec")]

JOB = "train_torchrec.py"
SMALL = "--tables small --sharding"
OBSERVED_FORWARDS = slice(1, 33)  # the model is found at the end of the first step
TABLE_FACTS = (
    "embedding_tables",
    "embedding_rows",
    "embedding_dims",
    "embedding_pooling_types",
    "embedding_sharding",
    "embedding_kernel",
)
BAG_TYPES = (
    "data_parallel",
    "table_wise",
    "row_wise",
    "column_wise",
    "table_row_wise",
    "table_column_wise",
    "grid_shard",
)
LIST_TYPES = ("table_wise", "row_wise")  # of an EmbeddingCollection; its data parallelism fails on a CPU


def ranks_in(text: str) -> list[int]:
    """Return the ranks that a recorded text stands for."""
    bounds = (word.split("-") for word in text.split("+"))
    return [rank for bound in bounds for rank in range(int(bound[0]), int(bound[-1]) + 1)]


def check(trial: Trial, report: dict[str, Any], *, steps: int, batch_size: int, world_size: int) -> None:
    """Compare a trial with the report of its job; the report lists the tables in the order of the plan."""
    assert trial.state == State.COMPLETED
    names = trial.observed["embedding_tables"]
    assert isinstance(names, tuple)
    assert sorted(names) == sorted(report["tables"])
    tables = [report["tables"][name] for name in names]
    keys = ("rows", "dim", "pooling_type", "sharding_type", "compute_kernel")
    told = (names, *(tuple(table[key] for table in tables) for key in keys))
    assert facts(trial, "n_embedding_tables", *TABLE_FACTS) == (len(tables), *told)
    ranks = trial.observed["embedding_ranks"]
    assert isinstance(ranks, tuple)
    assert [ranks_in(str(text)) for text in ranks] == [table["ranks"] for table in tables]
    looked_up = [fmean(report["looked_up"][name][OBSERVED_FORWARDS]) / batch_size for name in names]
    assert trial.observed["embedding_pooling"] == pytest.approx(looked_up, rel=1e-3)
    assert facts(trial, "n_params", "n_trainable_params") == (report["n_params"], report["n_params"])
    sizes = trial.observed["layer_n_params"]
    assert isinstance(sizes, tuple)
    assert sum(map(int, sizes)) == report["n_dense_params"]
    batch = ("micro_batch_size", "gradient_accumulation_steps", "dp_degree", "global_batch_size", "optimizer")
    assert facts(trial, *batch) == (batch_size, 1, world_size, batch_size * world_size, "Adagrad")
    measured = trial.measurement
    assert measured is not None
    assert measured.steps_counted + measured.warmup_steps == steps
    assert measured.samples_per_second == pytest.approx(batch_size * world_size / measured.mean_step_time_s)


@pytest.mark.parametrize(
    ("processes", "words"),
    [
        (2, f"{SMALL} data_parallel,table_wise,row_wise"),
        (2, f"{SMALL} table_column_wise,planner,column_wise --min-partition 4 --pipeline TrainPipelineBase"),
        (4, f"{SMALL} column_wise,table_row_wise,grid_shard --min-partition 4"),
        (4, "--tables uneven --reserved 0.3"),
        (2, "--tables sequence --sharding row_wise,table_wise --pipeline TrainPipelineSparseDist"),
    ],
)
def test_tables_and_plan_are_those_of_the_job(tmp_path: Path, processes: int, words: str) -> None:
    trial, report = launched(tmp_path, JOB, *words.split(), "--steps", "36", processes=processes)
    check(trial, report, steps=36, batch_size=64, world_size=processes)
    assert trial.observed["sharding_strategy"] == "DDP"
    assert trial.observed["reserved_share"] == (0.3 if "--reserved" in words else 0.15)
    _, has_pipeline, pipeline = words.partition("--pipeline ")
    assert trial.observed.get("train_pipeline") == (pipeline if has_pipeline else None)


@pytest.mark.parametrize(
    ("generation", "strategy", "sizes"),
    [
        ("1", "FULL_SHARD", (19617,)),
        ("2", ("SHARD_GRAD_OP", "SHARD_GRAD_OP"), (13 * 64 + 64 + 64 * 32 + 32, 16641)),  # each part is a root
    ],
)
def test_dense_part_under_fsdp_is_recorded_without_the_tables(
    tmp_path: Path, generation: str, strategy: object, sizes: tuple[int, ...]
) -> None:
    words = ("--tables", "sequence", "--sharding", "table_wise", "--fsdp", generation, "--steps", "20")
    trial, report = launched(tmp_path, JOB, *words, "--batch-size", "32")
    check(trial, report, steps=20, batch_size=32, world_size=2)
    assert facts(trial, "sharding_strategy", "dp_shard_degree", "dp_replicate_degree") == (strategy, 2, 1)
    assert trial.observed["layer_n_params"] == sizes


@pytest.mark.parametrize("seed", range(3))
def test_generated_recommenders_are_recorded_as_they_trained(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    tables: dict[str, tuple[int, int, float, str]] = {}
    sharding = []
    for index in range(rng.randint(1, 7)):
        rows, width = int(10 ** rng.uniform(1, 4.5)), 4 * rng.randint(1, 16)
        kind = rng.choice(("sum", "mean", "sum", "none")) if index else "sum"
        tables[f"{kind}{index}"] = (rows, 16 if kind == "none" else width, rng.choice((1.0, 2.0, 7.0)), kind)
        sharding.append(rng.choice((*LIST_TYPES, "planner") if kind == "none" else (*BAG_TYPES, "planner")))
    batch_size, processes, steps = rng.choice((16, 48)), rng.choice((2, 4)), 34
    words = ["--tables", json.dumps(tables), "--sharding", ",".join(sharding), "--batch-size", str(batch_size)]
    words += ["--min-partition", "4", "--steps", str(steps), *(["--fsdp"] if rng.random() < 0.5 else [])]
    trial, report = launched(tmp_path, JOB, *words, processes=processes)
    check(trial, report, steps=steps, batch_size=batch_size, world_size=processes)
    for name, word in zip(tables, sharding, strict=True):
        assert word in {"planner", report["tables"][name]["sharding_type"]}


def test_a_model_of_tables_alone_is_counted_by_its_fused_optimizer(tmp_path: Path) -> None:
    trial, report = launched(tmp_path, "train_torchrec_towers.py", "--steps", "24", "--batch-size", "32")
    assert facts(trial, "embedding_rows", "embedding_dims", "n_params") == ((4000, 900), (16, 16), report["n_params"])
    assert facts(trial, "micro_batch_size", "dp_degree", "global_batch_size") == (32, 2, 64)
    measured = trial.measurement
    assert measured is not None
    assert measured.steps_counted + measured.warmup_steps == 22  # its steps count from the third on
    assert measured.samples_per_second == pytest.approx(64 / measured.mean_step_time_s)
