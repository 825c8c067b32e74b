"""Memory of one rank of a recommender by part: dense states, and its shards of the embedding tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from torchx_cubicml.predictors.roofline.embedding_load import QUANTITIES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torchx_cubicml.predictors.roofline.recommender_layout import RecommenderLayout

RECOMMENDER_MEMORY_PARTS = (
    "weights",
    "gradients",
    "optimizer",
    "gathered",
    "embeddings",
    "embedding_states",
    "embedding_buffers",
)
_WEIGHT, _GRADIENT, _OPTIMIZER = 2.0, 4.0, 12.0  # bytes per dense parameter, as for transformers
_DENSE_STATES = 3.0  # gradient and two moments of a table with dense gradients, over its weights
_ROW_STATE = 4.0  # bytes per row of row-wise Adagrad, whose gradients are applied at once
TABLE_PARTS = ("embeddings", "embedding_states", "embedding_buffers")


def recommender_memory_parts(layout: RecommenderLayout) -> dict[str, NDArray[np.float64]]:
    """Return name of ``RECOMMENDER_MEMORY_PARTS`` -> bytes of the fullest rank, float64 ``[n]``; they add up.

    Of the dense layers that are gathered, two are whole at a time. Buffers are the embeddings and indices that a rank
    sends and receives in one step.

    Args:
        layout: ``n`` trainings; those that are not covered are meaningless.
    """
    share = np.where(layout.sharded, 1.0 / layout.ranks[:, None], 1.0)
    held = (layout.sizes * share).sum(axis=1)
    gathered = np.sort(layout.sizes * layout.each_time * (1.0 - share), axis=1)[:, -2:].sum(axis=1)
    tables, fullest = layout.tables, layout.load.fullest[:, _BY_BYTES]
    at = {name: fullest[:, index] for index, name in enumerate(QUANTITIES)}
    with np.errstate(divide="ignore", invalid="ignore"):
        bytes_per_row = np.nan_to_num(tables.bytes.sum(axis=1) / (tables.rows * tables.count).sum(axis=1))
        row_states = np.where(bytes_per_row > 0.0, _ROW_STATE / bytes_per_row, 0.0)
    fused = np.maximum(at["held"] - layout.replicated, 0.0)
    return {
        "weights": _WEIGHT * (layout.sizes * np.where(layout.each_time, share, 1.0)).sum(axis=1),
        "gradients": _GRADIENT * held,
        "optimizer": _OPTIMIZER * held,
        "gathered": _WEIGHT * gathered,
        "embeddings": at["held"],
        "embedding_states": fused * row_states + _DENSE_STATES * layout.replicated,
        "embedding_buffers": at["pooled_bytes"] + at["received"],
    }


_BY_BYTES = 5  # candidate of ``EmbeddingLoad.fullest`` that holds most
