"""Prior mean from other workloads or the roofline model for one workload's process (transfer learning)."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np

from torchx_cubicml.predictors import PREDICTORS
from torchx_cubicml.predictors.features.history import training_row
from torchx_cubicml.predictors.features.rows import encode_rows
from torchx_cubicml.predictors.roofline import Roofline
from torchx_cubicml.predictors.roofline.facts import Facts
from torchx_cubicml.predictors.roofline.training_layout import TrainingLayout

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from torchx_cubicml.predictors import Predictor
    from torchx_cubicml.predictors.features.history import TrainingTable
    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.records.values import Value


def roofline_covers(trials: Iterable[Trial]) -> bool:
    """Return whether the roofline model predicts the configs of ``trials``, all of one workload.

    At least one must be measured. Each measured trial must have every fact that the step time depends on. Layers of a
    transformer, and tables of a recommender, may each have a value of their own.
    """
    measured = [trial for trial in trials if trial.measurement is not None]
    return bool(measured) and (transformer_covers(measured) or recommender_covers(measured))


def transformer_covers(trials: Iterable[Trial]) -> bool:
    """Return whether the formulas of transformers predict all measured ``trials``, at least one, and their memory."""
    rows = [training_row(trial) for trial in trials if trial.measurement is not None]
    return bool(rows) and bool(TrainingLayout.of(Facts.from_rows(rows)).covered.all())


def recommender_covers(trials: Iterable[Trial]) -> bool:
    """Return whether the formulas of recommenders predict all measured ``trials``, at least one."""
    rows = [training_row(trial) for trial in trials if trial.measurement is not None]
    return bool(rows) and bool(np.isfinite(Roofline().recommenders_.samples_per_second(rows)).all())


def calibrated_roofline(own: TrainingTable, *, rng: np.random.Generator) -> Predictor:
    """Return the roofline model, calibrated on a workload's own trials."""
    return PREDICTORS["roofline"]().fit(own, rng=rng)


_CACHE_SIZE = 2  # fitted predictors: enough for a program that alternates between two workloads


def fit_cached_predictor(history: TrainingTable, name: str) -> Predictor:
    """Return the predictor called ``name`` fitted on ``history``, from a cache of the latest fits.

    The cache key is the content of the table, and the fit has a fixed seed. Equal tables therefore give equal
    predictors, independent of the search's randomness and of earlier calls.
    """
    uncertainty = None if history.uncertainty is None else history.uncertainty.tolist()
    content = repr((name, history.columns, history.rows, uncertainty)).encode()
    digest = blake2b(content + history.features.tobytes() + history.throughput.tobytes()).digest()
    return _fitted(_FitKey(digest=digest, history=history, name=name))


@dataclass(frozen=True, slots=True, kw_only=True)
class _FitKey:
    """Cache key of a fit: training data and method, compared by content."""

    digest: bytes
    history: TrainingTable = field(compare=False)
    name: str = field(compare=False)


@lru_cache(maxsize=_CACHE_SIZE)
def _fitted(key: _FitKey) -> Predictor:
    return PREDICTORS[key.name]().fit(key.history, rng=np.random.default_rng(0))


class TransferPrior:
    """Prior mean of a workload's process: a predictor of other workloads, or the roofline model on its own trials.

    Args:
        history: training data of the predictor.
        predictor: any in ``PREDICTORS``, fitted.
    """

    def __init__(self, history: TrainingTable, predictor: Predictor) -> None:
        self._history = history
        self._predictor = predictor
        self._cache: dict[bytes, float] = {}

    def logarithms(self, rows: Sequence[Mapping[str, Value]]) -> NDArray[np.float64]:
        """Return logarithms of throughput predicted by the prior, ``[n]``; each row is computed once."""
        features = encode_rows(self._history.columns, rows)
        keys = [row.tobytes() for row in features]
        missing = {key: index for index, key in enumerate(keys) if key not in self._cache}
        if missing:
            predicted = self._predictor.predict(features[list(missing.values())])
            self._cache.update(zip(missing, predicted.logarithm.tolist(), strict=True))
        return np.array([self._cache[key] for key in keys], dtype=np.float64)
