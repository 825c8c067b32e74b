"""Hooks that apply a parameter inside the job for a program without a flag for it, one module ``<name>_hook`` each.

A space file selects one by ``hook = "..."``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from torchx_cubicml.facts.hook_registry import (
    REFUSED,
    VALUES_REFUSED,
    HookSpec,
    hook_fact,
    hook_module,
    hook_names,
    hook_of,
    illegal_hook_fact,
)

if TYPE_CHECKING:
    import ast
    from collections.abc import Callable, Collection, Mapping, Sequence

    from torchx_cubicml.recorder.ranks.peers import Peers
    from torchx_cubicml.recorder.steps.torch_hooks import Guard
    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.records.values import Value

Offer: TypeAlias = "tuple[tuple[str | bool, ...], list[str]]"
"""Choices of a parameter in a starter space file, and its further lines; none of both where none is offered."""

_AGREE_S = 30.0  # time for the other ranks to reach the same call


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedProgram:
    """Program that a starter space file is written for.

    Args:
        trees: syntax trees of its source files.
        names: full names that they import or mention.
        taken: standard name -> value of the flag that sets it.
        trials: recorded launches of the program.
    """

    trees: Sequence[ast.Module]
    names: Collection[str]
    taken: Mapping[str, str]
    trials: Sequence[Trial]

    @property
    def called(self) -> set[str]:
        """Last parts of the names: functions that it may call."""
        return {name.rpartition(".")[2] for name in self.names}


class Hook(HookSpec):
    """Hook that changes a program between the import of torch and its first step: the whole request, or nothing.

    Its class attributes specify it. Its code imports torch, and the rest of the recorder, within functions.

    Args:
        value: the requested value; a hook that sets several places (``mesh.tp``) gets a mapping of these.
        peers: the other ranks, which must all make the same change.
        guard: wraps every call that the program's own calls make to the hook.
        only_checks: whether the hook changes nothing, and finds out whether it could: ``value`` is the program's own.
    """

    nested = False
    """True if calls within a changed call are changed too; see ``WrappedFunctions``."""

    unmet = ""
    """Refusal in a program that makes no call which the hook changes."""

    def __init__(
        self, value: Value | Mapping[str, Value], *, peers: Peers, guard: Guard, only_checks: bool = False
    ) -> None:
        from torchx_cubicml.recorder.apply.wrapped_function import WrappedFunctions

        self._peers, self._guard, self._only_checks = peers, guard, only_checks
        self._wrapped = WrappedFunctions(guard, nested=self.nested)
        self._refusal, self._refuses_values = self.unmet, False
        self._illegal: Collection[str] = ()
        self._n_votes = 0
        self._stop_looking: Callable[[], object] = bool
        self._prepare(value)

    def _prepare(self, value: Any) -> None:
        """Take the value of ``__init__``, before anything else."""

    @classmethod
    def offer(cls, program: OfferedProgram) -> Offer:
        """Return what a starter space file offers; by default ``offered``, if the program names one of ``calls``."""
        if not cls.offered or (cls.calls and program.called.isdisjoint(cls.calls)):
            return (), []
        counts_layers = cls.per == "layer" and program.taken.get("n_layers", "").isdecimal()
        return cls.offered, ['per_layer = "n_layers"'] if counts_layers else []

    def install(self) -> None:
        """Install the hook."""

    def release(self) -> None:
        """Uninstall the hook; its changes stay."""
        self._stop_looking()
        self._wrapped.release()

    def refusal(self) -> str:
        """Return the reason why the requested change was not made, in words; empty if it was."""
        return self._refusal

    def refuses_values(self) -> bool:
        """Return whether the reason lies in the requested values, so that others may be set."""
        return self._refuses_values

    def illegal_values(self) -> tuple[str, ...]:
        """Return the values that the program does not allow, whatever was requested."""
        return tuple(self._illegal)

    def _look_at_calls(self, look: Callable[..., object]) -> None:
        """Run ``look(module, args)`` before each call of a module, until the release or ``_stop_looking``."""
        from torchx_cubicml.recorder.apply.module_calls import before_every_call

        self._stop_looking = before_every_call(self._guard(look))

    def _vote(self, word: str) -> bool:
        """Return whether all ranks give the same word; an empty one is a veto."""
        self._n_votes += 1
        return self._peers.agree(f"{self.name}/{self._n_votes - 1}", word, within_s=_AGREE_S)

    def _agree(self, word: str, otherwise: str) -> bool:
        """Return whether no rank refuses and all give the same word; else refuse, without a reason ``otherwise``."""
        if not self._vote("" if self._refusal else word):
            self._refusal = self._refusal or otherwise
        return not self._refusal


class NoTorch(Hook):
    """Hook in a program that makes steps without torch: there is nothing that it could set."""

    def __init__(self) -> None:
        self._refusal, self._refuses_values, self._illegal = "the program made its first step without torch", False, ()

    def release(self) -> None:
        """Do nothing."""


def installed(
    requested: Mapping[str, Value], checked: Mapping[str, Value], *, peers: Peers, guard: Guard
) -> dict[str, Hook]:
    """Create and install the hooks of a contract in the order of their names, and return them by name.

    Of two hooks around one function, the later one sees the program's call first.

    Args:
        requested: hook -> value to set.
        checked: hook -> the program's own value; the hook only finds out whether it could set another one.
        peers: the other ranks.
        guard: wraps code that runs within the program's calls.
    """
    hooks: dict[str, Hook] = {}
    changed = {hook_of(place) for place in requested}
    values = _by_hook({**checked, **requested})
    for name in hook_names():
        if name in values:
            kind: type[Hook] = hook_module(name).hook
            hooks[name] = kind(values[name], peers=peers, guard=guard, only_checks=name not in changed)
            hooks[name].install()
    return hooks


def hook_classes() -> list[type[Hook]]:
    """Return all hooks, in the order of their names."""
    return [hook_module(name).hook for name in hook_names()]


def _by_hook(places: Mapping[str, Value]) -> dict[str, Value | dict[str, Value]]:
    """Return the value of each hook, of one with several places as a mapping.

    >>> _by_hook({"fsdp": "FULL_SHARD", "mesh.tp": 2, "mesh.dp": 4})
    {'fsdp': 'FULL_SHARD', 'mesh': {'tp': 2, 'dp': 4}}
    """
    values: dict[str, Value | dict[str, Value]] = {}
    for place, value in places.items():
        name, _, part = place.partition(".")
        inner = values.get(name, {})
        values[name] = {**inner, part: value} if part and isinstance(inner, dict) else value
    return values


def warn_of_refusals(hooks: Mapping[str, Hook], requested: Collection[str]) -> None:
    """Print one warning for each reason for which requested hooks made no change.

    Args:
        hooks: by their names.
        requested: places that were to be set, such as ``fsdp`` and ``mesh.tp``.
    """
    from torchx_cubicml.recorder.process.console import warn

    requested_hooks = {hook_of(place) for place in requested}
    names_of: dict[str, list[str]] = {}
    for name, hook in hooks.items():
        if name in requested_hooks and (refusal := hook.refusal()):
            names_of.setdefault(refusal, []).append(f"'{name}'")
    for refusal, names in names_of.items():
        were = "was" if len(names) == 1 else "were"
        warn(f"hook = {' and '.join(names)} {were} not applied as requested: {refusal}")


def hook_facts(name: str, hook: Hook) -> dict[str, Value]:
    """Return the facts of a hook: its refusal, and the values that it cannot set."""
    facts: dict[str, Value] = {}
    refusal = hook.refusal()
    if refusal:
        facts[hook_fact(name)] = f"{VALUES_REFUSED if hook.refuses_values() else REFUSED}{refusal}"
    if illegal := hook.illegal_values():
        facts[illegal_hook_fact(name)] = illegal
    return facts
