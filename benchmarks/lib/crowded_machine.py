"""Simulated machine that other jobs crowd in spells: launches of one spell are slowed down about alike."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

    from torchx_cubicml.records.trial import Trial

_BUSY, _LENGTH = 0.75, 4  # share of crowded spells, and mean launches of a spell
_MOST = math.log(3.0)  # log slowdown of a spell, drawn uniformly up to it
_TAKEN = 0.5, 1.0  # what a launch loses, of what the processors that others keep busy could cost it
_WITHIN = 0.15  # log standard deviation of the slowdown between launches of a spell
_PROCESSORS = 16


@dataclass(slots=True, kw_only=True)
class CrowdedMachine:
    """Machine that launches use one after the other.

    Args:
        rng: draws the spells.
        left: launches until the spell ends.
        slowdown: of the spell, as a logarithm.
        share: of the processors that others keep busy.
    """

    rng: np.random.Generator
    left: int = 0
    slowdown: float = 0.0
    share: float = 0.0

    def slowed(self, trial: Trial) -> Trial:
        """Return the next launch, with the throughput that this machine leaves it and what it observes of others."""
        if not self.left:
            self.left = int(self.rng.geometric(1.0 / _LENGTH))
            self.slowdown = self.rng.uniform(0.0, _MOST) if self.rng.random() < _BUSY else 0.0
            self.share = -math.expm1(-self.slowdown / self.rng.uniform(*_TAKEN))
        self.left -= 1
        measured = trial.measurement
        factor = math.exp(-self.slowdown * math.exp(self.rng.normal(0.0, _WITHIN)))
        return replace(
            trial,
            measurement=replace(measured, tokens_per_second=measured.tokens_per_second * factor),
            observed={"host_cpus": _PROCESSORS, "other_busy_cpus": _PROCESSORS * self.share, "idle_cpus": 0.0},
        )
