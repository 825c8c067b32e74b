"""Gains that an ordinary launch may claim: the posterior of the ratio to the user's own config, with three doubts.

- Two configs measured once differ by the noise from run to run, however sure the surrogate is of its kernel.
- The own config's only launch may have been slowed down by its node. The posterior is a mixture over that slowdown
  (a contaminated normal): what the other launches predict of the own config says how likely it is.
- What is claimed is the best of many. A joint posterior shrinks it; where the noise is known poorly, the floor of the
  spread stands for it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from torchx_cubicml.advisor.surrogates.base import JointSurrogate
from torchx_cubicml.predictors.measurement_error import Gain
from torchx_cubicml.searchers.base import identity

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from torchx_cubicml.advisor.posterior import Posterior
    from torchx_cubicml.records.values import Config

_SLOWED = 0.07  # prior probability that a launch was slowed down by something else than its config
_SLOWDOWNS = np.linspace(0.05, 0.7, 14)  # log slowdowns of such a launch: by 5 to 50 per cent
_EDGE = 3.0  # factor on the variance of what others predict of the own config
_REACH = 4.0  # standard deviations below which a config is slower by any measurements, which saves their time
_EXACT = 1e-9  # spread of a ratio that is known


def claims_of(posterior: Posterior, configs: Sequence[Config], current: Config) -> list[Gain | None]:
    """Return the claim of each config over the user's own; ``None`` where either is unknown."""
    gains = posterior.gains(configs, current)
    own = posterior.outcomes.get(identity(current))
    n_own = len(own.measured) if own is not None else 0
    slowed = _if_slowed(posterior, current, own.measured[0]) if own is not None and n_own == 1 else None
    weights, shifts = (np.ones(1), np.zeros(1)) if slowed is None else slowed
    found: list[Gain | None] = []
    for config, mean, spread in zip(configs, gains.logarithm.tolist(), gains.spread.tolist(), strict=True):
        record = posterior.outcomes.get(identity(config))
        counts = [count for count in (n_own, len(record.measured) if record is not None else 0) if count]
        floor = posterior.noise * math.sqrt(sum(1.0 / count for count in counts))
        is_own = identity(config) == identity(current)
        doubt = _EXACT if is_own else max(spread, floor, _EXACT)
        if not mean + _REACH * doubt < 0.0 and (measured := posterior.measured_gain(config, current)) is not None:
            found.append(measured)
            continue
        claim = Gain(weights, mean - (0.0 * shifts if is_own else shifts), np.full(len(weights), doubt))
        found.append(None if math.isnan(mean) else claim)
    return found


def _if_slowed(
    posterior: Posterior, current: Config, measured: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    """Return probabilities of the slowdowns of the own config's only launch, none first, and what each adds to it.

    ``None`` where the surrogate cannot leave the measurement out, or has done so, as it is an outlier.
    """
    if not isinstance(posterior.surrogate, JointSurrogate) or posterior.outliers([current])[0]:
        return None
    others = posterior.without(current)
    mean, variance = float(others.logarithm[0]), float(others.spread[0] ** 2)
    noise = posterior.noise**2
    slowdowns = np.concatenate([np.zeros(1), _SLOWDOWNS])
    prior = np.concatenate([[1.0 - _SLOWED], np.full(len(_SLOWDOWNS), _SLOWED / len(_SLOWDOWNS))])
    off = math.log(measured) + slowdowns - mean
    # An own config often lies at the edge of what was measured, where the surrogate is less sure than it says.
    log_weights = np.log(prior) - 0.5 * off**2 / (_EDGE * variance + noise)
    weights = np.exp(log_weights - log_weights.max())
    # The measurement moves the own config's mean in proportion to what the others leave open.
    return weights / weights.sum(), slowdowns * variance / (variance + noise)
