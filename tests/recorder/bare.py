"""A guard that adds nothing to a hook, and a clock without time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def bare(hook: Callable[..., Any]) -> Callable[..., Any]:
    """Return the hook as it is."""
    return hook


class Counter:
    """Clock that says one more each time."""

    def __init__(self) -> None:
        self.said = 0.0

    def __call__(self) -> float:
        self.said += 1
        return self.said
