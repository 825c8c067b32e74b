"""A flag, and what is known of the value that it carries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchx_cubicml.launch.bindings.spelling import read_scalar, same_value, spell

if TYPE_CHECKING:
    from torchx_cubicml.records.trial import Scalar, Value


@dataclass(frozen=True, slots=True, kw_only=True)
class FlagPlace:
    """A flag, and what is known of the value that it carries.

    Args:
        flag: its name with dashes, with a ``=`` at its end where only ``name=value`` counts.
        owner: whose place it is, for messages.
        choices: legal values, of one entry where there are several.
        default: what the script does without the flag; ``None`` where unknown.
        count: entries of a per-layer value; ``None`` for a single value.
        other_flags: flags that belong to others, so that none is taken for an abbreviation of this one.
        aliases: other spellings of the flag.
        words: values and the texts that say them, where these differ; an empty text is no text.
        bare: value that the flag says without one; ``None`` where it says none, or true.
        absent: value that is said by leaving the flag out; ``None`` where the default is written out.
        elsewhere: argument of the command that may say what the flag does not; empty where there is none.
    """

    flag: str
    owner: str
    choices: tuple[Scalar, ...] = ()
    default: Value | None = None
    count: int | None = None
    other_flags: frozenset[str] = frozenset()
    aliases: tuple[str, ...] = ()
    words: tuple[tuple[Scalar, str], ...] = ()
    bare: Scalar | None = None
    absent: Value | None = None
    elsewhere: str = ""

    @property
    def is_switch(self) -> bool:
        """Whether the flag may stand without a value, and is true then."""
        single = self.count is None and bool(self.choices) and not self.flag.endswith("=")
        return single and all(isinstance(choice, bool) for choice in self.choices)

    @property
    def texts(self) -> frozenset[str]:
        """The texts that say a legal value."""
        return frozenset(map(self.text, self.choices))

    def text(self, value: Value) -> str:
        """Return the text that says ``value`` after the flag."""
        if isinstance(value, tuple):
            return ",".join(map(self.text, value))
        return next((text for known, text in self.words if text and same_value(known, value)), spell(value))

    def value(self, text: str) -> Scalar:
        """Return what a text after the flag says.

        Raises:
            LaunchError: it is no legal kind of value.
        """
        said = [known for known, word in self.words if word and word == text]
        return said[0] if said else read_scalar(text, self.choices, where=self.flag)
