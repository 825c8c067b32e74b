"""Migration of earlier trials to the present space file (schema migration), so that a file that changes loses none.

A parameter that an earlier launch did not record has, in this order: the value under a former name (``was``) or among
the workload facts, the value that the recorded arguments of that launch state, or that the digests of its variables and
config files tell, the declared default unless another value was observed (of a variable or file only where it is known
to have been left out), the observed value if it is reliable. Otherwise it stays missing, which the predictors accept.
What follows from the values that are known, as the remaining ranks of a mesh, is calculated as for a present command.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from torchx_cubicml.errors import SpaceError
from torchx_cubicml.history.recorded_values import RecordedValues, is_in_texts
from torchx_cubicml.records.arguments import restored_arguments
from torchx_cubicml.records.standard_names import LEFT_TO_PLANNER
from torchx_cubicml.records.values import MAX_ITEMS
from torchx_cubicml.records.workload import PROJECT, collapsed, is_same_program, is_same_workload
from torchx_cubicml.space import BindingKind, implied_values
from torchx_cubicml.space.constraints import is_count
from torchx_cubicml.space.spelling import same_value, spell

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from torchx_cubicml.history.history import History
    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.records.values import Config, Value, Workload
    from torchx_cubicml.space import Parameter, SearchSpace

_SIZES = frozenset({"nnodes", "nproc_per_node"})


def migrated_trials(history: History) -> list[Trial]:
    """Return the trials of a history in their order; those of the same program in the terms of its space.

    An observed value is reliable if, in some launch, it equals the value that was requested or that the command now
    has, and no launch contradicts it: a batch may be split over ranks, and FSDP on one rank runs NO_SHARD.

    >>> from torchx_cubicml.history.history import History
    >>> from torchx_cubicml.space import Parameter, SearchSpace
    >>> from torchx_cubicml.records.trial import Trial
    >>> batch = Parameter(name="batch", choices=(1, 2), was=("bs",))
    >>> workers = Parameter(name="workers", choices=(0, 8), default=0)
    >>> trial = Trial.completed(workload={}, config={"bs": 2}, tokens_per_second=9.0)
    >>> space = SearchSpace(parameters=(batch, workers))
    >>> [each.config for each in migrated_trials(History(space=space, workload={}, current={}, trials=[trial]))]
    [{'batch': 2, 'workers': 0}]
    """
    migration, space = _Migration(history), history.space
    migrated = [migration.of(trial) if migration.concerns(trial) else trial for trial in history.trials]
    missing = {item.name for item in space.parameters if item.derive is None}
    own = [trial for trial in migrated if is_same_workload(trial, history.workload)]
    if all(missing <= trial.config.keys() for trial in own):
        return migrated
    return [*map(_ObservedValues(space, own, history.current).fill, migrated)]


class _Migration:
    """Migration by what each trial itself records."""

    def __init__(self, history: History) -> None:
        self._keys, self._command = history.keys, history.command
        self._space, self._workload = history.space, history.workload
        space, workload = self._space, self._workload
        self._texts = frozenset({*_texts_of(space), *map(spell, [*workload.values(), *history.current.values()])})
        self._facts = {fact.name: fact for fact in space.workload}
        self._names = {item.name for item in space.parameters} | self._facts.keys()
        self._former = {name for item in space.parameters for name in item.was}
        self._sizes = _SIZES & workload.keys()
        self._present: dict[tuple[int, int], tuple[bool, Trial]] = {}  # keeps a trial alive, as ids are the keys
        self._recorded = RecordedValues(history)
        self._stated: dict[tuple[object, ...], Mapping[str, Value | None]] = {}

    def concerns(self, trial: Trial) -> bool:
        """Return whether a trial is of the present program, so that the space file describes it."""
        return is_same_program(trial, self._workload)

    def of(self, trial: Trial) -> Trial:
        """Return the trial with the facts and the config that the present space file asks for, as far as known."""
        pair = id(trial.workload), id(trial.config)  # trials of a store share them
        if pair not in self._present:
            self._present[pair] = self._is_present(trial), trial
        if self._present[pair][0]:
            return trial
        lacks = self._names - trial.config.keys() - trial.workload.keys()
        stated = self._stated_by(trial) if lacks else {}
        workload = self._workload_of(trial, stated)
        config = self._config_of(trial, stated, workload)
        if config == trial.config and workload == trial.workload:
            return trial
        return replace(trial, workload=workload, config=config)

    def _workload_of(self, trial: Trial, stated: Mapping[str, Value | None]) -> dict[str, Value]:
        workload = {name: value for name, value in trial.workload.items() if name != PROJECT}
        workload |= {name: self._workload[name] for name in (PROJECT,) if name in self._workload}
        workload |= {**{name: size for name, size in _sizes(trial).items() if name in self._sizes}}
        for name, fact in self._facts.items():
            value = stated.get(name) if fact.binding is not None else fact.value
            if name not in workload and name not in trial.config and value is not None:
                workload[name] = value
        return workload

    def _config_of(self, trial: Trial, stated: Mapping[str, Value | None], workload: Workload) -> dict[str, Value]:
        config = {name: value for name, value in trial.config.items() if name not in self._former}
        for item in self._space.parameters:
            value = _recorded(item, trial)
            if value is None:
                value = stated[item.name] if item.name in stated else self._unstated(item, trial)
            if value is None and item.binding is not None and item.binding.kind == BindingKind.TORCHRUN:
                value = _sizes(trial).get(item.binding.name)
            if value is not None:
                config[item.name] = _in_form(item, value, {**trial.observed, **workload, **config})
        if all(item.name in config for item in self._space.parameters if item.derive is None):
            with suppress(SpaceError):  # values that do not divide imply nothing
                config |= implied_values(self._space, {**workload, **config})
        return config

    def _unstated(self, item: Parameter, trial: Trial) -> Value | None:
        """Return a value that no recorded argument states."""
        is_flag = item.binding is not None and item.binding.kind == BindingKind.FLAG
        if is_in_texts(item.binding) and not (is_flag and trial.arguments is None):
            value = self._recorded.of(item, trial)
            return _default(item, trial) if value == item.default and value is not None else value
        return _default(item, trial)

    def _is_present(self, trial: Trial) -> bool:
        """Return whether nothing is missing, renamed or of another form."""
        parameters, config = self._space.parameters, trial.config
        if trial.workload.get(PROJECT) != self._workload.get(PROJECT):
            return False
        if not (trial.workload.keys() >= self._facts.keys() | self._sizes and self._former.isdisjoint(config)):
            return False
        return all(
            item.name in config and isinstance(config[item.name], tuple) == (item.counted_by is not None)
            for item in parameters
        )

    def _stated_by(self, trial: Trial) -> Mapping[str, Value | None]:
        if trial.arguments is None:
            return {}
        counts = {item.counted_by for item in self._space.parameters if isinstance(item.counted_by, str)}
        known = {name: value for name in sorted(counts) if (value := trial.fact(name)) is not None}
        key = (trial.arguments, *known.items())
        if key not in self._stated:
            arguments = restored_arguments(trial.arguments, self._texts, self._keys)
            self._stated[key] = self._command.stated(arguments, self._space, known)
        return self._stated[key]


class _ObservedValues:
    """Observed values that may stand for requested ones.

    Args:
        space: the present space file.
        own: trials of the workload.
        current: the user's own config.
    """

    def __init__(self, space: SearchSpace, own: Sequence[Trial], current: Config) -> None:
        facts = {item: item.observed_as for item in space.parameters if item.derive is None}
        self._own = {id(trial) for trial in own}
        self._reliable = {
            item: fact for item, fact in facts.items() if fact and _is_reliable(item.name, fact, own, current)
        }

    def fill(self, trial: Trial) -> Trial:
        """Return a trial of the workload with the values that it lacks as they were observed, if that is reliable."""
        if id(trial) not in self._own:
            return trial
        facts = {**trial.observed, **trial.workload, **trial.config}
        found = {
            item.name: _in_form(item, trial.observed[fact], facts)
            for item, fact in self._reliable.items()
            if item.name not in trial.config and fact in trial.observed
        }
        return replace(trial, config={**trial.config, **found}) if found else trial


def _texts_of(space: SearchSpace) -> Iterator[str]:
    """Yield the words of a space file that may stand in a command: flags, and values as they are spelled."""
    bindings = [item.binding for item in space.parameters] + [fact.binding for fact in space.workload]
    for binding in bindings:
        if binding is not None:
            yield from (binding.name, *binding.aliases, *(text for _, text in binding.words))
    for parameter in space.parameters:
        yield from map(spell, parameter.choices)


def _sizes(trial: Trial) -> dict[str, int]:
    """Return the sizes of the job that follow from its record; a launch without a space file records no config."""
    world_size, nnodes = trial.fact("world_size"), trial.fact("nnodes")
    if not is_count(world_size) or not is_count(nnodes) or world_size % nnodes:
        return {}
    return {"nnodes": nnodes, "nproc_per_node": world_size // nnodes}


def _recorded(parameter: Parameter, trial: Trial) -> Value | None:
    names = (parameter.name, *parameter.was)
    found = (source[name] for source in (trial.config, trial.workload) for name in names if name in source)
    return next(found, None)


def _default(parameter: Parameter, trial: Trial) -> Value | None:
    """Return the declared default, unless another value was observed; a choice left to a planner may show as any."""
    observed = trial.observed.get(parameter.observed_as)
    is_open = collapsed(parameter.default) == LEFT_TO_PLANNER if parameter.default is not None else False
    if parameter.default is None or observed is None or is_open or _is_alike(parameter.default, observed):
        return parameter.default
    return None


def _in_form(parameter: Parameter, value: Value, facts: Mapping[str, Value]) -> Value:
    """Return one value per entry for a parameter with entries, and a single one for another, where that is possible."""
    if parameter.counted_by is None:
        return collapsed(value)
    count = facts.get(parameter.counted_by) if isinstance(parameter.counted_by, str) else parameter.counted_by
    return (value,) * count if not isinstance(value, tuple) and is_count(count) and count <= MAX_ITEMS else value


def _is_reliable(name: str, fact: str, own: Sequence[Trial], current: Config) -> bool:
    observing = [trial for trial in own if fact in trial.observed]
    pairs = [(trial.config[name], trial.observed[fact]) for trial in observing if name in trial.config]
    if not all(_is_alike(*pair) for pair in pairs):
        return False
    return bool(pairs) or any(name in current and _is_alike(current[name], trial.observed[fact]) for trial in observing)


def _is_alike(one: Value, other: Value) -> bool:
    return same_value(collapsed(one), collapsed(other))
