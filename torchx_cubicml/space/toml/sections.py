"""Readers of the ``[rewrite]`` and ``[log]`` sections of a space file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchx_cubicml.errors import SpaceError
from torchx_cubicml.records.bounded_pattern import BoundedPattern
from torchx_cubicml.records.log_pattern import LogPattern
from torchx_cubicml.space import RewriteRules
from torchx_cubicml.space.search_space import RESHARDS
from torchx_cubicml.space.toml.key_meanings import LOG, REWRITE

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from torchx_cubicml.space.toml.schema import TomlTable


REWRITE_KEYS = tuple(REWRITE)
MAX_FROZEN = 1000


def read_rewrite(root: TomlTable, parameters: Collection[str], standard: Mapping[str, str]) -> RewriteRules:
    """Return the rules of ``[rewrite]``.

    Args:
        root: the file.
        parameters: names of its parameters.
        standard: name in the file -> standard name, where they differ.

    Raises:
        SpaceError: a key is unknown or a rule is broken.
    """
    table, defaults = root.table("rewrite", legal=REWRITE_KEYS), RewriteRules()
    explore = _number(table, "explore", defaults.explore, most=1)
    budget = _number(table, "explore_budget_gpu_hours", defaults.explore_budget_device_hours, most=None)
    if explore and not budget:
        raise SpaceError(f"{table.place}.explore: needs explore_budget_gpu_hours = a number above 0")
    return RewriteRules(
        min_gain=_number(table, "min_gain", defaults.min_gain, most=None),
        min_fit=_number(table, "min_fit", defaults.min_fit, most=1),
        freeze=tuple(standard.get(name, name) for name in _named(table, "freeze", parameters)),
        explore=explore,
        explore_budget_device_hours=budget,
        baseline_every=_baseline_every(table, defaults.baseline_every),
        retry_as_typed=table.switch("retry_as_typed") if "retry_as_typed" in table else defaults.retry_as_typed,
        resume=tuple(standard.get(name, name) for name in _named(table, "resume", [*parameters, RESHARDS])),
    )


def _number(table: TomlTable, key: str, default: float, *, most: float | None) -> float:
    value = table.number(key)
    if value is None:
        return default
    if value < 0 or (most is not None and value > most):
        raise table.error(key, "must be a number >= 0" if most is None else f"must be a number from 0 to {most}")
    return float(value)


def _baseline_every(table: TomlTable, default: int) -> int:
    value = table.number("baseline_every")
    if value is None:
        return default
    if not isinstance(value, int) or value < 0 or value == 1:
        raise table.error("baseline_every", "must be 0, or a whole number of at least 2")
    return value


def _named(table: TomlTable, key: str, legal: Collection[str]) -> tuple[str, ...]:
    if key not in table or table.raw(key) == []:
        return ()
    is_word = table.raw(key) == RESHARDS
    names = [RESHARDS] if is_word else [str(name) for name in table.values(key, most=MAX_FROZEN)]
    for name in names:
        if name not in legal:
            raise table.unknown(key, "parameter", name, legal)
    return tuple(dict.fromkeys(names))


LOG_KEYS = tuple(LOG)


def read_log(root: TomlTable) -> LogPattern | None:
    """Return the log pattern of ``[log]``; ``None`` if absent.

    Raises:
        SpaceError: a key is unknown, or the pattern breaks a rule.
    """
    if "log" not in root:
        return None
    table = root.table("log", legal=LOG_KEYS)
    pattern = table.text("pattern")
    if not pattern:
        raise table.error("pattern", "must be a regular expression, such as 'speed (?P<tokens_per_second>[0-9.]+)'")
    groups = _groups(table)
    try:
        BoundedPattern(pattern)
    except ValueError as error:
        raise table.error("pattern", str(error)) from None
    try:
        return LogPattern(pattern=pattern, groups=groups)
    except ValueError as error:
        raise table.error("groups" if groups else "pattern", str(error)) from None


def _groups(table: TomlTable) -> dict[str, int | str]:
    section = table.table("groups", legal=None)
    groups: dict[str, int | str] = {}
    for reading in section:
        group = section.raw(reading)
        if isinstance(group, bool) or not isinstance(group, int | str):
            raise section.error(reading, "must be the number or the name of a group")
        groups[reading] = group
    return groups
