"""Command of a recorded program, sent to the writer process, which records its arguments and texts as keyed digests."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torchx_cubicml.launch.command_texts import command_texts, program_path
from torchx_cubicml.records.arguments import digested_arguments, text_digest
from torchx_cubicml.settings import child_environment

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torchx_cubicml.records.event import Event


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCommand:
    """Command of a program, as the program itself sees it.

    Args:
        name: path of the script, or dotted name of the module.
        is_module: whether the program is started with ``-m``.
        arguments: of the program.
        variables: names of the environment variables whose values are recorded as digests.
    """

    name: str
    is_module: bool = False
    arguments: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()

    @classmethod
    def from_json(cls, payload: Mapping[str, object]) -> RecordedCommand:
        """Return the command of a JSON object with a value for each argument."""
        arguments, variables = payload["arguments"], payload["variables"]
        if not isinstance(arguments, list) or not isinstance(variables, list):
            raise TypeError("a recorded command holds lists")
        return cls(
            name=str(payload["name"]),
            is_module=payload["is_module"] is True,
            arguments=tuple(map(str, arguments)),
            variables=tuple(map(str, variables)),
        )

    def recorded_in(self, event: Event, key: str) -> Event:
        """Return the event with the digests of this command's arguments and texts, under the key of the store."""
        texts = command_texts(
            program_path(self.name, is_module=self.is_module),
            self.arguments,
            variables=self.variables,
            environment=child_environment({}),
        )
        digests = {name: text_digest(text, key) for name, text in texts.items()}
        return replace(event, arguments=digested_arguments(self.arguments, key), digests=digests)
