"""Hold-out evaluation of a predictor: rank correlation, regret of its proposals, and coverage of its intervals."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from torchx_cubicml.errors import RecordError
from torchx_cubicml.predictors import DEFAULT_PREDICTOR, PREDICTORS, CrossWorkloadFeasibility
from torchx_cubicml.predictors.features.history import TrainingTable, training_row
from torchx_cubicml.predictors.memory.order import MemoryOrder
from torchx_cubicml.predictors.splits import SplitRequest, make_splits
from torchx_cubicml.records.objective_units import RATES
from torchx_cubicml.records.trial import State

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.records.values import Workload

PROPOSALS = (3, 5, 10)
_CURVE = (10, 20, 40, 80, 160, 320, 640, 1280, 2560, 5120)
_FEW = 20  # predicted trials, below which a card is a rough guide


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportCard:
    """Scores of a predictor on held-out trials; NaN where a number has no meaning.

    Args:
        predictor: name of the method.
        split: rule that chose the held-out trials, in words.
        tau: Kendall's rank correlation of predicted and measured throughput.
        pearson: linear correlation.
        spearman: rank correlation.
        regret: relative loss of the first proposal against the best known, mean over the held-out workloads: 0 is no
            loss, 1 a proposal that does not run.
        coverage: share of measurements inside their 80 % interval.
        n_train: measured trials known.
        n_test: measured trials predicted.
        regret_of_3: relative loss of the best of the first three proposals, likewise.
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
        """Return JSON values; a number without a meaning is ``None``."""
        return {
            name: None if isinstance(value, float) and math.isnan(value) else value
            for name, value in asdict(self).items()
        }

    def _repr_html_(self) -> str:
        """Return the scores as a table, for a notebook; those without a meaning are left out."""
        from torchx_cubicml.records.notebook import section_html, table_html

        scores = ((name, getattr(self, field), form) for field, (name, form) in _SCORES.items())
        rows = [(name, f"{value:{form}}") for name, value, form in scores if not math.isnan(value)]
        return section_html(f"{self.predictor}, {self.split}", table_html((), rows), _caveat(self))

    def __str__(self) -> str:
        choice = "no workload had two configs to choose from"
        if not math.isnan(self.regret):
            best_of_five = (
                f", the best of its first five {1 - self.regret_of_5:.0%}" if not math.isnan(self.regret_of_5) else ""
            )
            choice = f"its first proposal reaches {1 - self.regret:.0%} of the best known throughput{best_of_five}"
        if math.isnan(self.tau):
            held_out_text = f"cannot rank the {self.n_test} held-out measured trials"
            return f"{self.predictor}, {self.split}: {held_out_text}: too few, or equally fast"
        return (
            f"{self.predictor}, {self.split}: trained on {self.n_train} measured trials, tested on {self.n_test}. "
            f"Kendall's tau {self.tau:.2f} (Pearson {self.pearson:.2f}, Spearman {self.spearman:.2f}); median error "
            f"{self.median_error:.0%}; {choice}; its 80 % interval covers {self.coverage:.0%} of the measurements. "
            f"{_caveat(self)}"
        ).rstrip()


_SCORES = {
    "n_train": ("measured trials to train on", "d"),
    "n_test": ("measured trials predicted", "d"),
    "tau": ("Kendall's tau", ".2f"),
    "spearman": ("Spearman's correlation", ".2f"),
    "pearson": ("Pearson's correlation", ".2f"),
    "median_error": ("median error of throughput", ".0%"),
    "regret": ("regret of the first proposal", ".1%"),
    "regret_of_3": ("regret of the best of three", ".1%"),
    "regret_of_5": ("regret of the best of five", ".1%"),
    "regret_of_10": ("regret of the best of ten", ".1%"),
    "coverage": ("measurements inside the 80 % interval", ".0%"),
}
"""Field of a report card -> its name and its format."""


def _caveat(card: ReportCard) -> str:
    return f"Only {card.n_test} trials were predicted: take this as a rough guide." if card.n_test < _FEW else ""


def evaluate(  # noqa: PLR0913 - public API: each argument has its own meaning
    trials: Iterable[Trial],
    *,
    split: str = "random",
    predictor: str = DEFAULT_PREDICTOR,
    objective: str = "",
    max_world_size: int | None = None,
    large: int = 0,
    seed: int = 0,
) -> ReportCard:
    """Return the report card of a predictor on one hold-out split of ``trials``.

    Args:
        trials: of any workloads.
        split: ``random`` (four fifths known), ``time`` (the earlier four fifths known), ``scale`` (jobs up to
            ``max_world_size`` known) or ``workload`` (each left out in turn; the card holds means over them).
        predictor: a name in ``PREDICTORS``.
        objective: name of the throughput; by default that of most trials.
        max_world_size: for ``scale``; by default the world size up to which at least half of the trials run.
        large: for ``scale``: number of larger measured jobs that are known as well.
        seed: of all randomness.

    Raises:
        RecordError: a name is unknown, the split leaves nothing to fit on or nothing to predict, or trials lack the
            fact that it splits by.
    """
    _check_name(predictor)
    trials = list(trials)
    objective = objective or most_measured_objective(trials)
    request = SplitRequest(split=split, max_world_size=max_world_size, large=large, seed=seed)
    splits, description = make_splits(trials, request)
    cards: list[ReportCard] = []
    errors: list[RecordError] = []
    for train, test in splits:
        try:
            cards.append(grade(train, test, predictor=predictor, objective=objective, split=description, seed=seed))
        except RecordError as error:  # for example, a workload that was measured only in another unit
            errors.append(error)
    if not cards:
        raise errors[0]
    left_out = f" ({len(errors)} skipped: not measured in {objective})" if errors else ""
    cards = [replace(card, split=f"{description}{left_out}") for card in cards]
    return cards[0] if len(cards) == 1 else _mean_card(cards)


def learning_curve(
    trials: Iterable[Trial],
    *,
    predictor: str = DEFAULT_PREDICTOR,
    objective: str = "",
    seeds: int = 3,
) -> list[tuple[int, float]]:
    """Return the learning curve: numbers of known jobs and Kendall's tau on the held-out fifth, mean over ``seeds``.

    As in the paper's figure 4, it shows how many jobs a predictor needs to rank well. The numbers double. Tau has no
    meaning, and is left out, where the held-out jobs are equally fast or are predicted so.

    Args:
        trials: of any workloads.
        predictor: a name in ``PREDICTORS``.
        objective: see ``evaluate``.
        seeds: random splits to average over, >= 1.

    Raises:
        RecordError: a name is unknown, or fewer than ten measured trials are known.
    """
    _check_name(predictor)
    trials = list(trials)
    objective = objective or most_measured_objective(trials)
    taus_by_count: defaultdict[int, list[float]] = defaultdict(list)
    for seed in range(seeds):
        ((train, test),), description = make_splits(trials, SplitRequest(seed=seed))
        measured = [trial for trial in train if _outcome(trial, objective)]
        unmeasured = [trial for trial in train if not _outcome(trial, objective)]
        if len(measured) < _CURVE[0]:
            raise RecordError(f"a learning curve needs {_CURVE[0]} measured trials for training, got {len(measured)}")
        rng = np.random.default_rng(seed)
        measured = [measured[index] for index in rng.permutation(len(measured)).tolist()]
        for count in [*(count for count in _CURVE if count < len(measured)), len(measured)]:
            failures = unmeasured[: round(len(unmeasured) * count / len(measured))]
            card = grade(
                [*measured[:count], *failures],
                test,
                predictor=predictor,
                objective=objective,
                split=description,
                seed=seed,
            )
            taus_by_count[count].append(card.tau)
    curve = {count: [tau for tau in taus if not math.isnan(tau)] for count, taus in sorted(taus_by_count.items())}
    return [(count, float(np.mean(taus))) for count, taus in curve.items() if taus]


def most_measured_objective(trials: Iterable[Trial]) -> str:
    """Return the name of the throughput that most trials have."""
    measured = [trial.measurement for trial in trials if trial.measurement is not None]
    return max(RATES, key=lambda name: sum(item.throughput(name) is not None for item in measured))


def _check_name(predictor: str) -> None:
    if predictor not in PREDICTORS:
        raise RecordError(f"unknown predictor {predictor!r}; choose from {', '.join(PREDICTORS)}")


def _mean_card(cards: Sequence[ReportCard]) -> ReportCard:
    """Return the mean of each finite score; ``n_train`` is a rounded mean, and ``n_test`` is a sum."""

    def mean(name: str) -> float:
        values = np.array([getattr(card, name) for card in cards], dtype=np.float64)
        return float(np.nanmean(values)) if np.isfinite(values).any() else math.nan

    first, *_ = cards
    return ReportCard(
        predictor=first.predictor,
        split=first.split,
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
    """Return the report card of a predictor that is fitted on ``train`` and predicts ``test``.

    Args:
        train: known trials, failures among them.
        test: trials to predict, likewise.
        predictor: a name in ``PREDICTORS``.
        objective: name of the throughput.
        split: the split in words.
        seed: of all randomness.

    Raises:
        RecordError: nothing was measured in ``train`` or in ``test``.
    """
    history = TrainingTable.from_trials(train, objective=objective)
    outcomes_or_none = [(trial, _outcome(trial, objective)) for trial in test]
    outcomes = [(trial, value) for trial, value in outcomes_or_none if value is not None]
    throughput = np.array([value for _, value in outcomes], dtype=np.float64)
    n_train, ran = int(np.isfinite(history.throughput).sum()), throughput > 0.0
    if not n_train or not ran.any():
        raise RecordError(
            f"{split}: {n_train} measured trials to train on and {int(ran.sum())} to predict; both must be >= 1"
        )
    rng = np.random.default_rng(seed)
    rows = [training_row(trial) for trial, _ in outcomes]
    features = history.columns.encode(rows)
    prediction = PREDICTORS[predictor]().fit(history, rng=rng).predict(features)
    order = MemoryOrder.of_names(sorted({name for trial in train for name in (*trial.workload, *trial.config)}))
    feasibility = CrossWorkloadFeasibility(order=order).fit(history, rng=rng).probability(features, rows)
    uncertainty = np.array([trial.measurement.uncertainty if trial.measurement else 0.0 for trial, _ in outcomes])
    # Each prediction gets the uncertainty of its own run.
    with_noise = replace(prediction, spread=np.hypot(prediction.spread, uncertainty))
    covered = (with_noise.quantile(0.1) <= throughput) & (throughput <= with_noise.quantile(0.9))
    regrets = _regrets([trial.workload for trial, _ in outcomes], prediction.throughput * feasibility, throughput)
    tau, pearson, spearman = correlations(prediction.throughput[ran], throughput[ran])
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
        median_error=float(np.median(np.abs(prediction.throughput[ran] / throughput[ran] - 1.0))),
        coverage=float(covered[ran].mean()),
        n_train=n_train,
        n_test=int(ran.sum()),
    )


def _outcome(trial: Trial, objective: str) -> float | None:
    """Return the throughput, 0.0 for a trial that did not run, and ``None`` where it is unknown."""
    value = trial.throughput(objective)
    if trial.state is State.OUT_OF_MEMORY:
        return 0.0
    if value is None and trial.state not in {State.COMPLETED, State.STOPPED_EARLY}:
        return 0.0
    return value


def correlations(predicted: NDArray[np.float64], measured: NDArray[np.float64]) -> tuple[float, float, float]:
    """Return Kendall's tau, Pearson's and Spearman's correlation of two arrays ``[n]``; NaN where one is constant."""
    if len(np.unique(predicted)) < 2 or len(np.unique(measured)) < 2:
        return math.nan, math.nan, math.nan
    from scipy.stats import kendalltau, pearsonr, spearmanr

    tau, pearson, spearman = (float(rank(predicted, measured)[0]) for rank in (kendalltau, pearsonr, spearmanr))
    return tau, pearson, spearman


def _regrets(
    workloads: Sequence[Workload], score: NDArray[np.float64], throughput: NDArray[np.float64]
) -> dict[int, float]:
    """Return k -> regret: relative loss of the best of the first k proposals, mean over workloads."""
    groups: defaultdict[object, list[int]] = defaultdict(list)
    for index, workload in enumerate(workloads):
        groups[tuple(sorted(workload.items()))].append(index)
    losses: defaultdict[int, list[float]] = defaultdict(list)
    for members in groups.values():
        best = throughput[members].max()
        best_first = throughput[members][np.argsort(-score[members], kind="stable")]
        for k in (1, *PROPOSALS) if len(members) > 1 and best > 0.0 else ():
            losses[k].append(1.0 - best_first[:k].max() / best)
    return {k: float(np.mean(losses[k])) if losses[k] else math.nan for k in (1, *PROPOSALS)}
