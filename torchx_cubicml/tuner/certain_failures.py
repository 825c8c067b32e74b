"""Failures that another launch would repeat: a flag that the script does not know, or the same early failure twice.

They are computed from the trials alone, so that a resumed tune knows the same.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torchx_cubicml.predictors.features.history import config_key
from torchx_cubicml.records.trial import State
from torchx_cubicml.records.workload import collapsed, value_key
from torchx_cubicml.space.fixed import with_fixed_values

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torchx_cubicml.records.trial import Config, Trial
    from torchx_cubicml.space import SearchSpace
    from torchx_cubicml.space.parameter import Parameter

_TWICE = 2
# A script that names a flag or key that it does not know. It then does not know the parameter, whatever its value.
_UNKNOWN_NAME = re.compile(
    r"(?:unknown|unrecogni[sz]ed|unexpected|no such|undefined)(?: (?!values?\b)\S+){0,2}? "
    r"(?:keyword argument|argument|option|flag|key|parameter|field|setting)(?:s|\(s\))?\b(?! value)"
    r"|not used by the \w*ArgumentParser|could not override|is not in struct",
    re.IGNORECASE,
)
_VARYING = re.compile(r"0x[0-9a-f]+|(?:[\w.~-]*/)+[\w.-]*|[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class CertainFailures:
    """Failures of one tune that another launch would repeat.

    Args:
        set_aside: parameter that stays at the user's own value -> failed trial that shows that no other value runs.
        configs: ``config_key`` of the configs that are not launched again.
        repeated: latest of two equal failures that no single parameter explains, while no other config ran; ``None``
            without one. The tune is over then, unless a launch in flight runs.
    """

    set_aside: Mapping[str, Trial] = field(default_factory=dict)
    configs: frozenset[str] = frozenset()
    repeated: Trial | None = None

    def held(self, space: SearchSpace, current: Config) -> SearchSpace:
        """Return the space in which the parameters that are set aside have their own values alone."""
        if not self.set_aside:
            return space
        return with_fixed_values(space, current, self.set_aside)


def certain_failures(
    space: SearchSpace, current: Config, own: Sequence[Trial], before: Sequence[Trial] = ()
) -> CertainFailures:
    """Return the failures of this tune that another launch would repeat.

    A failure counts if the program ended itself before its first optimizer step. A parameter is set aside if the
    program says that it does not know its flag or key, or if the same failure was seen twice, every config that failed
    so changes the parameter, and no config that changes it ever ran.

    Args:
        space: search space.
        current: the user's own config.
        own: trials of this tune, in order.
        before: trials of the workload from before this tune; only those that ran count.
    """
    baseline = config_key(current)
    ran = [trial for trial in (*own, *before) if _ran(trial)]
    others_ran = any(config_key(trial.config) != baseline for trial in ran)
    can_hold = {item.name: item for item in space.parameters if _can_be_held(item, current)}
    never_ran = can_hold.keys() - {name for trial in ran for name in _changed(trial.config, current)}
    free = {name for name, item in can_hold.items() if item.derive is None}  # the others follow from these
    set_aside: dict[str, Trial] = {}
    alike: defaultdict[str, list[Trial]] = defaultdict(list)
    certain: set[str] = set()
    repeated: Trial | None = None
    for trial in own:
        if not is_early_failure(trial) or config_key(trial.config) == baseline:
            continue
        changed = _changed(trial.config, current) & never_ran
        named = [name for name in sorted(changed) if _is_unknown(can_hold[name], trial.reason)]
        set_aside |= {name: trial for name in named if name not in set_aside}
        if named or changed & set_aside.keys():
            certain.add(config_key(trial.config))
            continue
        same = alike[_signature(trial.reason)]
        same.append(trial)
        if len(same) < _TWICE:
            continue
        certain |= {config_key(each.config) for each in same}
        shared = set.intersection(*(_changed(each.config, current) for each in same)) & never_ran & free
        if len(shared) == 1 or (shared and others_ran):
            set_aside |= dict.fromkeys(sorted(shared), trial)
        elif not others_ran:
            repeated = trial
    return CertainFailures(set_aside=set_aside, configs=frozenset(certain), repeated=repeated)


def repeated_failure(trial: Trial) -> str:
    """Return why a tune ends after two equal failures, in words."""
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


def _signature(reason: str) -> str:
    """Return the last line of a reason without its paths and numbers, by which two failures are the same."""
    return _VARYING.sub("#", last_line(reason))


def _is_unknown(parameter: Parameter, reason: str) -> bool:
    """Return whether a program says in ``reason`` that it does not know the flag or key of ``parameter``."""
    for line in reason.splitlines():
        found = _UNKNOWN_NAME.search(line)
        if found is not None and any(_names(line, name) for name in _spellings(parameter)):
            return True
    return False


def _spellings(parameter: Parameter) -> Iterable[str]:
    binding = parameter.binding
    if binding is None:
        return (parameter.name,)
    names = (binding.name, *binding.aliases, ".".join(binding.key))
    return {name.strip("-=") for name in names if name.strip("-=")} | {parameter.name}


def _names(line: str, name: str) -> bool:
    word = re.sub(r"[-_]", "[-_]", re.escape(name).replace("\\-", "-"))
    return re.search(rf"(?<![\w.])-{{0,2}}{word}(?![\w-])", line) is not None


def _can_be_held(parameter: Parameter, current: Config) -> bool:
    value = collapsed(current[parameter.name]) if parameter.name in current else None
    return value is not None and not isinstance(value, tuple)
