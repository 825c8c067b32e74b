"""Prior mean from other workloads and formulas for one workload's process (transfer learning)."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np

from torchx_cubicml.predictors import PREDICTORS
from torchx_cubicml.predictors.features.history import training_row
from torchx_cubicml.predictors.features.rows import encoded
from torchx_cubicml.predictors.roofline import Roofline

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from torchx_cubicml.predictors import Predictor
    from torchx_cubicml.predictors.features.history import History
    from torchx_cubicml.records.trial import Trial, Value


def cover(trials: Iterable[Trial]) -> bool:
    """Return whether the formulas tell the configs of ``trials`` apart: of one workload, measured ones count.

    There must be some, each naming all that a transformer's step time depends on, and none with a value per layer.
    """
    measured = [trial for trial in trials if trial.measurement is not None]
    if not measured or any(isinstance(value, tuple) for trial in measured for value in trial.config.values()):
        return False
    taken = next(iter(Roofline().memory([training_row(trial) for trial in measured]).values()))
    return bool((taken > 0).all())


def calibrated(own: History, *, rng: np.random.Generator) -> Predictor:
    """Return the formulas, calibrated on a workload's own trials."""
    return PREDICTORS["roofline"]().fit(own, rng=rng)


_REMEMBERED = 2  # fitted predictors: of a program that tunes two workloads in turns


def taught_by(history: History, name: str) -> Predictor:
    """Return the predictor of that ``name`` fitted on ``history``.

    The same table gives the same predictor, whatever was asked before: nothing in it is left to a search's own chance,
    and what was learned last is kept by its content.
    """
    doubts = None if history.uncertainty is None else history.uncertainty.tolist()
    content = repr((name, history.columns, history.rows, doubts)).encode()
    digest = blake2b(content + history.features.tobytes() + history.throughput.tobytes(), digest_size=16).digest()
    return _fitted(_FitKey(digest=digest, history=history, name=name))


@dataclass(frozen=True, slots=True, kw_only=True)
class _FitKey:
    """What is learned from and by whom, known by its content alone."""

    digest: bytes
    history: History = field(compare=False)
    name: str = field(compare=False)


@lru_cache(maxsize=_REMEMBERED)
def _fitted(table: _FitKey) -> Predictor:
    return PREDICTORS[table.name]().fit(table.history, rng=np.random.default_rng(0))


class TransferPrior:
    """What a workload's own process starts from: a predictor of other workloads, or the formulas on its own trials.

    Args:
        history: what the predictor was fitted on.
        predictor: any that is named in ``PREDICTORS``.
    """

    def __init__(self, history: History, predictor: Predictor) -> None:
        self._history = history
        self._predictor = predictor
        self._known: dict[bytes, float] = {}

    def logarithms(self, rows: Sequence[Mapping[str, Value]]) -> NDArray[np.float64]:
        """Return logarithms of throughput as other workloads suggest them, ``[n]``; each row is computed once."""
        features = encoded(self._history.columns, rows)
        keys = [row.tobytes() for row in features]
        fresh = {key: place for place, key in enumerate(keys) if key not in self._known}
        if fresh:
            predicted = self._predictor.predict(features[list(fresh.values())]).throughput
            self._known.update(zip(fresh, np.log(predicted).tolist(), strict=True))
        return np.array([self._known[key] for key in keys], dtype=np.float64)
