"""``[log]`` of a space file: how the program's own output tells of its throughput.

- ``pattern`` is a regular expression; what it finds anywhere in a line counts.
- A named group says what its name says: ``tokens_per_second``, ``step_time_ms``...; unit and scope stand in the name.
- ``groups`` says it for groups of another name, or without one: ``groups = { tokens_per_second = 2 }``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchx_cubicml.records.bounded_pattern import BoundedPattern
from torchx_cubicml.records.log_pattern import LogPattern

if TYPE_CHECKING:
    from torchx_cubicml.space.toml.schema import Table

LOG_KEYS = ("pattern", "groups")


def read_log(root: Table) -> LogPattern | None:
    """Return what ``[log]`` says; ``None`` where it is absent.

    Raises:
        SpaceError: a key is unknown, or the pattern breaks a rule.
    """
    if "log" not in root:
        return None
    table = root.table("log", legal=LOG_KEYS)
    pattern = table.text("pattern")
    if not pattern:
        raise table.error("pattern", "a regular expression is wanted, such as 'speed (?P<tokens_per_second>[0-9.]+)'")
    groups = _groups(table)
    try:
        BoundedPattern(pattern)
    except ValueError as error:
        raise table.error("pattern", str(error)) from None
    try:
        return LogPattern(pattern=pattern, groups=groups)
    except ValueError as error:
        raise table.error("groups" if groups else "pattern", str(error)) from None


def _groups(table: Table) -> dict[str, int | str]:
    said = table.table("groups", legal=None)
    groups: dict[str, int | str] = {}
    for reading in said:
        group = said.raw(reading)
        if isinstance(group, bool) or not isinstance(group, int | str):
            raise said.error(reading, "the number or the name of a group is wanted")
        groups[reading] = group
    return groups
