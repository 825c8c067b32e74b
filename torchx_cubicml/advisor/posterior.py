"""Posterior of throughput and memory fit after the trials, with its incumbent (the best known config)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Self

import numpy as np

from torchx_cubicml.advisor.noise import Belief, believe, pooled_noise, repeats_of, usual_noise
from torchx_cubicml.advisor.surrogates.base import FEWEST_ELSEWHERE, JointSurrogate, TrainingData
from torchx_cubicml.advisor.surrogates.select import learn
from torchx_cubicml.advisor.surrogates.transfer_prior import cover
from torchx_cubicml.advisor.trial_data import (
    ConfigOutcome,
    always_the_same,
    latest_observed,
    leaking_facts,
    narrowed,
    not_as_requested,
    pinned_choices,
    records_of,
    with_choices,
    with_observed_configs,
    without,
)
from torchx_cubicml.predictors import DEFAULT_PREDICTOR, PREDICTORS
from torchx_cubicml.predictors.features.history import ineffective_parameters
from torchx_cubicml.predictors.features.rows import FactRows
from torchx_cubicml.records.workload import comparable_trials, matches, under_way
from torchx_cubicml.searchers.base import identity
from torchx_cubicml.searchers.neighbourhood import Neighbourhood
from torchx_cubicml.searchers.scored_rows import as_legal
from torchx_cubicml.space.encoding import distinct_rows, drawn_rows, vectors_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from torchx_cubicml.advisor.surrogates.base import Forecast, Surrogate
    from torchx_cubicml.records.trial import Config, Trial, Value, Workload
    from torchx_cubicml.space import SearchSpace


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedConfigs:
    """The configs that were measured, each list from the highest posterior mean down.

    Args:
        trusted: the winner and those after it.
        doubted: held up by something else each time they were measured; empty where nothing is trusted.
    """

    trusted: tuple[Config, ...]
    doubted: tuple[Config, ...]


def ranked(posterior: Posterior) -> RankedConfigs:
    """Return the measured configs of a workload in order."""
    measured = posterior.measured()
    if not measured:
        return RankedConfigs(trusted=(), doubted=())
    beliefs = [belief.throughput if belief else 0.0 for belief in posterior.beliefs(measured)]
    order = np.argsort(-np.array(beliefs), kind="stable").tolist()
    doubts = posterior.outliers(measured).tolist()
    trusted = tuple(measured[place] for place in order if not doubts[place])
    doubted = tuple(measured[place] for place in order if doubts[place])
    return RankedConfigs(trusted=trusted, doubted=doubted) if trusted else RankedConfigs(trusted=doubted, doubted=())


def as_recorded(posterior: Posterior, config: Config) -> Config:
    """Return ``config`` as the outlook tells it: with the one choice that is left to parameters without effect."""
    left = {item.name: item.choices[0] for item in posterior.space.parameters if item.name in posterior.ineffective}
    return with_choices(config, left)


# Configs at which a Thompson draw is told: drawn ones, and two changes of each of the fastest.
_ANCHORS, _ANCHORS_AROUND = 60, 60

# Consequences of the micro batch, so that configs are still compared by dominance when they differ in them.
_FOLLOWS_BATCH = frozenset({"gradient_accumulation_steps"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Posterior:
    """Everything that the advisor knows of one workload; rebuilt from the trials each time.

    Args:
        space: bound to the workload, without the choices of parameters that have no effect on it.
        ineffective: parameters requested at several values and always observed alike.
        rows: what is known of the workload before a launch, and of each config with it.
        records: identity of a config -> what happened to it.
        n_trials: ended trials of this workload.
        noise: standard deviation of the logarithm of throughput from run to run.
        knowledge: what the trials of this workload and others teach.
        taught_elsewhere: whether launches of other workloads, or formulas, tell how configs of this space compare.
        advice: why trials of this workload were left out, one line for each reason.
    """

    space: SearchSpace
    ineffective: tuple[str, ...]
    rows: FactRows
    records: Mapping[Hashable, ConfigOutcome]
    n_trials: int
    noise: float
    knowledge: Surrogate
    taught_elsewhere: bool = False
    advice: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        space: SearchSpace,
        *,
        workload: Workload,
        current: Config,
        trials: Iterable[Trial],
        rng: np.random.Generator,
        predictor: str = "",
    ) -> Self:
        """Return what ``trials`` say; ``space`` is bound to ``workload``, ``predictor`` as in ``TrainingData``."""
        trials = [trial.at(space.statistic) for trial in trials]
        trials, advice = comparable_trials(under_way(trials, workload), workload)
        trials = with_observed_configs(trials, workload=workload, space=space)
        own = [trial for trial in trials if matches(trial, workload)]
        seen_as = {item.name: item.observe or item.name for item in space.parameters}
        observe = {item.name: item.observe for item in space.parameters if item.observe}
        idle = set(ineffective_parameters(own, observe=observe))
        withheld = leaking_facts(own, {*seen_as, *seen_as.values(), *workload})
        own_withheld = withheld | not_as_requested(own, {k: v for k, v in seen_as.items() if k not in idle})
        ids = {id(trial) for trial in own}
        taught = [without(trial, own_withheld if id(trial) in ids else withheld) for trial in trials]
        latest = latest_observed(own)
        free = [item.name for item in space.parameters if item.derive is None and item.name not in _FOLLOWS_BATCH]
        pinned = pinned_choices(space, current, idle)
        narrow = narrowed(space, pinned)
        records = records_of(narrow, own, pinned)
        again = [(each.measured, each.uncertainties) for each in records.values() if len(each.measured) > 1]
        elsewhere = repeats_of((trial for trial in trials if id(trial) not in ids), objective=space.objective)
        tuned = {item.name: item.choices for item in narrow.parameters if item.derive is None}
        lesson = TrainingData(
            everything=taught,
            own=[trial for trial, told in zip(taught, trials, strict=True) if id(told) in ids and _tells(trial, tuned)],
            objective=space.objective,
            observe=observe,
            compare=[*workload, *free],
            tuned=tuned,
            noise=usual_noise(again, elsewhere) if again else None,
            workload=workload,
            predictor=predictor if predictor in PREDICTORS else DEFAULT_PREDICTOR,
        )
        known = {name: value for name, value in latest.items() if name not in own_withheld | seen_as.keys()}
        return cls(
            space=narrow,
            ineffective=tuple(sorted(pinned)),
            rows=FactRows(
                narrow,
                facts={**known, **space.facts, **workload},
                instead=always_the_same(own, idle, observe),
            ),
            records=records,
            n_trials=sum(trial.state.ended for trial in own),
            noise=pooled_noise(again, elsewhere),
            knowledge=learn(lesson, rng=rng),
            taught_elsewhere=_taught(trials, ids, {name for name, each in lesson.tuned.items() if len(each) > 1})
            or cover(lesson.own),
            advice=advice,
        )

    def forecast(self, configs: Sequence[Config]) -> Forecast:
        """Return what the predictors expect of ``configs``."""
        return self.knowledge.forecast(self._rows(configs))

    def forecast_at(self, vectors: NDArray[np.intp]) -> Forecast:
        """Return the same of the configs at legal rows of choice indices, ``[n, n_dimensions]``."""
        return self.knowledge.forecast(self.rows.at(vectors))

    def ensemble(self, *, one: bool) -> list[Self]:
        """Return this outlook as several predictors see it; see ``Surrogate.ensemble``."""
        return [replace(self, knowledge=each) for each in self.knowledge.ensemble(one=one)]

    def fantasize(self, configs: Sequence[Config]) -> Self:
        """Return the outlook as if ``configs`` were under way and sure to run as fast as is expected of them."""
        rows = (np.array(self.space.encode(config), dtype=np.intp).tobytes() for config in configs)
        under_way = {
            identity(config): ConfigOutcome(
                config=config, row=row, measured=(), out_of_memory=False, open=True, failed=False
            )
            for config, row in zip(configs, rows, strict=True)
        }
        launched = {key: replace(self.records[key], open=True) for key in self.records.keys() & under_way.keys()}
        return replace(
            self,
            knowledge=self.knowledge.fantasize(self._rows(configs)),
            records={**under_way, **self.records, **launched},
        )

    def optimistic(self) -> Self:
        """Return the outlook to search by; see ``Surrogate.optimistic``."""
        return replace(self, knowledge=self.knowledge.optimistic())

    def sample_function(self, rng: np.random.Generator) -> Callable[[NDArray[np.intp]], Forecast]:
        """Return ``forecast_at`` as if one function were true that is believed in: a Thompson draw."""
        moves = Neighbourhood(self.space.dimensions)
        around = vectors_of(self.space, self.fastest(_ANCHORS_AROUND))
        near = as_legal(self.space, np.vstack([moves.mixed(around, rng), moves.mutated(around, rng)]))
        anchors = np.vstack([near[np.sort(distinct_rows(near)[0])], drawn_rows(self.space, _ANCHORS, rng=rng)])
        draw = self.knowledge.sample_function(self.rows.at(anchors), rng=rng)
        return lambda vectors: draw.forecast(self.rows.at(vectors))

    def sample(self, configs: Sequence[Config], *, count: int, rng: np.random.Generator) -> NDArray[np.float64]:
        """Return logarithms of the true throughputs of few configs, drawn together, ``[count, n]``.

        Each must be known: predicted, or measured.
        """
        if isinstance(self.knowledge, JointSurrogate):
            return self.knowledge.sample(self._rows(configs), count=count, rng=rng)
        beliefs = self.beliefs(configs)
        means = np.array([math.log(belief.throughput) if belief else math.nan for belief in beliefs])
        spreads = np.array([belief.spread if belief else math.nan for belief in beliefs])
        return means + spreads * rng.standard_normal((count, len(configs)))

    def _rows(self, configs: Sequence[Config]) -> list[dict[str, Value]]:
        return [self.rows.of(config) for config in configs]

    def beliefs(self, configs: Sequence[Config]) -> list[Belief | None]:
        """Return prediction and own measurements of each config together; ``None`` where there is neither."""
        if not configs:
            return []
        forecast, included = self.forecast(configs), isinstance(self.knowledge, JointSurrogate)
        beliefs: list[Belief | None] = []
        for config, logarithm, spread in zip(configs, forecast.logarithm, forecast.spread, strict=True):
            predicted = Belief(math.exp(logarithm), float(spread)) if math.isfinite(logarithm) else None
            record = self.records.get(identity(config))
            told = (record.measured, record.uncertainties) if record and not included else ((), ())
            beliefs.append(believe(predicted, *told, noise=self.noise))
        return beliefs

    def gains(self, configs: Sequence[Config], over: Config) -> list[Belief | None]:
        """Return how much faster each config is than ``over``; ``None`` where either is unknown or ``over`` never fits.

        What two configs have in common cancels out: of neighbours the ratio is better known than either.
        """
        *beliefs, base = self.beliefs([*configs, over])
        record = self.records.get(identity(over))
        if base is None or (record is not None and record.out_of_memory):
            return [None] * len(configs)
        if isinstance(self.knowledge, JointSurrogate):
            means, spreads = self.knowledge.ratios(self._rows(configs), self._rows([over])[0])
            found: list[Belief | None] = [
                Belief(math.exp(mean), spread) for mean, spread in zip(means, spreads.tolist(), strict=True)
            ]
        else:
            found = [
                Belief(belief.throughput / base.throughput, math.hypot(belief.spread, base.spread)) if belief else None
                for belief in beliefs
            ]
        same = [identity(config) == identity(over) for config in configs]
        return [Belief(1.0, 0.0) if is_same else gain for gain, is_same in zip(found, same, strict=True)]

    def fastest(self, count: int) -> list[Config]:
        """Return the ``count`` configs of ``measured`` with the highest measurements, the highest first."""
        ran = [record for record in self.records.values() if record.measured and not record.out_of_memory]
        ran.sort(key=lambda record: (-max(record.measured), record.row))
        return [record.config for record in ran[:count]]

    def measured(self) -> list[Config]:
        """Return the configs of the space that ran and never ran out of memory."""
        return [record.config for record in self.records.values() if record.measured and not record.out_of_memory]

    def outliers(self, configs: Sequence[Config]) -> NDArray[np.bool_]:
        """Return whether configs were slowed down by something else each time they were measured, ``[n]``."""
        return self.knowledge.outliers(self._rows(configs))

    def settled(self, config: Config) -> bool:
        """Return whether launching ``config`` would teach nothing new."""
        record = self.records.get(identity(config))
        return record is not None and record.settled

    def erred(self, config: Config) -> bool:
        """Return whether ``config`` ever ended by an error or without a word."""
        record = self.records.get(identity(config))
        return record is not None and record.erred

    def settled_rows(self) -> frozenset[bytes]:
        """Return the rows of choice indices that are settled, as ``ConfigOutcome.row``."""
        return frozenset(record.row for record in self.records.values() if record.settled)

    @property
    def n_tried(self) -> int:
        """How many configs of the space were launched and not broken off, however often each was."""
        return sum(record.tried for record in self.records.values())

    @property
    def n_out_of_memory(self) -> int:
        """How many configs of the space ran out of memory."""
        return sum(record.out_of_memory for record in self.records.values())


def _taught(trials: Iterable[Trial], own: set[int], names: set[str]) -> bool:
    """Whether enough measured trials besides ``own`` say what they had of each of ``names``."""
    telling = (t for t in trials if id(t) not in own and t.measurement is not None and names <= t.config.keys())
    return sum(1 for _ in islice(telling, FEWEST_ELSEWHERE)) == FEWEST_ELSEWHERE


def _tells(trial: Trial, names: Collection[str]) -> bool:
    """Whether anything is known of the config of ``trial``; without, it would be taken for one at the middle of all."""
    return not names or any(name in trial.config or name in trial.observed for name in names)
