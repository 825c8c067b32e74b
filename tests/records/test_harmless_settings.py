"""Names that are known to be harmless, and names that are not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from torchx_cubicml.records import harmless_settings as table
from torchx_cubicml.records.harmless_settings import is_harmless


@pytest.mark.parametrize(
    "name",
    [
        *(
            "--seed",
            "--local_rank",
            "--local-rank",
            "--data_seed",
            "--run_name",
            "--output_dir",
            "--log_every",
            "--lr",
            "--weight_decay",
            "--max_steps",
        ),
        *("--warmup_ratio", "--grad_clip", "--epochs", "training.steps=", "optimizer.lr=", "--wandb.project"),
        *(
            "--name",
            "--group",
            "run.name=",
            "--config:wandb.name",
            "logger.version=",
            "--job.description",
            "hydra.run.dir=",
        ),
        *(
            "--save_every",
            "--eval_steps",
            "--checkpoint.interval",
            "--save_every_n_steps",
            "save_strategy=",
            "--ckpt_dir",
            "--out_dir",
            "--work-dir",
            "--trainer.default_root_dir",
            "--job.dump_folder",
            "--cache_dir",
            "--profile_dir",
        ),
        *("--logging_steps", "--lr_schedule", "--lr_scheduler.warmup_steps", "--training.steps", "--config:data.seed"),
        *("$RUN_NAME", "$OUTPUT_DIR", "$CHECKPOINT_DIR", "$LOG_DIR", "$MY_SEED", "$MASTER_PORT", "$LOGLEVEL"),
        *("$WANDB_MODE", "$HF_HOME", "$NCCL_DEBUG", "--config:trainer.max_epochs", "program:learning_rate"),
    ],
)
def test_names_of_the_docs_are_harmless(name: str) -> None:
    assert is_harmless(name)


@pytest.mark.parametrize(
    "name",
    [
        *("--seq_len", "--n_layer", "--model_name", "--model_dir", "--data_path", "--gradient_checkpointing", "--attn"),
        *("--gradient_accumulation_steps", "--eval_batch_size", "--mask_ratio", "--num_workers", "--timesteps"),
        *("--model.name", "model.name=", "--config:model.name", "dataset.name=", "optimizer.name=", "model.version="),
        *("data.dir=", "model.id=", "model.iters=", "optimizer.group=", "--version", "--debug", "program:GPT.name"),
        *("$MODEL_NAME", "$DATASET_NAME", "$DATA_DIR", "$LOGIT_CAP", "$TORCH_DISTRIBUTED_DEBUG", "$LOGITS"),
        *("--update_freq", "--accumulate_every", "--pipeline_schedule", "--pp_schedule", "--act_ckpt", "--use_ckpt"),
        *("--moe_freq", "--moe_every", "--preconditioning_frequency", "--sync_interval", "--act_ckpt_every"),
        *("--activation_checkpoint.interval", "--dropout", "--label_smoothing", "--temperature", "--momentum"),
        *("--drop_path", "--schedule", "--checkpoint", "--every"),
        *("$OMP_NUM_THREADS", "$NCCL_ALGO", "argument 1", "program", "program:n_embd", "--config:model.depth"),
    ],
)
def test_other_names_are_not(name: str) -> None:
    assert not is_harmless(name)


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("--ckpt run.pt", True),
        ("--checkpoint /mnt/run7", True),
        ("--ckpt ~k53882ca8.pt", True),
        ("--save_model out/best.pt", True),
        ("--ckpt", False),
        ("--use_ckpt true", False),
        ("--ckpt 1", False),
        ("--checkpoint selective", False),
        ("--checkpoint team/model-1.3b", False),
        ("--ckpt ~k53882ca8", False),
        ("--pretrained weights.pt", False),
        ("--data tokens.pt", False),
    ],
)
def test_a_path_tells_of_an_output_where_the_name_does_not(typed: str, expected: bool) -> None:
    name, _, value = typed.partition(" ")
    assert is_harmless(name, value) is expected


def test_the_docs_print_the_real_tables() -> None:
    page = (Path(__file__).parents[2] / "docs" / "launching.md").read_text()
    section = page.split("## Harmless settings")[1].split("\n## ")[0]
    rows = [line.split("|")[2] for line in section.splitlines() if line.startswith("| ")][1:]
    found = [set(re.findall("`([^`]+)`", row)) for row in rows]
    assert found == [
        {*names}
        for names in (
            *(table._WHOLE, table._LABELS, table._RUN_SECTIONS, table._PARTS, table._ALWAYS),
            *(table._OF_CADENCE, table._EVENTS, table._CADENCES, table._SIZES),
        )
    ]
    variables = re.findall("`([A-Z_]+)`", section.rsplit("Harmless environment variables", 1)[1])
    assert variables
    assert all(is_harmless(f"${name}") for name in variables)
