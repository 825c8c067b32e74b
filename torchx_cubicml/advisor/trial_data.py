"""Trials as training data: outcomes of configs, and removal of facts that leak the target (target leakage)."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from torchx_cubicml.advisor.ineffective import ineffective_parameters
from torchx_cubicml.advisor.launch_overhead import with_jobs
from torchx_cubicml.advisor.observed_averages import common_averages, with_averages
from torchx_cubicml.advisor.observed_plan import observed_plan, with_plan
from torchx_cubicml.errors import SpaceError
from torchx_cubicml.history.history import History
from torchx_cubicml.history.passes import comparable
from torchx_cubicml.predictors.features.history import training_row
from torchx_cubicml.predictors.measurement_error import repeat_noise
from torchx_cubicml.records.memory_failure import proves_too_large
from torchx_cubicml.records.trial import SECOND_ATTEMPT_SUFFIX, State
from torchx_cubicml.searchers.base import identity

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence

    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.records.values import Config, Scalar, Value, Workload
    from torchx_cubicml.space import SearchSpace


def nearest_trials(trials: Iterable[Trial], workload: Workload, *, count: int) -> list[Trial]:
    """Return the ``count`` trials that share the most facts with ``workload``; of equally near ones the latest."""
    trials = list(trials)
    if len(trials) <= count:
        return trials
    facts = set(workload.items())
    shared: dict[int, int] = {}
    for trial in trials:
        if id(trial.workload) not in shared:
            shared[id(trial.workload)] = len(facts & set(trial.workload.items()))
    trials.sort(key=lambda trial: (shared[id(trial.workload)], trial.ended_at or trial.started_at, trial.trial_id))
    return trials[-count:]


def informative_trials(trials: Sequence[Trial], workload: Workload, *, count: int) -> list[Trial]:
    """Return ``count`` informative trials nearest to ``workload``, at least half of them measured where possible.

    Failed trials alone contain no throughput, however near they are.
    """
    chosen = nearest_trials(trials, workload, count=count)
    if 2 * sum(trial.measurement is not None for trial in chosen) >= len(chosen) or len(chosen) == len(trials):
        return chosen
    measured = nearest_trials((trial for trial in trials if trial.measurement is not None), workload, count=count // 2)
    others = (trial for trial in trials if trial.measurement is None)
    return [*measured, *nearest_trials(others, workload, count=count - len(measured))]


def are_facts_seen(workload: Workload, trials: Iterable[Trial]) -> bool:
    """Return whether trials of other workloads declare each fact of ``workload``, each fact in some trial."""
    unseen = set(workload.items())
    for other in {id(trial.workload): trial.workload for trial in trials}.values():
        if other != workload:
            unseen -= set(other.items())
    return not unseen


# Facts of the environment, independent of the config: the latest value is assumed for the next launch.
_ENVIRONMENT = frozenset({"device", "torch_version", "python_version", "scheduler"})


def select_trials(trials: Iterable[Trial], *, space: SearchSpace, workload: Workload) -> History:
    """Return the comparable trials, at the statistic of the space; configs of the workload with all derived values."""
    history, completion = History(space=space, workload=workload, current={}, trials=[*trials]), ConfigCompletion(space)
    history = comparable(history)
    own = set(map(id, history.own))
    completed = [completion.of(trial) if id(trial) in own else trial for trial in history.trials]
    return replace(history, trials=with_jobs(completed, space.job, workload=workload))


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanTrials:
    """Selected trials without the observed facts that leak the target (target leakage).

    Args:
        own: of the workload.
        trials: of all workloads.
        observe: parameter -> observed fact, where the space file names one; empty where it names none.
        idle: parameters of no effect: see ``ineffective_parameters``.
        known_facts: latest observed facts of the workload that do not depend on the config.
    """

    own: list[Trial]
    trials: list[Trial]
    observe: dict[str, str]
    idle: set[str]
    known_facts: dict[str, Value]


def drop_leaking_facts(selected: History, *, space: SearchSpace) -> CleanTrials:
    """Return the trials without observed facts that a launch does not know before it runs."""
    own = selected.own
    observed_as = {item.name: item.observed_as for item in space.parameters if item.observed_as}
    observe = {item.name: item.observe for item in space.parameters if item.observe is not None}
    idle = set(
        ineffective_parameters(
            own,
            observed_as=observed_as,
            free=[item.name for item in space.parameters if item.derive is None],
            objective=space.objective,
            noise=lambda: repeat_noise(own, objective=space.objective, elsewhere=selected.others),
        )
    )
    parameters = {item.name for item in space.parameters}
    averages, plan = common_averages(own), observed_plan(own, observed_as)
    environment = _ENVIRONMENT - {"device"} if space.chooses_machine else _ENVIRONMENT
    known = {*parameters, *observed_as.values(), *selected.workload, *averages}
    leaking = leaking_facts(own, known, environment=environment)
    own_leaking = leaking | misreported_facts(own, {k: v for k, v in observed_as.items() if k not in idle})
    own_ids = {id(trial) for trial in own}
    cleaned = [
        with_plan(with_averages(without(trial, own_leaking), averages), plan)
        if id(trial) in own_ids
        else without(trial, leaking)
        for trial in selected.trials
    ]
    return CleanTrials(
        own=[clean for clean, trial in zip(cleaned, selected.trials, strict=True) if id(trial) in own_ids],
        trials=cleaned,
        observe=observe,
        idle=idle,
        known_facts={
            name: averages.get(name, value)
            for name, value in latest_observed(own).items()
            if name not in own_leaking | parameters
        }
        | plan,
    )


def leaking_facts(own: Iterable[Trial], known: set[str], *, environment: frozenset[str] = _ENVIRONMENT) -> set[str]:
    """Return the facts that leak the target: they differ between trials of a workload though no parameter sets them.

    They follow from the config or from the machine used, so they are unknown for a config not yet launched.
    """
    values: defaultdict[str, set[Value]] = defaultdict(set)
    for trial in own:
        for name, value in trial.observed.items():
            values[name].add(value)
    return {name for name, distinct in values.items() if len(distinct) > 1 and name not in known | environment}


def misreported_facts(own: Iterable[Trial], observed_as: Mapping[str, str]) -> set[str]:
    """Return the facts observed with another value than requested, such as a batch split over ranks.

    A config not yet launched has only its requested values. The workload's own trials must be described by theirs, too.
    """
    return {
        fact
        for trial in own
        for name, fact in observed_as.items()
        if fact in trial.observed and name in trial.config and trial.observed[fact] != trial.config[name]
    }


def constant_values(own: Iterable[Trial], names: set[str], observe: Mapping[str, str]) -> dict[str, Value]:
    """Return the values of those of ``names`` that are constant in the workload's training rows."""
    values: defaultdict[str, set[Value]] = defaultdict(set)
    for trial in own if names else ():
        row = training_row(trial, observe=observe)
        for name in names & row.keys():
            values[name].add(row[name])
    return {name: next(iter(distinct)) for name, distinct in values.items() if len(distinct) == 1}


def without(trial: Trial, names: set[str]) -> Trial:
    """Return the trial without the observed facts ``names``."""
    if names.isdisjoint(trial.observed):
        return trial
    return replace(trial, observed={name: value for name, value in trial.observed.items() if name not in names})


def latest_observed(own: Sequence[Trial]) -> dict[str, Value]:
    """Return the latest observed value of each fact."""
    latest: dict[str, Value] = {}
    for trial in sorted(own, key=lambda trial: (trial.started_at, trial.trial_id)):
        latest.update(trial.observed)
    return latest


class ConfigCompletion:
    """Completion of configs that an older space file recorded, with the derived and idle values of the bound space.

    A config that is not legal in the space stays as it is, and so does one whose observed values contradict the derived
    ones.

    Args:
        space: bound to the workload.
    """

    def __init__(self, space: SearchSpace) -> None:
        self._space = space
        self._observed_as = {item.name: item.observed_as for item in space.parameters if item.derive}
        self._completed: dict[int, tuple[Config, Config]] = {}  # keeps each config alive, as its id is the key

    def of(self, trial: Trial) -> Trial:
        """Return the trial with its completed config; trials that share a config share the completed one."""
        config = trial.config
        if id(config) not in self._completed:
            found = _decoded(self._space, config)
            is_same = found is None or all(name in config and config[name] == found[0][name] for name in found[0])
            self._completed[id(config)] = config, config if is_same or found is None else {**config, **found[0]}
        completed = self._completed[id(config)][1]
        if completed is config or any(
            fact in trial.observed and trial.observed[fact] != completed[name]
            for name, fact in self._observed_as.items()
            if name not in config
        ):
            return trial
        return replace(trial, config=completed)


_CONCLUSIVE, _CONCLUSIVE_IF_REPEATED = {State.TIMEOUT, State.COMPLETED}, {State.USER_ERROR, State.UNKNOWN}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigOutcome:
    """Outcome of one config of the space on this workload.

    Args:
        config: made of the space's own literals, never of a store's.
        row: its choice indices as ``np.intp``, in bytes.
        measured: throughputs of the whole job, the lowest first.
        out_of_memory: whether it ever ran out of memory on a device that no others shared.
        open: whether it is planned or running.
        failed: whether it ended without a measurement and would do so again; see ``_is_given_up``.
        trial_ids: of the trials that measured it, in the order of ``measured``.
        uncertainties: of the logarithms, as each run reported them, in the same order.
        had_error: whether it ever ended with an error or in an unknown state, so that it may do so again.
        refuted: whether the last launch that ran it as a rewritten command failed early, and the same job then ran as
            typed.
    """

    config: Config
    row: bytes
    measured: tuple[float, ...]
    out_of_memory: bool
    open: bool
    failed: bool
    trial_ids: tuple[str, ...] = ()
    uncertainties: tuple[float, ...] = ()
    had_error: bool = False
    refuted: bool = False

    @property
    def is_decided(self) -> bool:
        """True if the config is decided: another launch of it would add nothing."""
        return bool(self.measured) or self.out_of_memory or self.open or self.failed or self.refuted

    @property
    def can_run(self) -> bool:
        """True if no launch of it shows that it fails."""
        return not (self.out_of_memory or self.refuted)

    @property
    def tried(self) -> bool:
        """True if a launch of it ended in any way but by being broken off."""
        return bool(self.measured) or self.out_of_memory or self.failed or self.had_error or self.refuted


def pinned_choices(space: SearchSpace, current: Config, idle: set[str]) -> dict[str, Scalar]:
    """Return the one choice left to each parameter without effect: the user's own, where one choice expresses it."""
    pinned: dict[str, Scalar] = {}
    for parameter in space.parameters:
        value = current.get(parameter.name)
        entry = value[0] if isinstance(value, tuple) and len(set(value)) == 1 else value
        if parameter.name in idle and entry in parameter.choices:
            pinned[parameter.name] = parameter.choices[parameter.choices.index(entry)]
    return pinned


def narrowed(space: SearchSpace, pinned: Mapping[str, Scalar]) -> SearchSpace:
    """Return the space with the pinned choices alone."""
    if not pinned:
        return space
    kept = [replace(item, choices=(pinned[item.name],)) if item.name in pinned else item for item in space.parameters]
    return replace(space, parameters=tuple(kept))


def outcomes_by_config(
    space: SearchSpace, own: Sequence[Trial], pinned: Mapping[str, Scalar]
) -> dict[Hashable, ConfigOutcome]:
    """Return the outcome of each config of ``space`` that was launched, by its identity.

    Args:
        space: bound, and narrowed to ``pinned``.
        own: trials of the workload.
        pinned: see ``pinned_choices``; trials that differ in these alone are of one config.
    """
    trials_of: defaultdict[Hashable, list[Trial]] = defaultdict(list)
    configs: dict[Hashable, tuple[Config, bytes]] = {}
    decoded: dict[int, tuple[Config, bytes] | None] = {}  # trials read from a store share equal mappings
    for trial in own:
        if id(trial.config) not in decoded:
            decoded[id(trial.config)] = _decoded(space, with_choices(trial.config, pinned))
        entry = decoded[id(trial.config)]
        if entry is not None:
            key = identity(entry[0])
            configs[key] = entry
            trials_of[key].append(trial)
    refuted = _refuted(own)
    return {key: _outcome(*configs[key], group, space.objective, refuted) for key, group in trials_of.items()}


def with_choices(config: Config, pinned: Mapping[str, Scalar]) -> Config:
    """Return ``config`` with its pinned parameters replaced, each entry of a per-layer value included."""
    changed = {}
    for name in pinned.keys() & config.keys():
        value = config[name]
        changed[name] = (pinned[name],) * len(value) if isinstance(value, tuple) else pinned[name]
    return {**config, **changed}


def _refuted(trials: Iterable[Trial]) -> frozenset[str]:
    """Return the ids of trials that failed early, and whose job then ran as typed."""
    return frozenset(
        trial.trial_id.removesuffix(SECOND_ATTEMPT_SUFFIX)
        for trial in trials
        if trial.trial_id.endswith(SECOND_ATTEMPT_SUFFIX)
        and (trial.state is State.COMPLETED or trial.measurement is not None)
    )


def _outcome(
    config: Config, row: bytes, trials: Sequence[Trial], objective: str, refuted: Collection[str]
) -> ConfigOutcome:
    values = [trial.throughput(objective) for trial in trials]
    unmeasured = [trial for trial, value in zip(trials, values, strict=True) if trial.state.ended and value is None]
    measured = sorted(
        (value, trial.trial_id, trial.uncertainty(objective))
        for trial, value in zip(trials, values, strict=True)
        if value is not None and trial.measurement is not None
    )
    return ConfigOutcome(
        config=config,
        row=row,
        measured=tuple(value for value, _, _ in measured),
        trial_ids=tuple(trial_id for _, trial_id, _ in measured),
        uncertainties=tuple(uncertainty for _, _, uncertainty in measured),
        out_of_memory=any(map(proves_too_large, trials)),
        open=any(not trial.state.ended for trial in trials),
        failed=_is_given_up(unmeasured),
        had_error=any(map(_had_error, unmeasured)),
        refuted=_last_good(trials, refuted)
        < max((trial.started_at for trial in trials if trial.trial_id in refuted), default=""),
    )


def _last_good(trials: Iterable[Trial], refuted: Collection[str]) -> str:
    """Return the start of the last measured launch that did not fail early; empty without one."""
    good = (trial for trial in trials if trial.measurement is not None and trial.trial_id not in refuted)
    return max((trial.started_at for trial in good), default="")


def _is_given_up(unmeasured: Sequence[Trial]) -> bool:
    """Return whether launches that ended without a throughput imply that the next would, too.

    A launch that was too slow, or had nothing to measure, implies it at once. An error must happen twice before the
    config is to blame. A launch that the infrastructure or a person broke off implies nothing.
    """
    if any(trial.state in _CONCLUSIVE or trial.measurement is not None for trial in unmeasured):
        return True
    return sum(map(_had_error, unmeasured)) > 1


def _had_error(trial: Trial) -> bool:
    """Return whether an unmeasured launch failed so that another may, too; a crowded device counts as such an error."""
    is_crowded = trial.state is State.OUT_OF_MEMORY and not proves_too_large(trial)
    return trial.state in _CONCLUSIVE_IF_REPEATED or is_crowded


def _decoded(space: SearchSpace, config: Config) -> tuple[Config, bytes] | None:
    """Return the legal config of the space equal to ``config``, with its row; ``None`` where there is none.

    Values of parameters outside the space are ignored: they were recorded under an older file.
    """
    try:
        vector = space.encode(config)
        found = space.decode(vector)
    except SpaceError:
        return None
    conditional = {item.name for item in space.parameters if item.when is not None and item.derive is None}
    if found is None or any(config.get(name, found[name]) != found[name] for name in found.keys() - conditional):
        return None
    return found, np.array(vector, dtype=np.intp).tobytes()
