"""Facts that a training does not state: which they are, and the learned values that stand for them in the formulas.

A kernel of attention or a way of sharding that is unknown enters as a mixture of the known ones. Its weight has a prior
and is calibrated on the history like any other constant. An unknown vocabulary is solved for from the number of
parameters where the widths are known, and has a prior elsewhere.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from torchx_cubicml.predictors.roofline.constants import Constants
    from torchx_cubicml.predictors.roofline.facts import Facts
    from torchx_cubicml.predictors.roofline.training_layout import Array, TrainingLayout

# name -> (prior median, standard deviation of its logarithm, in words). Odds are of weights between 0 and 1.
PRIORS: dict[str, tuple[float, float, str]] = {
    "unknown_plain_attention": (0.1, 1.5, "odds that scores of attention go through memory, its kernel unknown"),
    "unknown_states_sharded": (1.0, 1.0, "odds that optimizer states are sharded, the ZeRO stage unknown"),
    "unknown_gathered": (0.1, 1.5, "odds that parameters are gathered each time, the ZeRO stage unknown"),
    "unknown_vocabulary": (50_000.0, 0.7, "words where neither they nor the number of parameters are known"),
    "counted_embeddings": (1.4, 0.3, "times that the number of parameters counts the words, if they are unknown"),
}
MEDIANS: Constants = {name: median for name, (median, _, _) in PRIORS.items()}
_FEWEST_WORDS, _MOST_WORDS = 8e3, 4e5  # times their count, in a number of parameters
_EXACT = 0.01  # log error of the parameters of all blocks that leaves no room for embeddings


def unknown_fields(facts: Facts, fields: dict[str, Array]) -> dict[str, Array]:
    """Return the fields of a layout that say what is unknown, float64 ``[n]`` each; see ``TrainingLayout``.

    Args:
        facts: of ``n`` trainings.
        fields: ``layers``, ``width`` and ``layer_params`` of their layouts.
    """
    shards = facts.number("dp_shard_degree")
    is_stated = facts.told("zero_stage") | facts.known("sharding_strategy") | (shards <= 1.0)
    words = embedded_words(facts, fields["layers"] * fields["layer_params"], fields["width"])
    has_no_words = ~facts.told("vocab_size")
    is_solvable = has_no_words & (words >= _FEWEST_WORDS) & (words <= _MOST_WORDS)
    return {
        "unknown_attention": 1.0 - facts.known("attention_kernel"),
        "unknown_sharding": 1.0 - is_stated,
        "unknown_words": np.where(has_no_words & ~is_solvable, 1.0, 0.0),
        "embedded_words": np.where(is_solvable, words, 0.0),
    }


def embedded_words(facts: Facts, in_blocks: Array, width: Array) -> Array:
    """Return words times their copies in the number of parameters, float64 ``[n]``; NaN where it cannot be solved for.

    Args:
        facts: of ``n`` trainings.
        in_blocks: parameters of all transformer blocks.
        width: of the residual stream.
    """
    is_exact = np.isfinite(facts.number("d_ff")) & (facts.number("n_experts", 1.0) <= 1)
    return np.where(is_exact, (facts.number("n_params") - in_blocks) / width, np.nan)


def misfit_of_words(in_blocks: Array, total: Array, width: Array) -> Array:
    """Return how unlikely the vocabulary is that remains beside the blocks, in log units, float64 ``[n]``."""
    words = (total - in_blocks) / width
    expected = MEDIANS["unknown_vocabulary"] * MEDIANS["counted_embeddings"]
    remaining = np.where(words > 0.0, np.abs(np.log(np.maximum(words, 1.0) / expected)), np.inf)
    return np.where(np.abs(np.log(in_blocks / total)) < _EXACT, 0.0, remaining)


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
