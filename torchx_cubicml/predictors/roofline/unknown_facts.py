"""Facts that a training does not state: which they are, and the priors of what stands for them in the formulas.

An unknown kernel of attention or way of sharding enters as a mixture of the known ones. Its weight is calibrated on the
history like any other constant. An unknown vocabulary is solved for from the number of parameters where the widths are
known, and is calibrated elsewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from torchx_cubicml.predictors.roofline.facts import Facts

# name -> (prior median, standard deviation of its logarithm, in words). Odds are of weights between 0 and 1.
PRIORS: dict[str, tuple[float, float, str]] = {
    "unknown_plain_attention": (0.1, 1.5, "odds that scores of attention go through memory, its kernel unknown"),
    "unknown_states_sharded": (1.0, 1.0, "odds that optimizer states are sharded, the ZeRO stage unknown"),
    "unknown_gathered": (0.1, 1.5, "odds that parameters are gathered each time, the ZeRO stage unknown"),
    "unknown_vocabulary": (50_000.0, 0.7, "words where neither they nor the number of parameters are known"),
    "counted_embeddings": (1.4, 0.3, "times that the number of parameters counts the words, if they are unknown"),
}
MEDIANS: Mapping[str, float] = {name: median for name, (median, _, _) in PRIORS.items()}
_FEWEST_WORDS, _MOST_WORDS = 8e3, 4e5  # times their count, in a number of parameters
_EXACT = 0.01  # log error of the parameters of all blocks that leaves no room for embeddings


def unknown_fields(facts: Facts, fields: dict[str, NDArray[np.float64]]) -> dict[str, NDArray[np.float64]]:
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


def embedded_words(facts: Facts, in_blocks: NDArray[np.float64], width: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return words times their copies in the number of parameters, float64 ``[n]``; NaN where it cannot be solved for.

    Args:
        facts: of ``n`` trainings.
        in_blocks: parameters of all transformer blocks.
        width: of the residual stream.
    """
    is_exact = np.isfinite(facts.number("d_ff")) & (facts.number("n_experts", 1.0) <= 1)
    return np.where(is_exact, (facts.number("n_params") - in_blocks) / width, np.nan)


def misfit_of_words(
    in_blocks: NDArray[np.float64], total: NDArray[np.float64], width: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the misfit of the vocabulary that remains beside the blocks, in log units, float64 ``[n]``."""
    words = (total - in_blocks) / width
    expected = MEDIANS["unknown_vocabulary"] * MEDIANS["counted_embeddings"]
    remaining = np.where(words > 0.0, np.abs(np.log(np.maximum(words, 1.0) / expected)), np.inf)
    return np.where(np.abs(np.log(in_blocks / total)) < _EXACT, 0.0, remaining)
