"""The report card of a predictor on trials that it did not see: how it ranks, proposes, and knows its own doubt."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from torchx_cubicml.errors import RecordError
from torchx_cubicml.predictors import DEFAULT_PREDICTOR, PREDICTORS, CrossWorkloadFeasibility
from torchx_cubicml.predictors.features.history import History, training_row
from torchx_cubicml.predictors.splits import SplitRequest, held_out
from torchx_cubicml.records.trial import State

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from torchx_cubicml.records.trial import Trial, Workload

PROPOSALS = (3, 5, 10)
_CURVE = (10, 20, 40, 80, 160, 320, 640, 1280, 2560, 5120)
_FEW = 20  # trials predicted, below which a card is a rough guide
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
        regret_of_3: what the best of the first three proposals loses, likewise; and so below.
        regret_of_5: of five.
        regret_of_10: of ten.
        median_error: median of the relative errors of throughput.
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
    regret_of_3: float = math.nan
    regret_of_5: float = math.nan
    regret_of_10: float = math.nan
    median_error: float = math.nan

    def to_json(self) -> dict[str, object]:
        """Return JSON values; what has no meaning is ``None``."""
        return {
            name: None if isinstance(value, float) and math.isnan(value) else value
            for name, value in asdict(self).items()
        }

    def __str__(self) -> str:
        reached = "no workload had two outcomes to choose from"
        if not math.isnan(self.regret):
            more = f", the best of five {1 - self.regret_of_5:.0%}" if not math.isnan(self.regret_of_5) else ""
            reached = f"its first proposal for a workload reaches {1 - self.regret:.0%} of the best known{more}"
        if math.isnan(self.tau):
            asked = f"{self.n_test} measured trials held out"
            return f"{self.predictor}, {self.split}: {asked} are too few or too alike to rank"
        rough = f" Only {self.n_test} were predicted: a rough guide." if self.n_test < _FEW else ""
        return (
            f"{self.predictor}, {self.split}: trained on {self.n_train} measured trials, it ranks {self.n_test} others "
            f"with Kendall's tau {self.tau:.2f} (Pearson {self.pearson:.2f}, Spearman {self.spearman:.2f}), off by "
            f"{self.median_error:.0%} in the median; {reached}; its 80 % interval holds {self.coverage:.0%} of the "
            f"measurements.{rough}"
        )


def evaluate(  # noqa: PLR0913 - an entry of the library: each has a meaning of its own
    trials: Iterable[Trial],
    *,
    split: str = "random",
    predictor: str = DEFAULT_PREDICTOR,
    objective: str = "tokens_per_second",
    max_world_size: int | None = None,
    large: int = 0,
    seed: int = 0,
) -> ReportCard:
    """Return the report card of a predictor on one split of ``trials``.

    Args:
        trials: of any workloads.
        split: ``random`` (four fifths known), ``time`` (the earlier four fifths known), ``scale`` (jobs up to
            ``max_world_size`` known) or ``workload`` (each left out in turn; the card holds means over them).
        predictor: a name in ``PREDICTORS``.
        objective: name of the throughput.
        max_world_size: of ``scale``; by default the world size up to which at least half of the trials run.
        large: of ``scale``: measured jobs beyond it that are known besides.
        seed: of all randomness.

    Raises:
        RecordError: a name is unknown, the split leaves nothing to learn from or nothing to predict, or trials lack
            what it splits by.
    """
    _known(predictor)
    request = SplitRequest(split=split, max_world_size=max_world_size, large=large, seed=seed)
    parted, told = held_out(trials, request)
    cards: list[ReportCard] = []
    refused: list[RecordError] = []
    for train, test in parted:
        try:
            cards.append(grade(train, test, predictor=predictor, objective=objective, split=told, seed=seed))
        except RecordError as error:  # of a workload that was measured in another unit alone, for one
            refused.append(error)
    if not cards:
        raise refused[0]
    left_out = f" ({len(refused)} of them not graded, for want of measurements in {objective})" if refused else ""
    cards = [replace(card, split=f"{told}{left_out}") for card in cards]
    return cards[0] if len(cards) == 1 else _mean_card(cards)


def learning_curve(
    trials: Iterable[Trial],
    *,
    predictor: str = DEFAULT_PREDICTOR,
    objective: str = "tokens_per_second",
    seeds: int = 3,
) -> list[tuple[int, float]]:
    """Return numbers of jobs known and Kendall's tau on one fifth of the others held out, mean over ``seeds``.

    As in the paper's figure 4: how many jobs it takes before the predictor ranks well. The numbers double. Where jobs
    held out are equally fast, or predicted so, tau has no meaning and is left out.

    Args:
        trials: of any workloads.
        predictor: a name in ``PREDICTORS``.
        objective: name of the throughput.
        seeds: random splits to average over, >= 1.

    Raises:
        RecordError: a name is unknown, or fewer than ten measured trials are known.
    """
    _known(predictor)
    trials = list(trials)
    rows: defaultdict[int, list[float]] = defaultdict(list)
    for seed in range(seeds):
        ((train, test),), told = held_out(trials, SplitRequest(seed=seed))
        ran = [trial for trial in train if _reached(trial, objective)]
        lost = [trial for trial in train if not _reached(trial, objective)]
        if len(ran) < _CURVE[0]:
            raise RecordError(f"a learning curve needs {_CURVE[0]} measured trials known; there are {len(ran)}")
        rng = np.random.default_rng(seed)
        ran = [ran[index] for index in rng.permutation(len(ran)).tolist()]
        for count in [*(count for count in _CURVE if count < len(ran)), len(ran)]:
            failed = lost[: round(len(lost) * count / len(ran))]
            card = grade([*ran[:count], *failed], test, predictor=predictor, objective=objective, split=told, seed=seed)
            rows[count].append(card.tau)
    known = {count: [tau for tau in taus if not math.isnan(tau)] for count, taus in sorted(rows.items())}
    return [(count, float(np.mean(taus))) for count, taus in known.items() if taus]


def _known(predictor: str) -> None:
    if predictor not in PREDICTORS:
        raise RecordError(f"unknown predictor {predictor!r}; legal are {', '.join(PREDICTORS)}")


def _mean_card(cards: Sequence[ReportCard]) -> ReportCard:
    """Return means of what has a meaning, known trials rounded, and all that were predicted together."""

    def mean(name: str) -> float:
        values = np.array([getattr(card, name) for card in cards], dtype=np.float64)
        return float(np.nanmean(values)) if np.isfinite(values).any() else math.nan

    return ReportCard(
        predictor=cards[0].predictor,
        split=cards[0].split,
        tau=mean("tau"),
        pearson=mean("pearson"),
        spearman=mean("spearman"),
        regret=mean("regret"),
        coverage=mean("coverage"),
        n_train=round(mean("n_train")),
        n_test=sum(card.n_test for card in cards),
        regret_of_3=mean("regret_of_3"),
        regret_of_5=mean("regret_of_5"),
        regret_of_10=mean("regret_of_10"),
        median_error=mean("median_error"),
    )


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
    fits = CrossWorkloadFeasibility(compare=_compared(train)).fit(history, rng=rng).probability(features, rows)
    doubts = np.array([trial.measurement.uncertainty if trial.measurement else 0.0 for trial, _ in outcomes])
    measuring = replace(prediction, spread=np.hypot(prediction.spread, doubts))  # each with the doubt of its own run
    inside = (measuring.quantile(0.1) <= reached) & (reached <= measuring.quantile(0.9))
    regrets = _regrets([trial.workload for trial, _ in outcomes], prediction.throughput * fits, reached)
    tau, pearson, spearman = _correlations(prediction.throughput[ran], reached[ran])
    return ReportCard(
        predictor=predictor,
        split=split,
        tau=tau,
        pearson=pearson,
        spearman=spearman,
        regret=regrets[1],
        regret_of_3=regrets[3],
        regret_of_5=regrets[5],
        regret_of_10=regrets[10],
        median_error=float(np.median(np.abs(prediction.throughput[ran] / reached[ran] - 1.0))),
        coverage=float(inside[ran].mean()),
        n_train=n_train,
        n_test=int(ran.sum()),
    )


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


def _regrets(
    workloads: Sequence[Workload], score: NDArray[np.float64], reached: NDArray[np.float64]
) -> dict[int, float]:
    """Return what the best of the first k proposals loses against the best known, mean over workloads."""
    groups: defaultdict[object, list[int]] = defaultdict(list)
    for index, workload in enumerate(workloads):
        groups[tuple(sorted(workload.items()))].append(index)
    losses: defaultdict[int, list[float]] = defaultdict(list)
    for members in groups.values():
        best = reached[members].max()
        tried = reached[members][np.argsort(-score[members], kind="stable")]
        for k in (1, *PROPOSALS) if len(members) > 1 and best > 0.0 else ():
            losses[k].append(1.0 - tried[:k].max() / best)
    return {k: float(np.mean(losses[k])) if losses[k] else math.nan for k in (1, *PROPOSALS)}
