"""Confidence in the winner, the rivals to measure again before a claim, and the expected gain of another round."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from torchx_cubicml.advisor.batch import DEFAULT_METHOD, designed, searched
from torchx_cubicml.advisor.posterior import ranked, with_pinned_choices
from torchx_cubicml.advisor.suggestion_reasons import build_suggestions
from torchx_cubicml.predictors.threads import one_thread
from torchx_cubicml.searchers.base import identity

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchx_cubicml.advisor.batch import ProposalMethod
    from torchx_cubicml.advisor.posterior import Posterior
    from torchx_cubicml.advisor.study import Study
    from torchx_cubicml.records.suggestion import Suggestion
    from torchx_cubicml.records.values import Config

_TIE_RATIO = 1.01  # a rival faster by less counts as a tie
_RIVAL_PROBABILITY = 0.1  # least probability to be faster than the winner that makes a config a rival
_MAX_RIVALS = 3
_MAX_COMPARED = 40  # trusted configs, and outliers, compared: those of highest posterior mean
_DRAWS = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Confidence:
    """Posterior comparison of the measured configs.

    Args:
        winner: the config compared with, by default that of highest posterior mean (not of highest measurement).
        confidence: probability that none of the others is faster by more than a per cent, 0..1.
        faster: probability that it is faster than the user's own config at all; ``None`` where that is not known.
        rivals: others that may well be faster, the likeliest first; to be measured again before a claim.
    """

    winner: Suggestion
    confidence: float
    faster: float | None
    rivals: tuple[Suggestion, ...]


def verdict(study: Study, *, winner: Config | None = None) -> Confidence | None:
    """Return the confidence in the winner among a workload's measured configs; ``None`` where none was measured.

    Args:
        study: fitted to the trials.
        winner: config that the others are compared with, measured or predicted; by default the measured config of
            highest posterior mean.
    """
    posterior, rng = study.posterior, deepcopy(study.rng)
    with one_thread():
        compared = _compared_configs(posterior, study.current, winner)
        if not compared:
            return None
        draws = posterior.sample(compared, count=_DRAWS, rng=rng)
        ahead = draws[:, 1:] - draws[:, :1]  # of the winner
        probabilities = (ahead > 0.0).mean(axis=0)
        order = [
            index
            for index in np.argsort(-probabilities, kind="stable").tolist()
            if probabilities[index] >= _RIVAL_PROBABILITY
        ]
        own = [index for index, config in enumerate(compared) if identity(config) == identity(study.current)]
        rivals = [compared[index + 1] for index in order[:_MAX_RIVALS]]
        suggestions = build_suggestions(
            posterior, [(compared[0], "highest posterior mean"), *((each, "rival") for each in rivals)], study.current
        )
        return Confidence(
            winner=suggestions[0],
            confidence=float((ahead <= np.log(_TIE_RATIO)).all(axis=1).mean()),
            faster=float((draws[:, 0] > draws[:, own[0]]).mean()) if own else None,
            rivals=tuple(suggestions[1:]),
        )


def expected_gain(study: Study, *, count: int = 1, method: ProposalMethod = DEFAULT_METHOD) -> float | None:
    """Return the relative gain in the best known throughput expected of another round: 0.01 is a per cent.

    A tune stops where this falls below a threshold of its user. The round consists of the configs that ``suggest``
    would launch. The gain is the expected improvement of the fastest of them; a config that does not fit gains nothing.

    Args:
        study: fitted to the trials.
        count: launches of the round, >= 1.
        method: acquisition and searcher that choose them.

    Returns:
        The relative gain; 0.0 where no config is left to launch. ``None`` where no config is measured yet, or launches
        of the initial design are left: they are made to learn what cannot be predicted yet.
    """
    posterior, rng = study.posterior, deepcopy(study.rng)
    with one_thread():
        trusted = ranked(posterior).trusted
        if not trusted or next(designed(posterior, study.current), None) is not None:
            return None
        round_ = searched(posterior, [], method, count=count, rng=rng)
        return _mean_gain(posterior, trusted[0], round_, rng) if round_ else 0.0


def _mean_gain(posterior: Posterior, best: Config, launches: Sequence[Config], rng: np.random.Generator) -> float:
    draws = posterior.sample([best, *launches], count=_DRAWS, rng=rng)
    fit = rng.random((_DRAWS, len(launches))) < posterior.forecast(launches).fits
    ahead = np.where(fit, draws[:, 1:] - draws[:, :1], 0.0).max(axis=1)
    return float(np.expm1(np.maximum(ahead, 0.0)).mean())


def _compared_configs(posterior: Posterior, current: Config, winner: Config | None) -> list[Config]:
    """Return the winner, then the fastest measured configs, the fastest outliers, and the user's own config."""
    ranking = ranked(posterior)
    if not ranking.trusted:
        return []
    first = ranking.trusted[0] if winner is None else with_pinned_choices(posterior, winner)
    own = [each for each in (*ranking.trusted, *ranking.doubted) if identity(each) == identity(current)]
    others = [*ranking.trusted[:_MAX_COMPARED], *ranking.doubted[:_MAX_COMPARED], *own]
    return list({identity(config): config for config in [first, *others]}.values())
