"""User-defined log format: a regular expression whose groups capture named readings."""

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
"""Readings that a group of a log format may capture.

Rates are of the whole job unless their name ends in ``_per_device``. ``step_time_s`` and ``step_time_ms`` are of one
optimizer step, and ``samples`` and ``tokens`` are the whole job's per step. ``step`` is the number of the step, by
which a line printed twice counts once.
"""

THROUGHPUT_READINGS = READINGS[:6]
"""Readings that give a throughput; a format needs at least one."""

EXCLUSIVE_READINGS = (
    ("tokens_per_second", "tokens_per_second_per_device"),
    ("samples_per_second", "samples_per_second_per_device"),
    ("step_time_s", "step_time_ms"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPattern:
    """Log format: a pattern for the output lines that report throughput, and the reading of each group.

    Args:
        pattern: regular expression, searched for anywhere in a line.
        groups: reading -> number or name of the group that captures it; one named after a reading needs no entry.

    Raises:
        ValueError: the pattern cannot be searched for in bounded time, or no group captures a throughput; the message
            states the rule.
    """

    pattern: str
    groups: Mapping[str, int | str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        readings = self.readings(BoundedPattern(self.pattern))
        if not set(readings) & set(THROUGHPUT_READINGS):
            raise ValueError(f"at least one group must capture one of {', '.join(THROUGHPUT_READINGS)}")
        for pair in EXCLUSIVE_READINGS:
            if set(pair) <= set(readings):
                raise ValueError(f"groups cannot capture both {' and '.join(pair)}")

    def readings(self, pattern: BoundedPattern) -> dict[str, int]:
        """Return the group number of each reading.

        Args:
            pattern: compiled pattern of this format.

        Raises:
            ValueError: a name is no reading, or a group does not exist.
        """
        named_groups = pattern.compiled.groupindex
        group_of = {name: number for name, number in named_groups.items() if name in READINGS}
        unused = [name for name in named_groups if name not in READINGS and name not in self.groups.values()]
        for name in (*self.groups, *unused):
            if name not in READINGS:
                raise ValueError(f"unknown group {name!r:.60} (choose from {', '.join(READINGS)})")
        for reading, group in self.groups.items():
            number = named_groups.get(group) if isinstance(group, str) else group
            if number is None or isinstance(number, bool) or not 1 <= number <= pattern.compiled.groups:
                count = pattern.compiled.groups or "none"
                raise ValueError(
                    f"{reading} names group {group!r:.60}, but the pattern has no such group (it has {count})"
                )
            group_of[reading] = number
        return group_of
