"""What is set in the job where a program has no flag for it: ``hook = "..."`` of a space file, one module for each."""

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
    """Changes what a program does, from the import of torch until its first step: all that is asked for or nothing.

    It is made by ``hook(value, peers=peers, guard=guard)`` of the module ``<name>_hook``: what is asked for, the other
    ranks, which must all do alike, and what every call of it within the program's own goes through.
    """

    def install(self) -> None:
        """Begin."""

    def release(self) -> None:
        """Step aside; what was changed stays so."""

    def refusal(self) -> str:
        """Return why the program does not do what was asked for, in words; empty where it does."""


def installed(asked: Mapping[str, Value], *, peers: Peers, guard: Guard) -> dict[str, Hook]:
    """Return the hooks that a contract asks for, at work, by name."""
    hooks: dict[str, Hook] = {}
    for name in [name for name in asked if name in HOOKS]:
        module = import_module(f"torchx_cubicml.recorder.apply.{name}_hook")
        hooks[name] = module.hook(asked[name], peers=peers, guard=guard)
        hooks[name].install()
    return hooks


def tell_refusal(name: str, hook: Hook, *, leads: bool) -> dict[str, Value]:
    """Return the fact that a hook changed less than was asked for, told once by the rank that leads; else nothing."""
    refusal = hook.refusal()
    if refusal and leads:
        warn(f"hook = '{name}' leaves things as the script sets them: {refusal}")
    return {f"{name}_hook": f"refused: {refusal}"} if refusal else {}
