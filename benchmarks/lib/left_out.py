"""Priors without some of their sources, and the width that an interval needs to hold on each source left out.

Each source is predicted by the prior of all others. Two numbers of the width are learned from the errors:

- The factor on deviations is the largest that any source needs for 80 % intervals to hold its trainings, and at least
  1: that all known ones are alike is no reason to be surer than the variance between constants is. It is conformal
  over sources (Dunn, Wasserman, Ramdas, arXiv 1809.07441, treat such groups). If a new source is exchangeable with the
  ``n`` known ones, its own 80 % intervals hold with a probability of about ``n / (n + 1)``.
- The wait per micro batch across nodes is the longest of ``WAITS`` that makes intervals at most 5 % wider than the best
  of them does, in the mean over the sources. Where the sources do not tell it, this is the cautious end.

That there is a wait, and these rules for it, were chosen with all sources in view. Their numbers were not: the prior
without a source has never seen it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from lib.random_effects import ROUNDS, Z, learned_prior, rounded
from torchx_cubicml.predictors.intervals import conformal_scale
from torchx_cubicml.predictors.roofline.public_prior import PublicPrior

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from lib.public_sources import Source

WAITS = (0.0, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64)  # seconds
WIDER = 1.05  # than with the best of them: no reason to prefer that one


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Errors:
    """Errors on a source of a prior that was learned without it.

    Args:
        sizes: of the errors of log seconds, ``[n]``.
        deviation: predicted for them without any wait, ``[n]``.
        waiting: deviation by each of ``WAITS``, ``[n_waits, n]``.
    """

    sizes: NDArray[np.float64]
    deviation: NDArray[np.float64]
    waiting: NDArray[np.float64]


@dataclass(slots=True, kw_only=True)
class LeftOut:
    """Priors learned without some of the sources; each is learned once.

    Args:
        sources: all of them, three or more.
        rounds: of EM.
    """

    sources: Sequence[Source]
    rounds: int = ROUNDS
    _learned: dict[frozenset[str], dict[str, object]] = field(default_factory=dict)

    def table(self, *without: str) -> dict[str, object]:
        """Return the JSON of the prior without some sources."""
        table, (wait, factor) = self._constants(*without), self._width(*without)
        return {**table, "numbers": {**_numbers(table), "widening": rounded(factor), "wait_s": wait}}

    def held(self) -> dict[str, float]:
        """Return name of a source -> share of its trainings in their intervals, by the prior without it."""
        shares = {}
        for source in self.sources:
            predicted = PublicPrior.of(self.table(source.name)).tokens_per_second(source.rows)
            inside = np.isfinite(predicted.logarithm)
            measured = np.log(source.layout.tokens_per_step) - source.log_seconds
            if inside.any():
                held = np.abs(measured - predicted.logarithm)[inside] <= Z * predicted.spread[inside]
                shares[source.name] = rounded(float(np.mean(held)))
        return shares

    def _width(self, *without: str) -> tuple[float, float]:
        """Return the seconds of the wait and the factor on deviations for the prior without some sources."""
        names = [source.name for source in self.sources if source.name not in without]
        errors = [each for name in names if len((each := self._errors(name, *without)).sizes)]
        found = []
        for index in range(len(WAITS)):
            deviations = [np.hypot(each.deviation, each.waiting[index]) for each in errors]
            pairs = zip(errors, deviations, strict=True)
            factor = max(1.0, *(conformal_scale(each.sizes, deviation, fewest=1) for each, deviation in pairs))
            found.append((factor * float(np.mean([np.median(each) for each in deviations])), factor))
        widest = WIDER * min(width for width, _ in found)
        longest = max(index for index, (width, _) in enumerate(found) if width <= widest)
        return WAITS[longest], found[longest][1]

    def _errors(self, name: str, *without: str) -> Errors:
        """Return the errors on a source of the prior without it, too, wherever the prior without some covers it."""
        (source,) = (each for each in self.sources if each.name == name)
        layout = source.layout
        covering = PublicPrior.of(self._constants(*without))
        within_node = layout.tp <= layout.per_node
        inside = covering.covers(source.facts, layout) & within_node
        layout, prior = layout.rows(inside), PublicPrior.of(self._constants(name, *without))
        seconds, deviation = prior.log_seconds(layout)
        return Errors(
            sizes=np.abs(source.log_seconds[inside] - seconds),
            deviation=deviation,
            waiting=np.array([replace(prior, wait_s=wait).waiting(layout) for wait in WAITS]),
        )

    def _constants(self, *without: str) -> dict[str, object]:
        key = frozenset(without)
        if key not in self._learned:
            known = [source for source in self.sources if source.name not in key]
            self._learned[key] = learned_prior(known, rounds=self.rounds)
        return self._learned[key]


def _numbers(table: dict[str, object]) -> dict[str, object]:
    numbers = table["numbers"]
    return numbers if isinstance(numbers, dict) else {}
