"""Hooks of a space that stand in front of calls which the program's source does not contain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchx_cubicml.launch.program_source import ProgramSource
from torchx_cubicml.records.hook_table import HOOK_CALLS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torchx_cubicml.launch.launch import Launch

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


def uncalled_hooks(launch: Launch, hooks: Mapping[str, str]) -> list[UncalledHook]:
    """Return the hooks whose calls the source of a launch does not name anywhere; nothing is run.

    Args:
        launch: the command as typed.
        hooks: parameter -> hook that sets it.
    """
    parameters: dict[str, list[str]] = {}
    for parameter, hook in hooks.items():
        if hook in HOOK_CALLS:
            parameters.setdefault(hook, []).append(parameter)
    source = ProgramSource.of(launch) if parameters else ProgramSource(files=(), text="")
    return [
        UncalledHook(
            parameters=tuple(names),
            hook=hook,
            calls=HOOK_CALLS[hook].names,
            files=source.files,
            doubt=source.doubt,
        )
        for hook, names in parameters.items()
        if source.text and not source.has(HOOK_CALLS[hook].marks)
    ]
