"""nanoGPT: an argument is ``--key=value`` or a Python file of other defaults; accumulation counts all ranks."""

from __future__ import annotations

from torchx_cubicml.space.trainers.base import Trainer, TrainerFlag, TrainerRelease

_AS_PYTHON = ((True, "True"), (False, "False"))

NANOGPT = Trainer(
    name="nanogpt",
    flags={
        "micro_batch_size": TrainerFlag(flag="--batch_size=", choices=(1, 2, 4, 8, 12, 16, 32, 64), default=12),
        "gradient_accumulation_steps": TrainerFlag(flag="--gradient_accumulation_steps=", default=40),
        "compile": TrainerFlag(flag="--compile=", default=True, words=_AS_PYTHON),
        "n_layers": TrainerFlag(flag="--n_layer=", default=12),
        "n_heads": TrainerFlag(flag="--n_head=", default=12),
        "d_model": TrainerFlag(flag="--n_embd=", default=768),
        "seq_len": TrainerFlag(flag="--block_size=", default=1024),
    },
    accumulation="whole job",
    release=TrainerRelease(version="master", checks=("train.py: module", "model.py: CausalSelfAttention")),
    other_defaults=("*.py",),
    source="configurator.py",
    outputs=("--out_dir=",),
)
