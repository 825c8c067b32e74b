"""Surrogates and posteriors of one parameter, ``place``, whose predictions a test chooses by hand."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Self

import numpy as np

from torchx_cubicml.advisor import Study
from torchx_cubicml.predictors import Prediction
from torchx_cubicml.records.trial import State, Trial
from torchx_cubicml.space import Parameter, SearchSpace

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from torchx_cubicml.records.values import Config

WORKLOAD = {"program": "train.py", "world_size": 2}


def of(*places: int) -> list[Config]:
    return [{"place": place} for place in places]


def places_of(configs: Sequence[Config]) -> list[int]:
    return [config["place"] for config in configs]


@dataclass(frozen=True, kw_only=True)
class Trees:
    """Surrogate across workloads; it remembers what it was asked for."""

    speeds: Callable[[int], float] = float
    spread: float = 0.1
    fits: Callable[[int], float] = lambda place: 1.0
    slowed: frozenset[int] = frozenset()
    members: tuple[Trees, ...] = ()
    log: list[object] = field(default_factory=list)

    def forecast(self, rows: Sequence[Mapping[str, object]]) -> Prediction:
        logarithm = np.log([self.speeds(row["place"]) for row in rows])
        fits = np.array([self.fits(row["place"]) for row in rows])
        return Prediction(logarithm=logarithm, spread=np.full(len(rows), self.spread), fits=fits)

    def outliers(self, rows: Sequence[Mapping[str, object]]) -> NDArray[np.bool_]:
        return np.array([row.get("place") in self.slowed for row in rows], dtype=np.bool_)

    def ensemble(self, *, one: bool) -> list[Trees]:
        self.log.append("one" if one else "all")
        return [self, *self.members]

    def fantasize(self, rows: Sequence[Mapping[str, object]]) -> Self:
        self.log.append([row["place"] for row in rows])
        return self

    def optimistic(self) -> Self:
        self.log.append("optimistic")
        return self

    def sample_function(self, rows: Sequence[Mapping[str, object]], *, rng: np.random.Generator) -> Trees:
        """Return a function that falls where the mean rises."""
        rng.random()
        self.log.append([row["place"] for row in rows])
        return Trees(speeds=lambda place: 1000.0 - self.speeds(place))


@dataclass(frozen=True, kw_only=True)
class Process(Trees):
    """Surrogate with a joint posterior.

    A joint sample has one row for each number of ``range(count)``: ``draws`` of a place, the logarithms by number.
    """

    draws: Callable[[int, NDArray[np.intp]], NDArray[np.float64]] = lambda place, numbers: np.zeros(len(numbers))

    def sample(
        self, rows: Sequence[Mapping[str, object]], *, count: int, rng: np.random.Generator
    ) -> NDArray[np.float64]:
        rng.random()
        places = [row["place"] for row in rows]
        self.log.append(places)
        return np.stack([self.draws(place, np.arange(count)) for place in places], axis=1)

    def without(self, row: Mapping[str, object]) -> Prediction:
        return self.forecast([row])

    def ratios(self, rows: Sequence[Mapping[str, object]], over: Mapping[str, object]) -> Prediction:
        found = self.forecast([*rows, over]).logarithm
        return Prediction(logarithm=found[:-1] - found[-1], spread=np.full(len(rows), self.spread))


def study_of(
    surrogate: Trees,
    measured: Mapping[int, float],
    *,
    running: Sequence[int] = (),
    again: Sequence[int] = (),
    n_choices: int = 100,
    current: int = 0,
) -> Study:
    """Return the study of a space with so many places, its surrogate replaced."""
    space = SearchSpace(parameters=(Parameter(name="place", choices=tuple(range(n_choices))),))
    trials = [
        Trial.completed(workload=WORKLOAD, config={"place": place}, tokens_per_second=speed)
        for place, speed in [*measured.items(), *((place, measured[place]) for place in again)]
    ]
    trials += [
        Trial(trial_id=f"r{place}", workload=WORKLOAD, config={"place": place}, state=State.RUNNING)
        for place in running
    ]
    study = Study.of(space, workload=WORKLOAD, current={"place": current}, trials=trials)
    return replace(study, posterior=replace(study.posterior, surrogate=surrogate))
