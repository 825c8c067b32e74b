"""Predictor selection: the method of best held-out rank correlation on a store's trials, saved in that store.

Launches read back a name and use it only if it is in ``PREDICTORS``: no content of a store is ever run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from torchx_cubicml.errors import RecordError
from torchx_cubicml.predictors import DEFAULT_PREDICTOR, PREDICTORS
from torchx_cubicml.predictors.evaluation import evaluate
from torchx_cubicml.store.predictor_choice import append_choice, latest_choice

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torchx_cubicml.records.trial import Trial

FEWEST_TO_CHOOSE = 20  # measured trials; with fewer, a fifth is less than four trials, and their ranks are noise
_FOLDS = 3
_LEAST_GAIN = 0.02  # tau by which another method must beat the default: less is noise


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictorChoice:
    """Selected predictor with the scores that it was selected by.

    Args:
        name: of the method.
        taus: method -> Kendall's tau on held-out trials, mean over the splits.
        n_measured: number of measured trials.
    """

    name: str
    taus: dict[str, float]
    n_measured: int

    def __str__(self) -> str:
        return f"predictor for launches with this store: {self.name} ({self._grounds()})"

    def advice(self, *, in_use: str, command: str) -> str:
        """Return a sentence that compares the predictor that launches use with the selected one, which a command sets.

        >>> choice = PredictorChoice(name="roofline", taus={"roofline": 0.8, "greybox": 0.5}, n_measured=40)
        >>> choice.advice(in_use="greybox", command="evaluate").partition(" (")[0]
        'roofline would serve launches with this store better than greybox'
        """
        if self.name == in_use:
            return f"launches with this store use {in_use}; no other predictor is clearly better ({self._grounds()})"
        is_better = self.taus[self.name] > self.taus.get(in_use, -math.inf)
        compared = (
            f"{self.name} would serve launches with this store better than {in_use}"
            if is_better
            else f"launches with this store use {in_use}, which is not clearly better than the default {self.name}"
        )
        return f"{compared} ({self._grounds()}); `{command}` sets {self.name}"

    def _grounds(self) -> str:
        ranks = ", ".join(f"{name} {tau:.2f}" for name, tau in sorted(self.taus.items(), key=lambda item: -item[1]))
        return f"Kendall's tau on held-out fifths of {self.n_measured} measured trials: {ranks}"


def choose_predictor(
    trials: Iterable[Trial],
    *,
    objective: str = "tokens_per_second",
    seed: int = 0,
    report: Callable[[int, int], None] = lambda _done, _total: None,
) -> PredictorChoice | None:
    """Return the predictor that ranks held-out trials best; the default where none is clearly better.

    Args:
        trials: of any workloads.
        objective: name of the throughput.
        seed: of the splits.
        report: takes the number of methods compared so far, and of all.

    Returns:
        ``None`` where fewer than ``FEWEST_TO_CHOOSE`` trials were measured, or no split of the default can be graded.
    """
    trials = list(trials)
    n_measured = sum(bool(trial.throughput(objective)) for trial in trials)
    if n_measured < FEWEST_TO_CHOOSE:
        return None
    taus: dict[str, float] = {}
    for name in PREDICTORS:
        report(len(taus), len(PREDICTORS))
        taus[name] = _tau(trials, name, objective=objective, seed=seed)
    finite_taus = {name: tau for name, tau in taus.items() if math.isfinite(tau)}
    if DEFAULT_PREDICTOR not in finite_taus:
        return None
    best = max(finite_taus, key=lambda name: (finite_taus[name], name == DEFAULT_PREDICTOR))
    is_better = finite_taus[best] > finite_taus[DEFAULT_PREDICTOR] + _LEAST_GAIN
    return PredictorChoice(name=best if is_better else DEFAULT_PREDICTOR, taus=finite_taus, n_measured=n_measured)


def save_choice(url: str, choice: PredictorChoice) -> None:
    """Write ``choice`` beside the events of the store at ``url``; the latest one is in force.

    Raises:
        StoreError: the store cannot be written.
    """
    append_choice(url, choice.name, why={"tau": choice.taus, "n_measured": choice.n_measured})


def load_choice(url: str) -> str:
    """Return the predictor that serves the store at ``url``: the one chosen for it, else the default.

    Raises:
        StoreError: the store cannot be reached or read.
    """
    return name if (name := latest_choice(url)) in PREDICTORS else DEFAULT_PREDICTOR


def _tau(trials: list[Trial], name: str, *, objective: str, seed: int) -> float:
    taus = []
    for fold in range(_FOLDS):
        try:
            taus.append(evaluate(trials, predictor=name, objective=objective, seed=seed + fold).tau)
        except RecordError:
            continue
    finite = [tau for tau in taus if math.isfinite(tau)]
    return float(np.mean(finite)) if finite else math.nan
