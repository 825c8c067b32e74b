"""Which of the measured configs is the best known: the one definition that every question goes by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from torchx_cubicml.advisor.records import with_choices

if TYPE_CHECKING:
    from torchx_cubicml.advisor.outlook import Outlook
    from torchx_cubicml.records.trial import Config


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """The configs that were measured, each list from the highest posterior mean down.

    Args:
        trusted: the winner and those after it.
        doubted: held up by something else each time they were measured; empty where nothing is trusted.
    """

    trusted: tuple[Config, ...]
    doubted: tuple[Config, ...]


def ranked(outlook: Outlook) -> Ranked:
    """Return the measured configs of a workload in order."""
    measured = outlook.measured()
    if not measured:
        return Ranked(trusted=(), doubted=())
    beliefs = [belief.throughput if belief else 0.0 for belief in outlook.beliefs(measured)]
    order = np.argsort(-np.array(beliefs), kind="stable").tolist()
    doubts = outlook.doubts(measured).tolist()
    trusted = tuple(measured[place] for place in order if not doubts[place])
    doubted = tuple(measured[place] for place in order if doubts[place])
    return Ranked(trusted=trusted, doubted=doubted) if trusted else Ranked(trusted=doubted, doubted=())


def as_recorded(outlook: Outlook, config: Config) -> Config:
    """Return ``config`` as the outlook tells it: with the one choice that is left to parameters without effect."""
    left = {item.name: item.choices[0] for item in outlook.space.parameters if item.name in outlook.ineffective}
    return with_choices(config, left)
