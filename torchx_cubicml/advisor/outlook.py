"""What the trials of a store say of the configs of one workload: which are settled, how fast the others may be."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Self

import numpy as np

from torchx_cubicml.advisor.formulas import cover
from torchx_cubicml.advisor.knowledge import JointKnowledge
from torchx_cubicml.advisor.learning import learn
from torchx_cubicml.advisor.lesson import Lesson
from torchx_cubicml.advisor.observed_configs import with_observed_configs
from torchx_cubicml.errors import SpaceError
from torchx_cubicml.history import ineffective_parameters, training_row
from torchx_cubicml.noise import Belief, believe, pooled_noise
from torchx_cubicml.same_ground import same_ground, under_way
from torchx_cubicml.same_workload import matches
from torchx_cubicml.searchers.base import identity
from torchx_cubicml.searchers.moves import Moves
from torchx_cubicml.searchers.ranking import as_legal
from torchx_cubicml.trial import State
from torchx_cubicml.vectors import FactRows, distinct_rows, drawn_rows, vectors_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from torchx_cubicml.advisor.knowledge import Forecast, Knowledge
    from torchx_cubicml.space import SearchSpace
    from torchx_cubicml.trial import Config, Scalar, Trial, Value, Workload

_ENOUGH_ELSEWHERE = 20  # measured trials of other workloads that say how configs compare

_SETTLES_AT_ONCE, _SETTLES_TWICE = {State.TIMEOUT, State.COMPLETED}, {State.USER_ERROR, State.UNKNOWN}

# Configs at which a Thompson draw is told: drawn ones, and two changes of each measured one.
_ANCHORS, _ANCHORS_AROUND = 60, 60

# What a launch finds, whatever its config: the latest value stands for the next launch.
_ENVIRONMENT = frozenset({"device", "torch_version", "python_version", "scheduler"})
# Consequences of the micro batch, so that configs are still compared by dominance when they differ in them.
_FOLLOWS_BATCH = frozenset({"gradient_accumulation_steps"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What happened to one config of the space on this workload.

    Args:
        config: made of the space's own literals, never of what a store holds.
        measured: throughputs of the whole job, the lowest first.
        trial_ids: of the trials that measured them, in the same order.
        row: its choice indices as ``np.intp``, in bytes.
        out_of_memory: whether it ever ran out of memory.
        open: whether it is planned or running.
        failed: whether it ended without a measurement in a way that it would again; see ``_is_given_up``.
        erred: whether it ever ended by an error or without a word, so that it may end so again.
    """

    config: Config
    row: bytes
    measured: tuple[float, ...]
    out_of_memory: bool
    open: bool
    failed: bool
    trial_ids: tuple[str, ...] = ()
    erred: bool = False

    @property
    def settled(self) -> bool:
        """Whether launching it again would teach nothing new."""
        return bool(self.measured) or self.out_of_memory or self.open or self.failed

    @property
    def tried(self) -> bool:
        """Whether a launch of it ended otherwise than by being broken off."""
        return bool(self.measured) or self.out_of_memory or self.failed or self.erred


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """Everything that the advisor knows of one workload; rebuilt from the trials each time.

    Args:
        space: bound to the workload, without the choices of parameters that have no effect on it.
        ineffective: parameters requested at several values and always observed alike.
        rows: what is known of the workload before a launch, and of each config with it.
        records: identity of a config -> what happened to it.
        n_trials: ended trials of this workload.
        noise: standard deviation of the logarithm of one measurement.
        knowledge: what the trials of this workload and others teach.
        taught_elsewhere: whether launches of other workloads, or formulas, tell how configs of this space compare.
        advice: why trials of this workload were left out, one line for each reason.
    """

    space: SearchSpace
    ineffective: tuple[str, ...]
    rows: FactRows
    records: Mapping[Hashable, Record]
    n_trials: int
    noise: float
    knowledge: Knowledge
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
        """Return what ``trials`` say; ``space`` is bound to ``workload``, ``predictor`` as in ``Lesson``."""
        trials, advice = same_ground(under_way(trials, workload), workload)
        trials = with_observed_configs(trials, workload=workload, space=space)
        own = [trial for trial in trials if matches(trial, workload)]
        seen_as = {item.name: item.observe or item.name for item in space.parameters}
        observe = {item.name: item.observe for item in space.parameters if item.observe}
        idle = set(ineffective_parameters(own, observe=observe))
        withheld = _consequences(own, {*seen_as, *seen_as.values(), *workload})
        own_withheld = withheld | _not_as_requested(own, {k: v for k, v in seen_as.items() if k not in idle})
        ids = {id(trial) for trial in own}
        taught = [_without(trial, own_withheld if id(trial) in ids else withheld) for trial in trials]
        latest = _latest_observed(own)
        free = [item.name for item in space.parameters if item.derive is None and item.name not in _FOLLOWS_BATCH]
        pinned = _pinned(space, current, idle)
        narrow = _narrowed(space, pinned)
        records = _records(narrow, own, pinned)
        noise = pooled_noise(record.measured for record in records.values())
        tuned = {item.name: item.choices for item in narrow.parameters if item.derive is None}
        lesson = Lesson(
            everything=taught,
            own=[trial for trial, told in zip(taught, trials, strict=True) if id(told) in ids and _tells(trial, tuned)],
            objective=space.objective,
            observe=observe,
            compare=[*workload, *free],
            tuned=tuned,
            noise=noise if any(len(record.measured) > 1 for record in records.values()) else None,
            usual_noise=noise,
            workload=workload,
            predictor=predictor,
        )
        known = {name: value for name, value in latest.items() if name not in own_withheld | seen_as.keys()}
        return cls(
            space=narrow,
            ineffective=tuple(sorted(pinned)),
            rows=FactRows(
                narrow,
                facts={**known, **space.facts, **workload},
                instead=_always_the_same(own, idle, observe),
            ),
            records=records,
            n_trials=sum(trial.state.ended for trial in own),
            noise=noise,
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

    def opinions(self, *, one: bool) -> list[Self]:
        """Return this outlook as several predictors see it; see ``Knowledge.opinions``."""
        return [replace(self, knowledge=each) for each in self.knowledge.opinions(one=one)]

    def believing(self, configs: Sequence[Config]) -> Self:
        """Return the outlook as if ``configs`` were under way and sure to run as fast as is expected of them."""
        rows = (np.array(self.space.encode(config), dtype=np.intp).tobytes() for config in configs)
        under_way = {
            identity(config): Record(config=config, row=row, measured=(), out_of_memory=False, open=True, failed=False)
            for config, row in zip(configs, rows, strict=True)
        }
        launched = {key: replace(self.records[key], open=True) for key in self.records.keys() & under_way.keys()}
        return replace(
            self,
            knowledge=self.knowledge.believing(self._rows(configs)),
            records={**under_way, **self.records, **launched},
        )

    def hoping(self) -> Self:
        """Return the outlook to search by; see ``Knowledge.hoping``."""
        return replace(self, knowledge=self.knowledge.hoping())

    def drawn(self, rng: np.random.Generator) -> Callable[[NDArray[np.intp]], Forecast]:
        """Return ``forecast_at`` as if one function were true that is believed in: a Thompson draw."""
        moves = Moves(self.space.dimensions)
        around = vectors_of(self.space, self.measured()[-_ANCHORS_AROUND:])
        near = as_legal(self.space, np.vstack([moves.mixed(around, rng), moves.mutated(around, rng)]))
        anchors = np.vstack([near[np.sort(distinct_rows(near)[0])], drawn_rows(self.space, _ANCHORS, rng=rng)])
        draw = self.knowledge.drawn(self.rows.at(anchors), rng=rng)
        return lambda vectors: draw.forecast(self.rows.at(vectors))

    def draws(self, configs: Sequence[Config], *, count: int, rng: np.random.Generator) -> NDArray[np.float64]:
        """Return logarithms of the true throughputs of few configs, drawn together, ``[count, n]``.

        Each must be known: predicted, or measured.
        """
        if isinstance(self.knowledge, JointKnowledge):
            return self.knowledge.draws(self._rows(configs), count=count, rng=rng)
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
        forecast, included = self.forecast(configs), isinstance(self.knowledge, JointKnowledge)
        beliefs: list[Belief | None] = []
        for config, logarithm, spread in zip(configs, forecast.logarithm, forecast.spread, strict=True):
            predicted = Belief(math.exp(logarithm), float(spread)) if math.isfinite(logarithm) else None
            record = self.records.get(identity(config))
            measured = record.measured if record and not included else ()
            beliefs.append(believe(predicted, measured, noise=self.noise))
        return beliefs

    def gains(self, configs: Sequence[Config], over: Config) -> list[Belief | None]:
        """Return how much faster each config is than ``over``; ``None`` where either is unknown or ``over`` never fits.

        What two configs have in common cancels out: of neighbours the ratio is better known than either.
        """
        *beliefs, base = self.beliefs([*configs, over])
        record = self.records.get(identity(over))
        if base is None or (record is not None and record.out_of_memory):
            return [None] * len(configs)
        if isinstance(self.knowledge, JointKnowledge):
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
        return [record.config for record in sorted(ran, key=lambda record: -max(record.measured))[:count]]

    def measured(self) -> list[Config]:
        """Return the configs of the space that ran and never ran out of memory."""
        return [record.config for record in self.records.values() if record.measured and not record.out_of_memory]

    def doubts(self, configs: Sequence[Config]) -> NDArray[np.bool_]:
        """Return whether configs were slowed down by something else each time they were measured, ``[n]``."""
        return self.knowledge.doubts(self._rows(configs))

    def settled(self, config: Config) -> bool:
        """Return whether launching ``config`` would teach nothing new."""
        record = self.records.get(identity(config))
        return record is not None and record.settled

    def erred(self, config: Config) -> bool:
        """Return whether ``config`` ever ended by an error or without a word."""
        record = self.records.get(identity(config))
        return record is not None and record.erred

    def settled_rows(self) -> frozenset[bytes]:
        """Return the rows of choice indices that are settled, as ``Record.row``."""
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
    return sum(1 for _ in islice(telling, _ENOUGH_ELSEWHERE)) == _ENOUGH_ELSEWHERE


def _tells(trial: Trial, names: Collection[str]) -> bool:
    """Whether anything is known of the config of ``trial``; without, it would be taken for one at the middle of all."""
    return not names or any(name in trial.config or name in trial.observed for name in names)


def _pinned(space: SearchSpace, current: Config, idle: set[str]) -> dict[str, Scalar]:
    """Return the one choice left to each parameter without effect: the user's own, where one choice can say it."""
    pinned: dict[str, Scalar] = {}
    for parameter in space.parameters:
        value = current.get(parameter.name)
        entry = value[0] if isinstance(value, tuple) and len(set(value)) == 1 else value
        if parameter.name in idle and entry in parameter.choices:
            pinned[parameter.name] = parameter.choices[parameter.choices.index(entry)]
    return pinned


def _narrowed(space: SearchSpace, pinned: Mapping[str, Scalar]) -> SearchSpace:
    if not pinned:
        return space
    kept = [replace(item, choices=(pinned[item.name],)) if item.name in pinned else item for item in space.parameters]
    return replace(space, parameters=tuple(kept))


def _records(space: SearchSpace, own: Sequence[Trial], pinned: Mapping[str, Scalar]) -> dict[Hashable, Record]:
    groups: defaultdict[Hashable, list[Trial]] = defaultdict(list)
    found: dict[Hashable, tuple[Config, bytes]] = {}
    read: dict[int, tuple[Config, bytes] | None] = {}  # trials read from a store share what is alike
    for trial in own:
        if id(trial.config) not in read:
            read[id(trial.config)] = _placed(space, with_choices(trial.config, pinned))
        placed = read[id(trial.config)]
        if placed is not None:
            key = identity(placed[0])
            found[key] = placed
            groups[key].append(trial)
    return {key: _record(*found[key], group, space.objective) for key, group in groups.items()}


def with_choices(config: Config, pinned: Mapping[str, Scalar]) -> Config:
    """Return ``config`` with the pinned choices in place of its own, for each entry of a per-layer value."""
    changed = {}
    for name in pinned.keys() & config.keys():
        value = config[name]
        changed[name] = (pinned[name],) * len(value) if isinstance(value, tuple) else pinned[name]
    return {**config, **changed}


def _record(config: Config, row: bytes, trials: Sequence[Trial], objective: str) -> Record:
    values = [trial.measurement.throughput(objective) if trial.measurement else None for trial in trials]
    lost = [trial for trial, value in zip(trials, values, strict=True) if trial.state.ended and value is None]
    told = sorted((value, trial.trial_id) for trial, value in zip(trials, values, strict=True) if value is not None)
    return Record(
        config=config,
        row=row,
        measured=tuple(value for value, _ in told),
        trial_ids=tuple(trial_id for _, trial_id in told),
        out_of_memory=any(trial.state is State.OUT_OF_MEMORY for trial in trials),
        open=any(not trial.state.ended for trial in trials),
        failed=_is_given_up(lost),
        erred=any(trial.state in _SETTLES_TWICE for trial in lost),
    )


def _is_given_up(lost: Sequence[Trial]) -> bool:
    """Whether launches that ended without a throughput say that the next would, too.

    One that was too slow, or of which nothing was to be measured, does. Of an error nobody knows whether the config is
    to blame before it happens twice. What the machines, or somebody, broke off says nothing.
    """
    if any(trial.state in _SETTLES_AT_ONCE or trial.measurement is not None for trial in lost):
        return True
    return sum(trial.state in _SETTLES_TWICE for trial in lost) > 1


def in_space(space: SearchSpace, config: Config) -> Config | None:
    """Return the legal config that ``config`` asks for, made of the space's literals; ``None`` where there is none.

    Values of parameters that the space does not hold are passed over: they were recorded under an older file.
    """
    placed = _placed(space, config)
    return None if placed is None else placed[0]


def _placed(space: SearchSpace, config: Config) -> tuple[Config, bytes] | None:
    try:
        vector = space.encode(config)
        found = space.decode(vector)
    except SpaceError:
        return None
    if found is None or any(config.get(name) != value for name, value in found.items()):
        return None
    return found, np.array(vector, dtype=np.intp).tobytes()


def _consequences(own: Iterable[Trial], known: set[str]) -> set[str]:
    """Return observed facts that differ between trials of one workload though no parameter sets them.

    They follow from the config or from the machine of the day, so a config that was not launched has none.
    """
    seen: defaultdict[str, set[Value]] = defaultdict(set)
    for trial in own:
        for name, value in trial.observed.items():
            seen[name].add(value)
    return {name for name, values in seen.items() if len(values) > 1 and name not in known | _ENVIRONMENT}


def _not_as_requested(own: Iterable[Trial], seen_as: Mapping[str, str]) -> set[str]:
    """Return facts observed otherwise than their parameter was requested, such as a batch split over ranks.

    What is not launched yet can only be told by its request; so the workload's own trials must be, too.
    """
    return {
        fact
        for trial in own
        for name, fact in seen_as.items()
        if fact in trial.observed and name in trial.config and trial.observed[fact] != trial.config[name]
    }


def _always_the_same(own: Iterable[Trial], names: set[str], observe: Mapping[str, str]) -> dict[str, Value]:
    """Return the value under which training rows of the workload tell each of ``names``, where it is one."""
    values: defaultdict[str, set[Value]] = defaultdict(set)
    for trial in own if names else ():
        row = training_row(trial, observe=observe)
        for name in names & row.keys():
            values[name].add(row[name])
    return {name: next(iter(seen)) for name, seen in values.items() if len(seen) == 1}


def _without(trial: Trial, names: set[str]) -> Trial:
    if names.isdisjoint(trial.observed):
        return trial
    return replace(trial, observed={name: value for name, value in trial.observed.items() if name not in names})


def _latest_observed(own: Sequence[Trial]) -> dict[str, Value]:
    latest: dict[str, Value] = {}
    for trial in sorted(own, key=lambda trial: (trial.started_at, trial.trial_id)):
        latest.update(trial.observed)
    return latest
