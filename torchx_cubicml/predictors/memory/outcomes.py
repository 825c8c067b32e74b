"""What ran and what did not, as one table, and what the layout of a training says of its memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from torchx_cubicml.predictors.memory.dominance import hunger_of_row
from torchx_cubicml.predictors.roofline.facts import Facts
from torchx_cubicml.predictors.roofline.memory_calibration import N_GROUPS, MemoryCalibration, calibrate_memory
from torchx_cubicml.predictors.roofline.training_layout import Layout

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torchx_cubicml.predictors.features.history import History

_UNKNOWN_WEIGHT = 0.6  # of a failure of unknown cause where others are known to have run out of memory
_GIB = 2.0**30
N_GROWING = 2 + N_GROUPS  # the leading columns of ``ratios``, which a larger micro batch never makes smaller


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcomes:
    """The trials of a history that ran, ran out of memory or failed for an unknown cause, ``n`` rows.

    Args:
        features: as the history's columns encode them, ``[n, n_columns]``.
        fitted: 1.0 where it ran, ``[n]``.
        certain: 1.0 where memory is known to have run out, ``[n]``.
        trust: weight of each outcome, ``[n]``.
        hunger: how hungry for memory each row is, ``[n]``.
        peak_bytes: largest memory of one process, NaN where unknown, ``[n]``.
        layout: of the rows; only where it covers them does it mean anything.
    """

    features: NDArray[np.float64]
    fitted: NDArray[np.float64]
    certain: NDArray[np.float64]
    trust: NDArray[np.float64]
    hunger: NDArray[np.float64]
    peak_bytes: NDArray[np.float64]
    layout: Layout

    @classmethod
    def of(cls, history: History) -> Self:
        """Return the outcomes of ``history`` in an order that does not depend on its own."""
        rows, lost = [*history.rows, *history.failures], np.zeros(len(history.failures))
        features = np.vstack([history.features, history.columns.encode(list(history.failures))])
        fitted = np.concatenate([history.feasible, lost]).astype(np.float64)
        certain = np.concatenate([~history.feasible, lost]).astype(np.float64)
        unknown = np.concatenate([np.zeros(len(history.rows)), lost + 1.0])
        # Where no failure says why it failed, they are what is known of memory.
        trust = 1.0 - (1.0 - _UNKNOWN_WEIGHT) * unknown * certain.any()
        hunger = np.array([hunger_of_row(row) for row in rows], dtype=np.float64)
        peak = history.peak_memory_gib if history.peak_memory_gib is not None else np.full(len(history.rows), np.nan)
        peak_bytes = np.concatenate([peak * _GIB, lost + np.nan])
        order = np.lexsort(np.column_stack([np.nan_to_num(peak_bytes), unknown, fitted, hunger, features]).T)
        return cls(
            features=features[order],
            fitted=fitted[order],
            certain=certain[order],
            trust=trust[order],
            hunger=hunger[order],
            peak_bytes=peak_bytes[order],
            layout=Layout.of(Facts.from_rows([rows[index] for index in order.tolist()])),
        )

    def __len__(self) -> int:
        return len(self.fitted)

    @property
    def of_each_kind(self) -> int:
        """How many ran or how many did not, whichever is fewer."""
        return int(min(self.fitted.sum(), (1.0 - self.fitted).sum()))

    def memory(self) -> MemoryCalibration:
        """Return the memory formula as calibrated on the rows that it covers."""
        covered = self.layout.covered
        return calibrate_memory(
            self.layout.rows(covered),
            ran=self.fitted[covered],
            certain=self.certain[covered],
            peak_bytes=self.peak_bytes[covered],
        )


def ratios(layout: Layout, memory: MemoryCalibration) -> NDArray[np.float64]:
    """Return what tells trainings that run from those that do not, NaN where not covered.

    Not every failure is memory: many stages for the layers, long accumulation and many nodes have troubles of their
    own. The shape is float64 ``[n, N_GROWING + n_others]``.
    """
    with np.errstate(all="ignore"):
        others = [layout.layers / layout.pp, layout.rounds, layout.world / layout.per_node, layout.rounds / layout.pp]
        table = np.column_stack([memory.pressure(layout), np.log2(layout.tokens), *np.log2(others)])
    return np.where(layout.covered[:, None], table, np.nan)
