"""Hooks of a space beside the program's source: calls that it lacks, and names that speak against a hook."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchx_cubicml.facts.hooks import hook_spec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torchx_cubicml.launch.program_source import ProgramSource

_NAMED = 3  # files that a message names


def uncalled_hooks(source: ProgramSource, hooks: Mapping[str, str]) -> dict[str, str]:
    """Return the parameters whose hooks change calls that a source does not name anywhere, with the reason in words.

    Other code may make the calls where the source has a ``doubt``.

    Args:
        source: of the program.
        hooks: parameter -> hook that sets it.
    """
    more = f" and {len(source.files) - _NAMED} more" if len(source.files) > _NAMED else ""
    read = f"(read: {', '.join(source.files[:_NAMED])}{more})"
    reasons = {}
    for parameter, spec in ((parameter, hook_spec(hook)) for parameter, hook in hooks.items()):
        if source.text and spec.calls and not source.has(spec.marks):
            calls = f"neither {' nor '.join(spec.calls)}" if len(spec.calls) > 1 else f"no {spec.calls[0]}"
            reasons[parameter] = f"the program calls {calls} {read}"
    return reasons


def rival_doubts(source: ProgramSource, hooks: Mapping[str, str]) -> list[str]:
    """Return the names in a source that speak against its hooks, in words.

    Args:
        source: of the program.
        hooks: parameter -> hook that sets it.
    """
    return [
        f"the program names {name}: for {hook}, {why}"
        for hook in dict.fromkeys(hooks.values())
        for name, why in hook_spec(hook).rivals.items()
        if source.has([name])
    ]
