"""One sample of each format, imported by the command as it stands.

Made by the libraries themselves: ``jobs.parquet`` (pandas 3.1, pyarrow 26.0), ``jobs.xlsx`` (openpyxl 3.1), ``mlruns``
and ``mlflow_search_runs.csv`` (MLflow 3.17), ``wandb`` (wandb 0.31, offline), ``config.yaml`` of ``wandb_online``
(wandb 0.16), ``paddle_history.csv`` (HistoryRecorder of Paddle 3.3), ``torchtitan_logs`` (torchtitan 0.3 on two CPU
processes). Paths, hosts and users are replaced.

Written by the documented format: ``autotuning_results`` (DeepSpeed 0.19.8: autotuning/README.md,
autotuning/scheduler.py, and ``_autotuning_exit`` of runtime/engine.py), ``wandb_export.csv`` and the other two files of
``wandb_online`` (https://docs.wandb.ai/models/runs), ``megatron_logs`` (Megatron-LM: training/arguments.py and
training/training.py).
"""

from __future__ import annotations

from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import pytest
from torchx.cli.main import main

from torchx_cubicml import TrialStore
from torchx_cubicml.records.trial import State, Trial

SAMPLES = Path(__file__).resolve().parents[2] / "data" / "past_jobs"


def imported(sample: Path | str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *words: str) -> list[Trial]:
    """Return the trials that one command imports, by their micro batch and tensor-parallel degree."""
    monkeypatch.setenv("TORCHX_CUBICML_STORE", str(tmp_path / "store"))
    monkeypatch.setattr("sys.stdin", StringIO())
    out = StringIO()
    with redirect_stdout(out), redirect_stderr(out):
        main(["cubicml", "history", "import", str(sample), "--yes", *words])
    assert "0 lines skipped" in out.getvalue()
    trials = list(TrialStore(str(tmp_path / "store")))
    return sorted(trials, key=lambda trial: [int(str(facts(trial).get(name, 0))) for name in ORDER])


def facts(trial: Trial) -> dict[str, object]:
    return {**trial.workload, **trial.config}


ORDER = ("micro_batch_size", "tp_degree")
NESTED = {"d_model": 2048, "n_layers": 24, "gradient_accumulation_steps": 2, "seq_len": 2048}
TRACKED = {**NESTED, "world_size": 8}
FAILED, OUT_OF_MEMORY = State.UNKNOWN, State.OUT_OF_MEMORY
SMALL = {"n_layers": 24, "gradient_accumulation_steps": 2, "world_size": 8, "started_at": "2025-03-10T01:02:03"}
TABLES = {
    "jobs.json": (NESTED, OUT_OF_MEMORY),
    "jobs_in_object.json": ({**NESTED, "world_size": 8, "device": "H100"}, OUT_OF_MEMORY),
    "jobs.jsonl": (NESTED, OUT_OF_MEMORY),
    "jobs.parquet": ({**SMALL, "d_model": 2048, "program": "gpt"}, OUT_OF_MEMORY),
    "jobs.xlsx": (SMALL, OUT_OF_MEMORY),
    "wandb_export.csv": ({**TRACKED, "started_at": "2026-01-02T03:04:05Z"}, FAILED),
    "mlflow_search_runs.csv": ({**TRACKED, "started_at": "2026-11-25T23:13:20.920000Z"}, FAILED),
    "mlruns": ({**TRACKED, "started_at": "2026-11-25T23:13:20Z"}, FAILED),
}
"""Sample -> facts of its first run, and the state of its third."""


@pytest.mark.parametrize("sample", TABLES)
def test_three_runs_are_imported(sample: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if sample.endswith((".parquet", ".xlsx")):
        pytest.importorskip("pyarrow" if sample.endswith("parquet") else "openpyxl")
    expected, state = TABLES[sample]
    first, second, third = imported(SAMPLES / sample, tmp_path, monkeypatch)
    assert {**facts(first), "started_at": first.started_at}.items() >= expected.items()
    degrees = [facts(trial).get("tp_degree") for trial in (first, second, third)]
    assert degrees == [1, 2, 8]
    assert [facts(trial)["micro_batch_size"] for trial in (first, second, third)] == [4, 8, 16]
    assert [trial.state for trial in (first, second, third)] == [State.COMPLETED, State.COMPLETED, state]
    rates = [trial.measurement and trial.measurement.tokens_per_second for trial in (first, second, third)]
    assert rates == [41000.5, 52000, None]


def test_offline_runs_of_wandb_are_read_from_their_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = imported(SAMPLES / "wandb", tmp_path, monkeypatch)
    assert facts(first).items() >= {**TRACKED, "tp_degree": 1, "program": "train.py"}.items()
    assert first.started_at == "2026-11-25T23:28:43Z"
    rates = [trial.measurement and trial.measurement.tokens_per_second for trial in (first, second)]
    assert rates == [41000.5, 52000]


def test_synchronised_runs_of_wandb_are_read_from_config_and_summary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run,) = imported(SAMPLES / "wandb_online", tmp_path, monkeypatch)
    known = {"tp_degree": 4, "precision": "bf16", "device": "NVIDIA H100 80GB HBM3", "program": "train.py"}
    assert facts(run).items() >= {**TRACKED, **known}.items()
    assert run.measurement is not None
    assert run.measurement.tokens_per_second == 47000.25
    assert not {"host", "username"} & {key.rpartition(".")[2] for key in facts(run)}


def test_deepspeed_autotuning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    second, first, third = imported(SAMPLES / "autotuning_results", tmp_path, monkeypatch)
    shared = {"n_params": 774030080, "world_size": 8, "precision": "bf16", "optimizer": "AdamW"}
    assert facts(first).items() >= {**shared, "zero_stage": 2, "global_batch_size": 32, "micro_batch_size": 4}.items()
    rates = [trial.measurement and trial.measurement.samples_per_second for trial in (first, second, third)]
    assert rates == [125.0, 150.0, None]
    assert third.state is OUT_OF_MEMORY
    assert facts(third)["zero_stage"] == 0


def test_paddle_auto_tuner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sample = SAMPLES / "paddle_history.csv"
    words = ("--map", "ips=tokens_per_second", "--fact", "seq_len=2048")
    second, first, third = imported(sample, tmp_path, monkeypatch, *words)
    known = {"dp_replicate_degree": 2, "dp_shard_degree": 2, "tp_degree": 2, "pp_degree": 1, "world_size": 8}
    more = {"activation_checkpointing": "full", "zero_stage": 1, "gradient_accumulation_steps": 4}
    assert facts(first).items() >= {**known, **more, "global_batch_size": 64, "micro_batch_size": 4}.items()
    assert first.measurement is not None
    assert first.measurement.tokens_per_second == 20345.5
    assert first.measurement.peak_memory_gib == pytest.approx(31022 / 1024)
    assert facts(second)["tp_degree"] == 4
    assert facts(third)["activation_checkpointing"] == "none"
    assert third.state is OUT_OF_MEMORY


def test_the_metric_of_paddle_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit):
        imported(SAMPLES / "paddle_history.csv", tmp_path, monkeypatch)
    assert not (tmp_path / "store").exists()


def test_logs_of_megatron_lm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, third = imported(SAMPLES / "megatron_logs", tmp_path, monkeypatch)
    known = {"d_model": 2048, "n_layers": 24, "n_heads": 16, "seq_len": 2048, "vocab_size": 50304, "world_size": 8}
    more = {"tp_degree": 1, "dp_degree": 8, "precision": "bf16", "global_batch_size": 64, "zero_stage": 1}
    assert facts(first).items() >= {**known, **more, "activation_checkpointing": "none"}.items()
    assert "n_active_experts" not in facts(first)
    assert "n_kv_heads" not in facts(first)
    # 64 x 2048 tokens in 3.201 s on average; the second has rank prefixes, and steps of 2.561 s.
    assert first.measurement is not None
    assert second.measurement is not None
    assert first.measurement.tokens_per_second == pytest.approx(64 * 2048 / 3.201, rel=1e-3)
    assert second.measurement.tokens_per_second == pytest.approx(64 * 2048 / 2.561, rel=1e-3)
    assert first.measurement.peak_memory_gib == 30.0
    assert facts(second)["activation_checkpointing"] == "selective"
    assert third.state is OUT_OF_MEMORY
    assert facts(third)["tp_degree"] == 4


def test_logs_of_torchtitan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, sharded = imported(SAMPLES / "torchtitan_logs", tmp_path, monkeypatch)
    known = {"d_model": 256, "n_layers": 6, "vocab_size": 2048, "n_params": 6163712, "seq_len": 64, "world_size": 2}
    more = {"dp_shard_degree": 2, "tp_degree": 1, "micro_batch_size": 2, "global_batch_size": 4, "precision": "bf16"}
    assert facts(run).items() >= {**known, **more, "activation_checkpointing": "selective"}.items()
    # Each line prints tokens per second of one of two devices, from 109 to 133 after three steps of warm-up.
    assert run.measurement is not None
    assert run.measurement.tokens_per_second is not None
    assert 2 * 109 < run.measurement.tokens_per_second < 2 * 133
    assert run.measurement.peak_memory_gib is None
    assert facts(sharded).items() >= {"tp_degree": 2, "dp_shard_degree": 1, "world_size": 2}.items()
