"""Hooks of a space beside the program's source: calls that it lacks, and names that speak against a hook."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchx_cubicml.facts.hooks import hook_spec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torchx_cubicml.launch.program_source import ProgramSource

_NAMED = 3  # files that a message names


@dataclass(frozen=True, slots=True, kw_only=True)
class UncalledHook:
    """Hook that no call in the program's source leads to.

    Args:
        parameters: those that it sets.
        hook: its name.
        calls: functions, one of which the program must call.
        files: source files that were read.
        doubt: why other code may make the call, as the predicate of a sentence on the program; empty where it is
            certain that none does.
    """

    parameters: tuple[str, ...]
    hook: str
    calls: tuple[str, ...]
    files: tuple[str, ...]
    doubt: str

    @property
    def reason(self) -> str:
        """Reason, in words: the calls that the source lacks."""
        calls = f"neither {' nor '.join(self.calls)}" if len(self.calls) > 1 else f"no {self.calls[0]}"
        more = f" and {len(self.files) - _NAMED} more" if len(self.files) > _NAMED else ""
        return f"the program calls {calls} (read: {', '.join(self.files[:_NAMED])}{more})"


def uncalled_hooks(source: ProgramSource, hooks: Mapping[str, str]) -> list[UncalledHook]:
    """Return the hooks whose calls a source does not name anywhere.

    Args:
        source: of the program.
        hooks: parameter -> hook that sets it.
    """
    parameters: dict[str, list[str]] = {}
    for parameter, hook in hooks.items():
        if hook_spec(hook).calls:
            parameters.setdefault(hook, []).append(parameter)
    return [
        UncalledHook(
            parameters=tuple(names),
            hook=hook,
            calls=hook_spec(hook).calls,
            files=source.files,
            doubt=source.doubt,
        )
        for hook, names in parameters.items()
        if source.text and not source.has(hook_spec(hook).marks)
    ]


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
