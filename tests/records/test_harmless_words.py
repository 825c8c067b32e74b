"""Names that are known to be harmless, and names that are not."""

from __future__ import annotations

import pytest

from torchx_cubicml.records.harmless_words import is_harmless


@pytest.mark.parametrize(
    "name",
    [
        *(
            "--seed",
            "--data_seed",
            "--run_name",
            "--output_dir",
            "--log_every",
            "--lr",
            "--weight_decay",
            "--max_steps",
        ),
        *("--warmup_ratio", "--grad_clip", "--epochs", "training.steps=", "optimizer.lr=", "--wandb.project"),
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
        *("$OMP_NUM_THREADS", "$NCCL_ALGO", "argument 1", "program", "program:n_embd", "--config:model.depth"),
    ],
)
def test_other_names_are_not(name: str) -> None:
    assert not is_harmless(name)
