"""Check of the store's objects: each can be read and holds an event."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchx_cubicml.cli.checks.finding import Finding, ok, skipped, some, warning, wrong

if TYPE_CHECKING:
    from torchx_cubicml.cli.checks.context import CheckContext

NAME, PLACE = "store: objects", 100


def check(context: CheckContext) -> Finding:
    """Check all objects, without the cache."""
    stored = context.stored
    if stored.cause:
        cure = "check the network and the credentials; torchx cubicml history compact makes a large store quick to read"
        return wrong(stored.cause, cure)
    if stored.problem:
        return skipped(stored.problem)
    found = f"{len(context.trials)} trials in {len(stored.events)} readable objects"
    if stored.unreadable:
        count = len(stored.unreadable)
        text = f"{found}; {count} unreadable object{'s' if count > 1 else ''}: {some(list(stored.unreadable))}"
        return warning(text, "launches skip them; move them out of the store once you have seen what they are")
    return ok(found)
