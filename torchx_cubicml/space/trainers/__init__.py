"""Tables of trainers, no logic: the standard names, and the flags and keys that trainers have for them."""

from __future__ import annotations

from torchx_cubicml.records.standard_names import (
    CHANGES_TRAINING,
    FLAG_ALIASES,
    SHARDING_STRATEGIES,
    STANDARD_PARAMETERS,
    STANDARD_WORDS,
    WORKLOAD_NAMES,
)
from torchx_cubicml.space.trainers.accelerate import ACCELERATE
from torchx_cubicml.space.trainers.base import Trainer, TrainerFlag, TrainerRelease
from torchx_cubicml.space.trainers.deepspeed import DEEPSPEED
from torchx_cubicml.space.trainers.hugging_face import HUGGING_FACE
from torchx_cubicml.space.trainers.megatron_lm import MEGATRON_LM
from torchx_cubicml.space.trainers.nanogpt import NANOGPT
from torchx_cubicml.space.trainers.torchtitan import TORCHTITAN

TRAINERS: dict[str, Trainer] = {
    trainer.name: trainer for trainer in (MEGATRON_LM, TORCHTITAN, ACCELERATE, DEEPSPEED, HUGGING_FACE, NANOGPT)
}
"""Trainers with known flags, by their name in a space file; a command belongs to the first that matches."""

__all__ = [
    "CHANGES_TRAINING",
    "FLAG_ALIASES",
    "SHARDING_STRATEGIES",
    "STANDARD_PARAMETERS",
    "STANDARD_WORDS",
    "TRAINERS",
    "WORKLOAD_NAMES",
    "Trainer",
    "TrainerFlag",
    "TrainerRelease",
]
