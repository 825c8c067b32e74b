"""Hooks that apply a parameter inside the job for a program without a flag for it, one module ``<name>_hook`` each.

A space file selects one by ``hook = "..."``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Protocol

from torchx_cubicml.recorder.process.console import warn
from torchx_cubicml.space.trainers import HOOKS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torchx_cubicml.recorder.ranks.peers import Peers
    from torchx_cubicml.records.trial import Value

    Guard = Callable[[Callable[..., object]], Callable[..., None]]


class Hook(Protocol):
    """Hook that changes a program between the import of torch and its first step: the whole request, or nothing.

    ``hook(value, peers=peers, guard=guard)`` of the module ``<name>_hook`` makes it. ``value`` is the requested value.
    ``peers`` are the other ranks, which must all make the same change. ``guard`` wraps every call that the program's
    own calls make to the hook.
    """

    def install(self) -> None:
        """Install the hook."""

    def release(self) -> None:
        """Uninstall the hook; its changes stay."""

    def refusal(self) -> str:
        """Return the reason why the requested change was not made, in words; empty if it was."""


def installed(requested: Mapping[str, Value], *, peers: Peers, guard: Guard) -> dict[str, Hook]:
    """Create and install the hooks that a contract requests, and return them by name."""
    hooks: dict[str, Hook] = {}
    for name in [name for name in requested if name in HOOKS]:
        module = import_module(f"torchx_cubicml.recorder.apply.{name}_hook")
        hooks[name] = module.hook(requested[name], peers=peers, guard=guard)
        hooks[name].install()
    return hooks


def refusal_facts(name: str, hook: Hook, *, leads: bool) -> dict[str, Value]:
    """Return the fact that a hook refused its change, with one warning on rank 0; nothing if the hook made it."""
    refusal = hook.refusal()
    if refusal and leads:
        warn(f"hook = '{name}' was not applied as requested: {refusal}")
    return {f"{name}_hook": f"refused: {refusal}"} if refusal else {}
