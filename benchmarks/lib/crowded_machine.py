"""Simulated machine that other jobs crowd in spells, and whose own level drifts."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

    from torchx_cubicml.records.trial import Trial

_BUSY, _LENGTH = 0.75, 4  # share of crowded spells, and mean launches of a spell
_MOST = math.log(3.0)  # log slowdown of a spell, drawn uniformly up to it
_TAKEN = 0.5, 1.0  # what a launch loses, of what the processors that others keep busy could cost it
_WITHIN = 0.15  # log standard deviation of the slowdown between launches of a spell
_PROCESSORS = 16
_DRIFT = 0.04  # log standard deviation of a step of the level from launch to launch
_PACE_S, _BREAK_S, _BREAKS = 600.0, 40_000.0, 0.1  # usual time between launches, a long one, and its probability
MACHINES = {
    "quiet": (0.0, 0.0),
    "crowded in spells": (_BUSY, 0.0),
    "crowded always": (1.0, 0.0),
    "drifting": (0.0, _DRIFT),
}
"""Kind of machine -> share of its spells that are crowded, and drift of its level."""


@dataclass(slots=True, kw_only=True)
class CrowdedMachine:
    """Machine that launches use one after the other.

    Args:
        rng: draws the spells.
        busy: share of spells that are crowded.
        drift: log standard deviation of a step of the level.
        left: launches until the spell ends.
        slowdown: of the spell, as a logarithm.
        share: of the processors that others keep busy.
        level: of the machine, as a logarithm.
        time: of the next launch.
    """

    rng: np.random.Generator
    busy: float = _BUSY
    drift: float = 0.0
    left: int = 0
    slowdown: float = 0.0
    share: float = 0.0
    level: float = 0.0
    time: datetime = field(default_factory=lambda: datetime(2026, 1, 1, tzinfo=UTC))

    def slowed(self, trial: Trial) -> Trial:
        """Return the next launch, with the throughput that this machine leaves it and what it observes of others."""
        if not self.left:
            self.left = int(self.rng.geometric(1.0 / _LENGTH))
            self.slowdown = self.rng.uniform(0.0, _MOST) if self.rng.random() < self.busy else 0.0
            self.share = -math.expm1(-self.slowdown / self.rng.uniform(*_TAKEN))
        self.left -= 1
        measured = trial.measurement
        factor = math.exp(self.level - self.slowdown * math.exp(self.rng.normal(0.0, _WITHIN)))
        self.level += self.rng.normal(0.0, self.drift)
        begin, between_s = self.time, self.rng.exponential(_BREAK_S if self.rng.random() < _BREAKS else _PACE_S)
        self.time += timedelta(seconds=60.0 + between_s)
        return replace(
            trial,
            measurement=replace(measured, tokens_per_second=measured.tokens_per_second * factor),
            started_at=begin.isoformat(),
            ended_at=(begin + timedelta(seconds=60.0)).isoformat(),
            observed={"host_cpus": _PROCESSORS, "other_busy_cpus": _PROCESSORS * self.share, "idle_cpus": 0.0},
        )
