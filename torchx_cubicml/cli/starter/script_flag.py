"""Flag of a command or its script, as a starter space file sees it: value, default, description and meaning."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptFlag:
    """Flag of a command or of its script, or key of a config file of the command.

    Args:
        name: name of the flag with its dashes, or dotted key.
        meaning: standard name; empty where unknown.
        present: value in the command as typed, empty for a switch; ``None`` where absent.
        is_switch: whether the flag takes no value.
        choices: legal values that the script lists.
        default: value where the command has none; ``None`` where unknown.
        text: description from the script.
        file: label of the key's config file (see ``from_files``); empty for a flag.
        destination: whether it names an output, which a profiling launch redirects.
        is_variable: whether it is an environment variable.
        evidence: what recorded launches tell of its meaning, in words; empty where the name alone tells it.
        is_guess: whether the evidence leaves doubt, such as one value alone.
        kept: global batch size that the script keeps whatever its value, as recorded launches tell.
    """

    name: str
    meaning: str = ""
    present: str | None = None
    is_switch: bool = False
    choices: tuple[str, ...] = ()
    default: str | None = None
    text: str = ""
    file: str = ""
    destination: bool = False
    is_variable: bool = False
    evidence: str = ""
    is_guess: bool = False
    kept: int | None = None

    @property
    def value(self) -> str | None:
        """Value under this command, else the default; ``None`` where unknown."""
        return self.present if self.present is not None else self.default
