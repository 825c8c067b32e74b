"""Command of a recorded program, sent to the writer process, which records its arguments and texts as keyed digests.

Its texts themselves are recorded only where the user keeps commands.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torchx_cubicml.history.present_command import LAUNCHED
from torchx_cubicml.launch.command_texts import command_texts, program_path, recorded_variables, user_program
from torchx_cubicml.records.arguments import KEY_ID, digested_arguments, text_digest
from torchx_cubicml.records.json_fields import object_of, texts_of
from torchx_cubicml.records.kept_command import kept_command
from torchx_cubicml.records.values import freeze_values
from torchx_cubicml.settings import child_environment

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torchx_cubicml.records.event import Event
    from torchx_cubicml.records.values import Value

_THREADS = "OMP_NUM_THREADS"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCommand:
    """Command of a program, as the program itself sees it.

    Args:
        name: path of the script, or dotted name of the module.
        is_module: whether the program is started with ``-m``.
        arguments: of the program.
        variables: names of the environment variables whose values are recorded as digests; ``None`` where no launcher
            has looked for them.
        launched: digest of the program's file as the launcher read it; empty where unknown.
        kept: the command as ``repeatable_command`` gives it, whose texts are recorded; ``None`` if it is not kept.
    """

    name: str
    is_module: bool = False
    arguments: tuple[str, ...] = ()
    variables: tuple[str, ...] | None = ()
    launched: str = ""
    kept: Mapping[str, object] | None = None

    @property
    def path(self) -> Path | None:
        """Path of the program's file; ``None`` where it is not found."""
        name = self.name if self.is_module else user_program(self.name, self.arguments)
        return program_path(name, is_module=self.is_module)

    @classmethod
    def from_json(cls, payload: Mapping[str, object]) -> RecordedCommand:
        """Return the command of a JSON object with a value for each argument."""
        arguments, variables = payload["arguments"], payload["variables"]
        if not isinstance(arguments, list) or not isinstance(variables, list | None):
            raise TypeError("a recorded command holds lists")
        return cls(
            name=str(payload["name"]),
            is_module=payload["is_module"] is True,
            arguments=tuple(map(str, arguments)),
            variables=None if variables is None else tuple(map(str, variables)),
            launched=str(payload.get("launched", "")),
            kept=None if payload.get("kept") is None else object_of(payload["kept"], "kept"),
        )

    def recorded_in(self, event: Event, key: str) -> Event:
        """Return the event with the digests of this command's arguments and texts, under the key of the store."""
        program, environment = self.path, child_environment({})
        variables = _variables(program, environment) if self.variables is None else self.variables
        texts = command_texts(program, self.arguments, variables=variables, environment=environment)
        texts |= {LAUNCHED: self.launched} if self.launched else {}
        digests = {name: text_digest(text, key) for name, text in {**texts, KEY_ID: ""}.items()}
        command: Mapping[str, Value] = {}
        if self.kept is not None:
            names = sorted({*texts_of(self.kept["variables"], "variables"), *variables})
            command = kept_command(
                texts_of(self.kept["words"], "words"),
                variables={name: environment[name] for name in names if name in environment},
                hooks=freeze_values(self.kept["hooks"], where="hooks"),
                files=freeze_values(self.kept["files"], where="files"),
            )
        return replace(event, arguments=digested_arguments(self.arguments, key), digests=digests, command=command)


def _variables(program: Path | None, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of the variables of a launch without a launcher of ours, as that would have found them.

    torchrun sets ``OMP_NUM_THREADS`` to 1 where several processes of a node leave it unset.
    """
    is_set_by_torchrun = environment.get("LOCAL_WORLD_SIZE", "1") != "1" and environment.get(_THREADS) == "1"
    return recorded_variables(program, (name for name in environment if not (is_set_by_torchrun and name == _THREADS)))
