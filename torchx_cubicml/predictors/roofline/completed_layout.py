"""Layouts in which learned values stand for unknown facts; see ``unknown_facts``."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from torchx_cubicml.predictors.roofline.constants import Constants
    from torchx_cubicml.predictors.roofline.training_layout import TrainingLayout


def completed(layout: TrainingLayout, constants: Constants) -> TrainingLayout:
    """Return a layout in which the learned values stand for the unknown facts; the same object if all are known."""
    attention, sharding, words = layout.unknown_attention, layout.unknown_sharding, layout.unknown_words
    solved = layout.embedded_words
    if not any(each.any() for each in (attention, sharding, words, solved)):
        return layout
    gathered = sharding * _weight(constants["unknown_gathered"])
    states = sharding * _weight(constants["unknown_states_sharded"])
    copies = np.clip(constants["counted_embeddings"], 1.0, 2.0)
    return replace(
        layout,
        plain_attention=layout.plain_attention + attention * _weight(constants["unknown_plain_attention"]),
        gathered_each_time=layout.gathered_each_time + gathered,
        gradients_sharded=layout.gradients_sharded + gathered,
        states_sharded=np.maximum(layout.states_sharded, np.maximum(states, gathered)),
        vocabulary=layout.vocabulary + words * constants["unknown_vocabulary"] + solved / copies,
    )


def relevant(layout: TrainingLayout) -> tuple[str, ...]:
    """Return the names of ``PRIORS`` that stand for a fact that any of the trainings leaves unknown."""
    sharded = layout.unknown_sharding * (layout.dp > 1.0)
    of_each = {
        "unknown_plain_attention": layout.unknown_attention,
        "unknown_states_sharded": sharded,
        "unknown_gathered": sharded,
        "unknown_vocabulary": layout.unknown_words,
        "counted_embeddings": layout.embedded_words,
    }
    return tuple(name for name, unknown in of_each.items() if unknown.any())


def _weight(odds: float) -> float:
    return odds / (1.0 + odds)
