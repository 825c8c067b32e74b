"""A user's own log format: a regular expression, and which of its groups says what."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torchx_cubicml.records.bounded_pattern import BoundedPattern

if TYPE_CHECKING:
    from collections.abc import Mapping

READINGS = (
    "tokens_per_second",
    "tokens_per_second_per_device",
    "samples_per_second",
    "samples_per_second_per_device",
    "step_time_s",
    "step_time_ms",
    "samples",
    "tokens",
    "step",
)
"""What a group of a log format may say.

Rates are of the whole job unless their name says ``_per_device``; ``step_time_s`` and ``step_time_ms`` are of one
optimizer step; ``samples`` and ``tokens`` are what the whole job consumes in it; ``step`` is its number, by which a
line that is printed twice counts once.
"""

TELLING = READINGS[:6]
"""Those of which one at least must be there."""

ALTERNATIVES = (
    ("tokens_per_second", "tokens_per_second_per_device"),
    ("samples_per_second", "samples_per_second_per_device"),
    ("step_time_s", "step_time_ms"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPattern:
    """Which lines of a program's output tell of its throughput, and how.

    Args:
        pattern: regular expression; what it finds anywhere in a line counts.
        groups: reading -> the number or the name of the group that says it; a group that has a reading's name says it
            without an entry.

    Raises:
        ValueError: the pattern is none that can be searched for in bounded time, or no group says a throughput; the
            message says the rule.
    """

    pattern: str
    groups: Mapping[str, int | str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        readings = self.readings(BoundedPattern(self.pattern))
        if not set(readings) & set(TELLING):
            raise ValueError(f"a group is wanted that says one of {', '.join(TELLING)}")
        for pair in ALTERNATIVES:
            if set(pair) <= set(readings):
                raise ValueError(f"{' and '.join(pair)} cannot both be said")

    def readings(self, pattern: BoundedPattern) -> dict[str, int]:
        """Return the number of the group that says each reading.

        Args:
            pattern: this format's own, compiled.

        Raises:
            ValueError: a name is no reading, or a group is not there.
        """
        named = pattern.compiled.groupindex
        said = {name: number for name, number in named.items() if name in READINGS}
        unused = [name for name in named if name not in READINGS and name not in self.groups.values()]
        for name in (*self.groups, *unused):
            if name not in READINGS:
                raise ValueError(f"{name!r:.60} is nothing that a group can say; legal are {', '.join(READINGS)}")
        for reading, group in self.groups.items():
            number = named.get(group) if isinstance(group, str) else group
            if number is None or isinstance(number, bool) or not 1 <= number <= pattern.compiled.groups:
                count = f"{pattern.compiled.groups} of them" if pattern.compiled.groups else "none"
                raise ValueError(f"{reading} is said by a group that the pattern has not ({count}), {group!r:.60}")
            said[reading] = number
        return said
