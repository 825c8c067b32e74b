"""The report card of a predictor on trials that it did not see: how it ranks, proposes, and knows its own doubt."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np

from torchx_cubicml.errors import RecordError
from torchx_cubicml.history import History, config_key, training_row
from torchx_cubicml.predictors import DEFAULT_PREDICTOR, PREDICTORS, Feasibility
from torchx_cubicml.trial import State

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from torchx_cubicml.trial import Trial, Workload

SPLITS = ("random", "time", "scale")
_TRAIN_SHARE = 0.8
_FOLLOWS_BATCH = "gradient_accumulation_steps"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportCard:
    """How a predictor did on trials outside its training; NaN where a number has no meaning.

    Args:
        predictor: name of the method.
        split: how the trials outside were chosen, in words.
        tau: Kendall's rank correlation of predicted and measured throughput.
        pearson: linear correlation.
        spearman: rank correlation.
        regret: what the first proposal loses against the best known, mean over the workloads outside: 0 is none, a
            proposal that does not run loses all.
        coverage: share of measurements inside their 80 % interval.
        n_train: measured trials known.
        n_test: measured trials predicted.
    """

    predictor: str
    split: str
    tau: float
    pearson: float
    spearman: float
    regret: float
    coverage: float
    n_train: int
    n_test: int

    def to_json(self) -> dict[str, object]:
        """Return JSON values; what has no meaning is ``None``."""
        return {
            name: None if isinstance(value, float) and math.isnan(value) else value
            for name, value in asdict(self).items()
        }

    def __str__(self) -> str:
        reached = "no workload had two outcomes to choose from"
        if not math.isnan(self.regret):
            reached = f"its first proposal for a workload reaches {1 - self.regret:.0%} of the best known"
        if math.isnan(self.tau):
            return f"{self.predictor}, {self.split}: {self.n_test} measured trials held out are too few to rank"
        return (
            f"{self.predictor}, {self.split}: trained on {self.n_train} measured trials, it ranks {self.n_test} others "
            f"with Kendall's tau {self.tau:.2f} (Pearson {self.pearson:.2f}, Spearman {self.spearman:.2f}); {reached}; "
            f"its 80 % interval holds {self.coverage:.0%} of the measurements."
        )


def evaluate(
    trials: Iterable[Trial],
    *,
    split: str = "random",
    predictor: str = DEFAULT_PREDICTOR,
    objective: str = "tokens_per_second",
    max_world_size: int | None = None,
    seed: int = 0,
) -> ReportCard:
    """Return the report card of a predictor on one split of ``trials``.

    Args:
        trials: of any workloads.
        split: ``random`` (four fifths known), ``time`` (the earlier four fifths known) or ``scale`` (jobs up to
            ``max_world_size`` known).
        predictor: a name in ``PREDICTORS``.
        objective: name of the throughput.
        max_world_size: of ``scale``; by default the world size up to which at least half of the trials run.
        seed: of all randomness.

    Raises:
        RecordError: a name is unknown, the split leaves nothing to learn from or nothing to predict, or trials lack
            what it splits by.
    """
    if predictor not in PREDICTORS:
        raise RecordError(f"unknown predictor {predictor!r}; legal are {', '.join(PREDICTORS)}")
    ended = sorted((trial for trial in trials if trial.state.ended), key=_content)
    if split == "random":
        chosen = np.random.default_rng(seed).permutation(len(ended)) < _TRAIN_SHARE * len(ended)
        known, told = [bool(flag) for flag in chosen], "a random fifth held out"
    elif split == "time":
        known, told = _earlier(ended), "the latest fifth held out"
    elif split == "scale":
        known, told = _smaller(ended, max_world_size)
    else:
        raise RecordError(f"unknown split {split!r}; legal are {', '.join(SPLITS)}")
    train = [trial for trial, flag in zip(ended, known, strict=True) if flag]
    test = [trial for trial, flag in zip(ended, known, strict=True) if not flag]
    return grade(train, test, predictor=predictor, objective=objective, split=told, seed=seed)


def grade(
    train: Sequence[Trial], test: Sequence[Trial], *, predictor: str, objective: str, split: str, seed: int = 0
) -> ReportCard:
    """Return the report card of a predictor that knows ``train`` and predicts ``test``.

    Args:
        train: trials known, failures among them.
        test: trials to predict, likewise.
        predictor: a name in ``PREDICTORS``.
        objective: name of the throughput.
        split: the split in words.
        seed: of all randomness.

    Raises:
        RecordError: nothing was measured in ``train`` or in ``test``.
    """
    history = History.from_trials(train, objective=objective)
    asked = [(trial, _reached(trial, objective)) for trial in test]
    outcomes = [(trial, value) for trial, value in asked if value is not None]
    reached = np.array([value for _, value in outcomes], dtype=np.float64)
    n_train, ran = int(np.isfinite(history.throughput).sum()), reached > 0.0
    if not n_train or not ran.any():
        raise RecordError(f"{split}: {n_train} measured trials are known and {int(ran.sum())} are left to predict")
    rng = np.random.default_rng(seed)
    rows = [training_row(trial) for trial, _ in outcomes]
    features = history.columns.encode(rows)
    prediction = PREDICTORS[predictor]().fit(history, rng=rng).predict(features)
    fits = Feasibility(compare=_compared(train)).fit(history, rng=rng).probability(features, rows)
    inside = (prediction.quantile(0.1) <= reached) & (reached <= prediction.quantile(0.9))
    tau, pearson, spearman = _correlations(prediction.throughput[ran], reached[ran])
    return ReportCard(
        predictor=predictor,
        split=split,
        tau=tau,
        pearson=pearson,
        spearman=spearman,
        regret=_regret([trial.workload for trial, _ in outcomes], prediction.throughput * fits, reached),
        coverage=float(inside[ran].mean()),
        n_train=n_train,
        n_test=int(ran.sum()),
    )


def _content(trial: Trial) -> tuple[str, str]:
    """Return what sorts trials alike in every store that holds them: ids are drawn by chance."""
    return config_key({**trial.workload, **trial.config}), f"{trial.state} {trial.measurement}"


def _compared(trials: Sequence[Trial]) -> list[str]:
    """Return what makes two rows the same but for the micro batch; accumulation follows from it."""
    return sorted({name for trial in trials for name in (*trial.workload, *trial.config)} - {_FOLLOWS_BATCH})


def _reached(trial: Trial, objective: str) -> float | None:
    """Return the throughput, 0.0 of a trial that did not run, and ``None`` where it cannot be told."""
    value = trial.measurement.throughput(objective) if trial.measurement else None
    if trial.state is State.OUT_OF_MEMORY:
        return 0.0
    if value is None and trial.state not in {State.COMPLETED, State.STOPPED_EARLY}:
        return 0.0
    return value


def _correlations(predicted: NDArray[np.float64], measured: NDArray[np.float64]) -> tuple[float, float, float]:
    if len(np.unique(predicted)) < 2 or len(np.unique(measured)) < 2:
        return math.nan, math.nan, math.nan
    from scipy.stats import kendalltau, pearsonr, spearmanr

    tau, pearson, spearman = (float(rank(predicted, measured)[0]) for rank in (kendalltau, pearsonr, spearmanr))
    return tau, pearson, spearman


def _regret(workloads: Sequence[Workload], score: NDArray[np.float64], reached: NDArray[np.float64]) -> float:
    groups: defaultdict[object, list[int]] = defaultdict(list)
    for index, workload in enumerate(workloads):
        groups[tuple(sorted(workload.items()))].append(index)
    losses = []
    for members in groups.values():
        best = reached[members].max()
        if len(members) > 1 and best > 0.0:
            losses.append(1.0 - reached[members[int(np.argmax(score[members]))]] / best)
    return float(np.mean(losses)) if losses else math.nan


def _earlier(trials: Sequence[Trial]) -> list[bool]:
    times = sorted(trial.started_at for trial in trials)
    if not times or not times[0]:
        raise RecordError(f"the time split needs trials that say when they started; {times.count('')} do not")
    cut = times[min(int(_TRAIN_SHARE * len(times)), len(times) - 1)]
    return [trial.started_at < cut for trial in trials]


def _smaller(trials: Sequence[Trial], limit: int | None) -> tuple[list[bool], str]:
    sizes = [size for trial in trials if isinstance(size := trial.fact("world_size"), int)]
    if len(sizes) < len(trials) or not sizes:
        raise RecordError(f"the scale split needs trials with a world_size; {len(trials) - len(sizes)} have none")
    limit = limit if limit is not None else sorted(sizes)[(len(sizes) - 1) // 2]
    return [size <= limit for size in sizes], f"all above {limit} processes held out"
