"""Failures that another launch would repeat: a flag that the script does not know, or the same early failure twice.

They set a parameter aside, or one of its values if others ran. They are computed from the trials alone, so that a
resumed tune knows the same.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from torchx_cubicml.history.hook_refusals import HookRefusals, hook_refusals
from torchx_cubicml.predictors.features.history import config_key
from torchx_cubicml.records.trial import State
from torchx_cubicml.records.workload import collapsed, value_key
from torchx_cubicml.space.fixed import with_fixed_values
from torchx_cubicml.tuner.unknown_names import plain_name, unknown_names

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.records.values import Config, Scalar
    from torchx_cubicml.space import SearchSpace
    from torchx_cubicml.space.parameter import Parameter

_TWICE = 2
_VARYING = re.compile(r"0x[0-9a-f]+|(?:[\w.~-]*/)+[\w.-]*|[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class CertainFailures:
    """Failures of one tune that another launch would repeat.

    Args:
        set_aside: parameter that stays at the user's own value -> failed trial that shows that no other value runs.
        values: parameter and value that is not tried again, while others are -> failed trial that shows it.
        configs: ``config_key`` of the configs that are not launched again.
        refusals: parameters and values that a hook cannot set in this program.
        repeated: latest of two equal failures that no single parameter explains, while no other config ran; ``None``
            without one. The tune is over then, unless a launch in flight runs.
    """

    set_aside: Mapping[str, Trial] = field(default_factory=dict)
    values: Mapping[tuple[str, Scalar], Trial] = field(default_factory=dict)
    configs: frozenset[str] = frozenset()
    refusals: HookRefusals = field(default_factory=HookRefusals)
    repeated: Trial | None = None

    def held(self, space: SearchSpace, current: Config) -> SearchSpace:
        """Return the space without the values that are set aside, and with the own values of such parameters alone."""
        if not (self.kept or self.values or self.refusals.values):
            return space
        space = self.refusals.without_values(space)
        parameters = tuple(map(self._without_values, space.parameters))
        return with_fixed_values(replace(space, parameters=parameters), current, self._fixed(space))

    @property
    def kept(self) -> tuple[str, ...]:
        """Parameters that stay at the user's own value."""
        return (*self.set_aside, *self.refusals.parameters)

    def _without_values(self, parameter: Parameter) -> Parameter:
        left_out = {value_key(value) for name, value in self.values if name == parameter.name}
        choices = tuple(choice for choice in parameter.choices if value_key(choice) not in left_out)
        return replace(parameter, choices=choices) if choices else parameter

    def _fixed(self, space: SearchSpace) -> set[str]:
        """Return the names of the parameters with their own values alone: those without a choice left, too."""
        gone = {(name, value_key(value)) for name, value in self.values}
        without = {
            item.name
            for item in space.parameters
            if item.choices and all((item.name, value_key(choice)) in gone for choice in item.choices)
        }
        return {*self.kept, *without}

    def value_texts(self) -> dict[str, Trial]:
        """Return the values that are set aside, in words, with their trials."""
        return {f"{name} = {value}": trial for (name, value), trial in self.values.items()}


def certain_failures(
    space: SearchSpace, current: Config, own: Sequence[Trial], before: Sequence[Trial] = ()
) -> CertainFailures:
    """Return the failures of this tune that another launch would repeat.

    A failure counts if the program ended itself before its first optimizer step. A parameter is set aside if the
    program says that it does not know its flag or key, or if the same failure was seen twice, every config that failed
    so changes the parameter, and no config that changes it ever ran. A value is set aside if the same failure was seen
    twice with it, it is the only such value, and other values of its parameter ran.

    Args:
        space: search space.
        current: the user's own config.
        own: trials of this tune, in order.
        before: trials of the workload from before this tune; only those that ran count.
    """
    baseline = config_key(current)
    found = _Explanation(space, current, [trial for trial in (*own, *before) if _ran(trial)])
    for trial in own:
        if is_early_failure(trial) and config_key(trial.config) != baseline:
            found.add(trial)
    return CertainFailures(
        set_aside=found.set_aside,
        values=found.values,
        configs=frozenset(found.configs),
        refusals=hook_refusals(space, current, [*before, *own]),
        repeated=found.repeated,
    )


class _Explanation:
    """Early failures, one after another, and what they set aside; the fields are those of ``CertainFailures``.

    Args:
        space: search space.
        current: the user's own config.
        ran: trials that ran, at whatever time.
    """

    def __init__(self, space: SearchSpace, current: Config, ran: Sequence[Trial]) -> None:
        self._current = current
        changed = [_changed(trial.config, current) for trial in ran]
        self._others_ran = any(config_key(trial.config) != config_key(current) for trial in ran)
        self._ran_values = {pair for trial in ran for pair in _values(trial.config)}
        self._can_hold = {item.name: item for item in space.parameters if _can_be_held(item, current)}
        self._never_ran = self._can_hold.keys() - set[str]().union(*changed)
        self._alike: defaultdict[str, list[Trial]] = defaultdict(list)
        self.set_aside: dict[str, Trial] = {}
        self.values: dict[tuple[str, Scalar], Trial] = {}
        self.configs: set[str] = set()
        self.repeated: Trial | None = None

    def add(self, trial: Trial) -> None:
        """Take in the next failure."""
        changed = _changed(trial.config, self._current) & self._never_ran
        unknown = unknown_names(trial.reason)
        named = [name for name in sorted(changed) if unknown & _spellings(self._can_hold[name])]
        self.set_aside |= {name: trial for name in named if name not in self.set_aside}
        with_value = _values(trial.config).keys() & {(name, value_key(value)) for name, value in self.values}
        if named or changed & self.set_aside.keys() or with_value:
            self.configs.add(config_key(trial.config))
            return
        same = self._alike[_signature(trial.reason)]
        same.append(trial)
        if len(same) >= _TWICE:
            self.configs |= {config_key(each.config) for each in same}
            self._explain(same)

    def _explain(self, same: Sequence[Trial]) -> None:
        """Set aside what explains equal failures, of which the last one is new."""
        shared = set.intersection(*(_changed(each.config, self._current) for each in same)) & self._never_ran
        shared = {name for name in shared if self._can_hold[name].derive is None}  # the others follow from these
        values = self._shared_values(same)
        if len(shared) == 1 or (shared and self._others_ran):
            self.set_aside |= dict.fromkeys(sorted(shared), same[-1])
        elif len(values) == 1:
            self.values |= dict.fromkeys(values, same[-1])
        elif not self._others_ran:
            self.repeated = same[-1]

    def _shared_values(self, same: Sequence[Trial]) -> list[tuple[str, Scalar]]:
        """Return the values of the last failure that an earlier one had, too, and that never ran while others did."""
        earlier = {pair for each in same[:-1] for pair in _values(each.config)}
        return [
            (name, value)
            for (name, key), value in _values(same[-1].config).items()
            if (name, key) in earlier - self._ran_values
            and name in self._can_hold.keys() - self._never_ran
            and self._can_hold[name].derive is None
            and self._can_hold[name].when is None
            and value_key(value) != value_key(collapsed(self._current[name]))
        ]


def repeated_failure(trial: Trial) -> str:
    """Return the reason why a tune ends after two equal failures, in words."""
    return f"two launches failed in the same way before their first step: {last_line(trial.reason)}"


def last_line(reason: str) -> str:
    """Return the last line of the reason of a failure."""
    return reason.strip().splitlines()[-1]


def is_early_failure(trial: Trial) -> bool:
    """Return whether the program ended itself with an error, for a known reason, before its first optimizer step."""
    return (
        trial.state is State.USER_ERROR
        and trial.measurement is None
        and "optimizer" not in trial.observed
        and bool(trial.reason.strip())
    )


def _ran(trial: Trial) -> bool:
    return (
        trial.measurement is not None
        or "optimizer" in trial.observed
        or trial.state in {State.COMPLETED, State.OUT_OF_MEMORY}
    )


def _changed(config: Config, current: Config) -> set[str]:
    return {
        name
        for name, value in config.items()
        if name not in current or value_key(collapsed(value)) != value_key(collapsed(current[name]))
    }


def _values(config: Config) -> dict[tuple[str, Hashable], Scalar]:
    """Return the name and ``value_key`` of each single value of a config, with the value."""
    single = {name: collapsed(value) for name, value in config.items()}
    return {(name, value_key(value)): value for name, value in single.items() if not isinstance(value, tuple)}


def _signature(reason: str) -> str:
    """Return the last line of a reason without its paths and numbers, by which two failures are the same."""
    return _VARYING.sub("#", last_line(reason))


def _spellings(parameter: Parameter) -> set[str]:
    binding = parameter.binding
    names = (binding.name, *binding.aliases, ".".join(binding.key)) if binding is not None else ()
    return {plain_name(name) for name in (parameter.name, *names)} - {""}


def _can_be_held(parameter: Parameter, current: Config) -> bool:
    value = collapsed(current[parameter.name]) if parameter.name in current else None
    return value is not None and not isinstance(value, tuple)
