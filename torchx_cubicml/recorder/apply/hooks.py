"""Hooks that apply a parameter inside the job for a program without a flag for it, one module ``<name>_hook`` each.

A space file selects one by ``hook = "..."``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Protocol

from torchx_cubicml.recorder.process.console import warn
from torchx_cubicml.records.hook_table import HOOKS, REFUSED, VALUES_REFUSED, hook_fact, hook_of, illegal_hook_fact

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from torchx_cubicml.recorder.ranks.peers import Peers
    from torchx_cubicml.records.values import Value

    Guard = Callable[[Callable[..., object]], Callable[..., None]]


class Hook(Protocol):
    """Hook that changes a program between the import of torch and its first step: the whole request, or nothing.

    ``hook(value, peers=peers, guard=guard, only_checks=only_checks)`` of the module ``<name>_hook`` makes it. ``value``
    is the requested value; a hook that sets several places (``mesh.tp``) gets a mapping of these. ``peers`` are the
    other ranks, which must all make the same change. ``guard`` wraps every call that the program's own calls make to
    the hook. With ``only_checks`` the hook changes nothing, and finds out whether it could: ``value`` is the program's
    own.
    """

    def install(self) -> None:
        """Install the hook."""

    def release(self) -> None:
        """Uninstall the hook; its changes stay."""

    def refusal(self) -> str:
        """Return the reason why the requested change was not made, in words; empty if it was."""

    def refuses_values(self) -> bool:
        """Return whether the reason lies in the requested values, so that others may be set."""

    def illegal_values(self) -> tuple[str, ...]:
        """Return the values that the program does not allow, whatever was requested."""


def installed(
    requested: Mapping[str, Value], checked: Mapping[str, Value], *, peers: Peers, guard: Guard
) -> dict[str, Hook]:
    """Create and install the hooks of a contract in the order of ``HOOKS``, and return them by name.

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
    for name in HOOKS:
        if name in values:
            module = import_module(f"torchx_cubicml.recorder.apply.{name}_hook")
            hooks[name] = module.hook(values[name], peers=peers, guard=guard, only_checks=name not in changed)
            hooks[name].install()
    return hooks


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


class NoTorch:
    """Hook in a program that makes steps without torch: there is nothing that it could set."""

    def install(self) -> None:
        """Do nothing."""

    def release(self) -> None:
        """Do nothing."""

    def refusal(self) -> str:
        """Return the reason."""
        return "the program made its first step without torch"

    def refuses_values(self) -> bool:
        """Return that the reason holds for all values."""
        return False

    def illegal_values(self) -> tuple[str, ...]:
        """Return no value."""
        return ()


def warn_of_refusals(hooks: Mapping[str, Hook], requested: Collection[str]) -> None:
    """Print one warning for each reason for which requested hooks made no change.

    Args:
        hooks: by their names.
        requested: places that were to be set, such as ``fsdp`` and ``mesh.tp``.
    """
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
