"""How sure the winner is, which rivals to measure again before it is named, and what another round may still bring."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from torchx_cubicml.advisor.batch import DEFAULT_METHOD, designed, searched
from torchx_cubicml.advisor.explain import build_suggestions
from torchx_cubicml.advisor.posterior import as_recorded, ranked
from torchx_cubicml.predictors.threads import one_thread
from torchx_cubicml.searchers.base import identity

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchx_cubicml.advisor.batch import ProposalMethod
    from torchx_cubicml.advisor.posterior import Posterior
    from torchx_cubicml.advisor.study import Study
    from torchx_cubicml.records.suggestion import Suggestion
    from torchx_cubicml.records.trial import Config

_AS_GOOD = 1.01  # a rival faster by less is no loss
_RIVAL = 0.1  # probability to be faster than the winner from which a config is a rival
_MOST_RIVALS = 3
_COMPARED = 40  # measured configs of each kind, the fastest by belief
_DRAWS = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Confidence:
    """What is to be said of the measured configs.

    Args:
        winner: what was asked about, or the one of highest posterior mean, never of highest measurement.
        confidence: probability that none of the others is faster by more than a per cent, 0..1.
        faster: probability that it is faster than the user's own config at all; ``None`` where that is not known.
        rivals: others that may well be faster, the likeliest first: to be measured again before a claim is made.
    """

    winner: Suggestion
    confidence: float
    faster: float | None
    rivals: tuple[Suggestion, ...]


def verdict(study: Study, *, winner: Config | None = None) -> Confidence | None:
    """Return how the measured configs of a workload compare; ``None`` where none was measured.

    Args:
        study: what was learned.
        winner: what they are compared with, measured or predicted; the one of highest posterior mean where none is
            given.
    """
    posterior, rng = study.posterior, deepcopy(study.rng)
    with one_thread():
        compared = _compared(posterior, study.current, winner)
        if not compared:
            return None
        draws = posterior.sample(compared, count=_DRAWS, rng=rng)
        ahead = draws[:, 1:] - draws[:, :1]  # of the winner
        chances = (ahead > 0.0).mean(axis=0)
        order = [place for place in np.argsort(-chances, kind="stable").tolist() if chances[place] >= _RIVAL]
        keys = [identity(config) for config in compared]
        own = keys.index(identity(study.current)) if identity(study.current) in keys else -1
        rivals = [compared[place + 1] for place in order[:_MOST_RIVALS]]
        told = build_suggestions(
            posterior, [(compared[0], "highest posterior mean"), *((each, "rival") for each in rivals)], study.current
        )
        return Confidence(
            winner=told[0],
            confidence=float((ahead <= np.log(_AS_GOOD)).all(axis=1).mean()),
            faster=float((draws[:, 0] > draws[:, own]).mean()) if own >= 0 else None,
            rivals=tuple(told[1:]),
        )


def expected_gain(study: Study, *, count: int = 1, method: ProposalMethod = DEFAULT_METHOD) -> float | None:
    """Return by which share another round is expected to raise the best throughput known: 0.01 is a per cent.

    A tune stops where that falls under a threshold of its user. The round is what ``suggest`` would launch; it counts
    what each of its configs gains if it fits, and what the best of them then is.

    Args:
        study: what was learned.
        count: launches of the round, >= 1.
        method: how they are chosen.

    Returns:
        The share; 0.0 where nothing is left to launch. ``None`` where nothing was measured yet, or designed launches
        are left: they are made to learn what cannot be predicted yet.
    """
    posterior, rng = study.posterior, deepcopy(study.rng)
    with one_thread():
        best = ranked(posterior).trusted[:1]
        if not best or next(designed(posterior, study.current), None) is not None:
            return None
        round_ = searched(posterior, [], method, count=count, rng=rng)
        return _raised(posterior, best[0], round_, rng) if round_ else 0.0


def _raised(posterior: Posterior, best: Config, launches: Sequence[Config], rng: np.random.Generator) -> float:
    draws = posterior.sample([best, *launches], count=_DRAWS, rng=rng)
    fit = rng.random((_DRAWS, len(launches))) < posterior.forecast(launches).fits
    ahead = np.where(fit, draws[:, 1:] - draws[:, :1], 0.0).max(axis=1)
    return float(np.expm1(np.maximum(ahead, 0.0)).mean())


def _compared(posterior: Posterior, current: Config, winner: Config | None) -> list[Config]:
    """Return the winner, then the fastest that were measured, those whose speed is doubted, and the user's own."""
    measured = ranked(posterior)
    if not measured.trusted:
        return []
    first = measured.trusted[0] if winner is None else as_recorded(posterior, winner)
    own = [each for each in (*measured.trusted, *measured.doubted) if identity(each) == identity(current)]
    others = [*measured.trusted[:_COMPARED], *measured.doubted[:_COMPARED], *own]
    return list({identity(config): config for config in [first, *others]}.values())
