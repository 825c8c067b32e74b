"""Parameters and values that a hook cannot set in a program, as its launches have shown.

Each launch of a space with a hook tells: one that sets no value by it finds out whether it could.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from torchx_cubicml.facts.hook_registry import (
    CHANGED,
    REFUSED,
    VALUES_REFUSED,
    hook_fact,
    hook_of,
    hook_spec,
    illegal_hook_fact,
)
from torchx_cubicml.records.workload import recency
from torchx_cubicml.space.parameter import BindingKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.records.values import Config, Scalar
    from torchx_cubicml.space import SearchSpace
    from torchx_cubicml.space.parameter import Parameter


@dataclass(frozen=True, slots=True, kw_only=True)
class HookRefusals:
    """Changes that the hooks of a space cannot make in a program.

    Args:
        parameters: parameter that its hook cannot set -> reason in words.
        values: parameter -> choices that the program does not allow.
    """

    parameters: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, tuple[Scalar, ...]] = field(default_factory=dict)

    def without_values(self, space: SearchSpace) -> SearchSpace:
        """Return the space without the choices that the program does not allow."""
        if not self.values:
            return space
        kept = [
            replace(item, choices=tuple(each for each in item.choices if each not in self.values.get(item.name, ())))
            for item in space.parameters
        ]
        return replace(space, parameters=tuple(kept))

    def texts(self) -> list[str]:
        """Return the parameters and values left out, with the reasons, one line each."""
        lines = [f"{name} kept as typed: its hook cannot set it: {reason}" for name, reason in self.parameters.items()]
        for name, values in self.values.items():
            lines.append(f"{name} is not set to {' or '.join(map(str, values))}: the program does not allow it")
        return lines


def hook_refusals(space: SearchSpace, current: Config, own: Iterable[Trial]) -> HookRefusals:
    """Return the changes that the hooks of ``space`` cannot make, by the latest launch that tells.

    Args:
        space: search space.
        current: the user's own config, whose values are always legal.
        own: trials of the workload.
    """
    hooked = [item for item in space.parameters if item.derive is None and hook_name(item)]
    if not hooked:
        return HookRefusals()
    trials = sorted((trial for trial in own if trial.measurement is not None), key=lambda trial: trial.started_at)
    parameters: dict[str, str] = {}
    values: dict[str, tuple[Scalar, ...]] = {}
    for item in hooked:
        hook = hook_name(item)
        latest = _latest(item, current, trials)
        if latest is None:
            continue
        reason = str(latest.observed.get(hook_fact(hook), ""))
        if reason.startswith(REFUSED):
            parameters[item.name] = reason.removeprefix(REFUSED)
        if illegal := _illegal(item, current, latest.observed.get(illegal_hook_fact(hook))):
            values[item.name] = illegal
    return HookRefusals(parameters=parameters, values=values)


def has_told(parameter: Parameter, current: Config, recorded: Iterable[Trial]) -> bool:
    """Return whether a launch has told if the hook of a parameter serves: it set the parameter, or checked the hook.

    Args:
        parameter: with a hook.
        current: the user's own config.
        recorded: trials of the workload as recorded: one that lacks the parameter knew nothing of the hook.
    """
    entries, name = _n_entries(current.get(parameter.name)), parameter.name
    return any(
        trial.measurement is not None and name in trial.config and _n_entries(trial.config[name]) == entries
        for trial in recorded
    )


def model_doubt(parameter: Parameter, current: Config, recorded: Iterable[Trial]) -> str:
    """Return the reason why the hook of a parameter may not serve, as the latest model shows; empty if it does not.

    Args:
        parameter: with a hook that no launch has told of.
        current: the user's own config.
        recorded: trials of the workload as recorded.
    """
    latest = max((trial for trial in recorded if trial.measurement is not None), key=recency, default=None)
    if latest is None:
        return ""
    spec, value = hook_spec(hook_name(parameter)), current.get(parameter.name)
    for fact, absent in spec.absent_under.items():
        if latest.observed.get(fact) == absent:
            return f"the latest launch, {latest.trial_id}, trained with {fact} = {absent}"
    counted = spec.counted()
    count = latest.observed.get(counted)
    if isinstance(value, tuple) and isinstance(count, int) and count != len(value):
        known = f"the latest launch, {latest.trial_id}, had {counted} = {count}"
        return f"{parameter.name} has {len(value)} values, but {known}"
    return ""


def refused_change(trial: Trial, space: SearchSpace, current: Config) -> str:
    """Return the fact that a hook did not make a change which the trial requested; empty if each was made.

    Such a trial runs at the speed of the program's own values, and not of its config.

    Args:
        trial: any, also a running one.
        space: search space.
        current: the user's own config.
    """
    for item in space.parameters:
        hook = hook_name(item)
        if not hook or trial.config.get(item.name) in {None, current.get(item.name)}:
            continue
        fact = str(trial.observed.get(hook_fact(hook), ""))
        if fact.startswith((REFUSED, VALUES_REFUSED)):
            return f"{item.name} was {fact}"
    return ""


def hook_name(parameter: Parameter) -> str:
    """Return the hook that sets a parameter; empty for another kind of binding."""
    binding = parameter.binding
    return hook_of(binding.name) if binding is not None and binding.kind == BindingKind.HOOK else ""


def _latest(parameter: Parameter, current: Config, trials: Sequence[Trial]) -> Trial | None:
    """Return the latest trial with a value of the parameter of as many entries as today.

    A trial that found its change to be wrong tells more than a later one that changed nothing.
    """
    entries, fact = _n_entries(current.get(parameter.name)), hook_fact(hook_name(parameter))
    like = [each for each in trials if _n_entries(each.config.get(parameter.name)) == entries]
    wrong = [each for each in like if str(each.observed.get(fact, "")).startswith(REFUSED + CHANGED)]
    return next(reversed(wrong or like), None)


def _n_entries(value: object) -> int | None:
    return len(value) if isinstance(value, tuple) else 1 if value is not None else None


def _illegal(parameter: Parameter, current: Config, observed: object) -> tuple[Scalar, ...]:
    """Return the choices among the values observed to be illegal; none where the own value is one of them."""
    illegal = tuple(choice for choice in parameter.choices if isinstance(observed, tuple) and choice in observed)
    value = current.get(parameter.name)
    own = set(value) if isinstance(value, tuple) else {value}
    return () if own & set(illegal) or len(illegal) == len(parameter.choices) else illegal
