"""How sure the winner is, which rivals to measure again before it is named, and what another round may still bring."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from torchx_cubicml.advisor.batch import DEFAULT_METHOD, searched
from torchx_cubicml.advisor.outlook import Outlook
from torchx_cubicml.advisor.promise import promised
from torchx_cubicml.predictors.threads import one_thread
from torchx_cubicml.searchers.base import identity

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torchx_cubicml.space import SearchSpace
    from torchx_cubicml.suggestion import Suggestion
    from torchx_cubicml.trial import Config, Trial, Workload

_AS_GOOD = 1.01  # a rival faster by less is no loss
_RIVAL = 0.1  # probability to be faster than the winner from which a config is a rival
_MOST_RIVALS = 3
_COMPARED = 40  # measured configs, the fastest by belief
_DRAWS = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What is to be said of the measured configs.

    Args:
        winner: the one of highest posterior mean, never of highest measurement.
        confidence: probability that none of the others is faster by more than a per cent, 0..1.
        faster: probability that it is faster than the user's own config at all; ``None`` where that is not known.
        rivals: others that may well be faster, the likeliest first: to be measured again before a claim is made.
    """

    winner: Suggestion
    confidence: float
    faster: float | None
    rivals: tuple[Suggestion, ...]


def verdict(
    space: SearchSpace,
    *,
    workload: Workload,
    current: Config,
    trials: Iterable[Trial],
    seed: int = 0,
    predictor: str = "",
) -> Verdict | None:
    """Return how the measured configs of a workload compare; ``None`` where none was measured.

    Args:
        space: bound or not.
        workload: facts, with ``world_size``.
        current: the user's own config.
        trials: of any workload, in any order.
        seed: of all randomness.
        predictor: name of the method that learns from all workloads; empty for the default.

    Raises:
        SpaceError: the space cannot be bound to the workload.
    """
    rng = np.random.default_rng(seed)
    bound = space.bind(workload=workload, current=current)
    with one_thread():
        outlook = Outlook.of(bound, workload=workload, current=current, trials=trials, rng=rng, predictor=predictor)
        ranked = _ranked(outlook)
        if not ranked:
            return None
        draws = outlook.draws(ranked, count=_DRAWS, rng=rng)
        ahead = draws[:, 1:] - draws[:, :1]  # of the winner
        chances = (ahead > 0.0).mean(axis=0)
        order = [place for place in np.argsort(-chances, kind="stable").tolist() if chances[place] >= _RIVAL]
        keys = [identity(config) for config in ranked]
        own = keys.index(identity(current)) if identity(current) in keys else -1
        rivals = [ranked[place + 1] for place in order[:_MOST_RIVALS]]
        told = promised(
            outlook, [(ranked[0], "highest posterior mean"), *((each, "rival") for each in rivals)], current
        )
        return Verdict(
            winner=told[0],
            confidence=float((ahead <= np.log(_AS_GOOD)).all(axis=1).mean()),
            faster=float((draws[:, 0] > draws[:, own]).mean()) if own >= 0 else None,
            rivals=tuple(told[1:]),
        )


def expected_gain(  # noqa: PLR0913 - those of `suggest`
    space: SearchSpace,
    *,
    workload: Workload,
    current: Config,
    trials: Iterable[Trial],
    count: int = 1,
    seed: int = 0,
    predictor: str = "",
) -> float | None:
    """Return by which share another round is expected to raise the best throughput known: 0.01 is a per cent.

    A tune stops where that falls under a threshold of its user. The round is what ``suggest`` would launch; it counts
    what each of its configs gains if it fits, and what the best of them then is.

    Args:
        space: bound or not.
        workload: facts, with ``world_size``.
        current: the user's own config.
        trials: of any workload, in any order; running and planned ones count as under way.
        count: launches of the round, >= 1.
        seed: of all randomness.
        predictor: name of the method that learns from all workloads; empty for the default.

    Returns:
        The share; 0.0 where nothing is left to launch, ``None`` where nothing was measured yet.

    Raises:
        SpaceError: the space cannot be bound to the workload.
    """
    rng = np.random.default_rng(seed)
    bound = space.bind(workload=workload, current=current)
    with one_thread():
        outlook = Outlook.of(bound, workload=workload, current=current, trials=trials, rng=rng, predictor=predictor)
        ranked = _ranked(outlook)
        if not ranked:
            return None
        round_ = searched(outlook, [], DEFAULT_METHOD, count=count, rng=rng)
        return _raised(outlook, ranked[0], round_, rng) if round_ else 0.0


def _raised(outlook: Outlook, best: Config, launches: Sequence[Config], rng: np.random.Generator) -> float:
    draws = outlook.draws([best, *launches], count=_DRAWS, rng=rng)
    fit = rng.random((_DRAWS, len(launches))) < outlook.forecast(launches).fits
    ahead = np.where(fit, draws[:, 1:] - draws[:, :1], 0.0).max(axis=1)
    return float(np.expm1(np.maximum(ahead, 0.0)).mean())


def _ranked(outlook: Outlook) -> list[Config]:
    """Return the measured configs by what is believed of them, the fastest first; those whose speed is doubted last."""
    measured = outlook.measured()
    beliefs = [belief.throughput if belief else 0.0 for belief in outlook.beliefs(measured)] if measured else []
    order = np.argsort(-np.array(beliefs), kind="stable")[:_COMPARED]
    ranked = [measured[place] for place in order.tolist()]
    doubted = outlook.doubts(ranked).tolist() if ranked else []
    return [config for _, config in sorted(zip(doubted, ranked, strict=True), key=lambda each: each[0])]
